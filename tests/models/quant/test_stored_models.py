"""Models that GPTQ, AWQ and compressed-tensors stored, against their plain weights run by transformers."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

from flowedge.core.errors import BadRequestError, CheckpointError
from flowedge.models.block import LayerBlock
from flowedge.models.check.inspection import inspect_checkpoint
from flowedge.models.check.plain_weights import plain_weight
from flowedge.models.check.reference import ReferenceModel
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.quant import repacking
from flowedge.weights.manifest_of_model import describe
from tests.models.conftest import Make, edit_tensors
from tests.models.pipeline import Pipeline
from tests.models.tiny_families import make_multimodal, make_tiny
from tests.support.integer_checkpoints import LAYOUTS, Layout, gptq, write_integer_checkpoint

TEXT = torch.randint(0, 97, (24,), generator=torch.Generator().manual_seed(4)).tolist()
# Most kernels round rows to 8 bits, or rows and scales to bfloat16; grouped 8-bit weights do not.
PLAIN_TOLERANCE = {"w8a16-group": 1e-4, "gptq-8": 1e-4}
UP = "model.layers.0.mlp.up_proj"


@pytest.fixture(scope="module")
def plain(make_checkpoint: Make) -> Path:
    return make_checkpoint(hidden_size=128, intermediate_size=256, num_hidden_layers=2, attention_bias=True)


@pytest.mark.parametrize("name", LAYOUTS)
def test_blocks_compute_with_the_stored_weights(plain: Path, tmp_path: Path, name: str) -> None:
    layout = LAYOUTS[name]
    meant = write_integer_checkpoint(plain, tmp_path / "stored", layout)
    checkpoint = Checkpoint.open(str(tmp_path / "stored"))
    assert checkpoint.quant == layout.quant
    for weight, expected in meant.items():
        assert torch.equal(plain_weight(checkpoint, weight), expected), weight
    model = LlamaForCausalLM.from_pretrained(plain, dtype=torch.float32).eval()
    with torch.inference_mode():
        original = model(torch.tensor([TEXT])).logits[0]
        model.load_state_dict(meant, strict=False)
        expected = model(torch.tensor([TEXT])).logits[0]
        reference = ReferenceModel.load(checkpoint).model(torch.tensor([TEXT])).logits[0]
    tolerance = PLAIN_TOLERANCE.get(name, 0.5)
    for asked in ("none", layout.quant):
        got = Pipeline(checkpoint, 2, quant=asked).commit(TEXT)
        torch.testing.assert_close(got, reference, atol=0.1, rtol=1e-3)
        torch.testing.assert_close(got, expected, atol=tolerance, rtol=1e-3)
    assert (original - expected).abs().max() > (1 if layout.quant == "int4" else 0.01), (
        "nothing was quantised"
    )
    check_sizes(checkpoint)


def check_sizes(checkpoint: Checkpoint) -> None:
    """Check that a block has the bytes that are announced, and the sum that an inspection shows."""
    block = LayerBlock.load(checkpoint, 0, 2, dtype=torch.bfloat16)
    announced = LayerBlock.required_bytes(checkpoint, 0, 2, dtype=torch.bfloat16)
    assert block.weight_bytes == announced
    sizes = inspect_checkpoint(checkpoint, "bfloat16", [])
    assert sizes.stored_quant == checkpoint.quant
    assert (
        sum(sizes.layer_bytes[sizes.stored_quant])
        + sizes.embedding_bytes[sizes.stored_quant]
        + sizes.norm_bytes
        == announced
    )


@pytest.mark.parametrize(
    ("family", "name"),
    [
        *((family, "gptq-column") for family in ("mixtral", "qwen3_moe", "phi3", "gemma2", "gemma3")),
        *(("glm4_moe_lite", name) for name in ("gptq-desc_act", "awq", "w8a16-int")),
        *(("granitehybrid", name) for name in ("gptq-desc_act", "w4a16-asymmetric")),
        ("granitehybrid-experts", "awq"),
    ],
)
def test_other_families(tmp_path: Path, family: str, name: str) -> None:
    if family == "gemma3":
        make_multimodal(tmp_path / "plain")
    else:
        make_tiny(tmp_path / "plain", family)
    layout = LAYOUTS[name]
    if name == "awq":  # with one scale a row, which fits narrow models
        layout = replace(
            layout, quantise=layout.quantise | {"group": -1}, settings=layout.settings | {"group_size": -1}
        )
    write_integer_checkpoint(tmp_path / "plain", tmp_path / "stored", layout)
    checkpoint = Checkpoint.open(str(tmp_path / "stored"))
    block = LayerBlock.load(checkpoint, 0, 1)
    assert block.weight_bytes == LayerBlock.required_bytes(checkpoint, 0, 1)
    with torch.inference_mode():
        expected = ReferenceModel.load(checkpoint).model(torch.tensor([TEXT])).logits[0]
    torch.testing.assert_close(Pipeline(checkpoint, 2).commit(TEXT), expected, atol=0.15, rtol=1e-2)


def test_another_quantisation_is_refused(plain: Path, tmp_path: Path) -> None:
    write_integer_checkpoint(plain, tmp_path / "stored", LAYOUTS["gptq"])
    with pytest.raises(BadRequestError, match=r"in int4 already \(by GPTQ\), so it cannot be loaded in nf4"):
        LayerBlock.load(Checkpoint.open(str(tmp_path / "stored")), 0, 1, quant="nf4")


def test_layers_that_were_left_out_stay_as_they_are(plain: Path, tmp_path: Path) -> None:
    write_integer_checkpoint(plain, tmp_path / "stored", LAYOUTS["gptq"])
    original = load_file(plain / "model.safetensors")[f"{UP}.weight"]
    packed = dict.fromkeys(f"{UP}.{part}" for part in ("qweight", "qzeros", "scales", "g_idx"))
    edit_tensors(tmp_path / "stored", packed | {f"{UP}.weight": original})
    checkpoint = Checkpoint.open(str(tmp_path / "stored"))
    block = LayerBlock.load(checkpoint, 0, 1)
    assert torch.equal(block.layers[0].get_submodule("mlp.up_proj").weight, original)
    assert block.weight_bytes == LayerBlock.required_bytes(checkpoint, 0, 1)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_bias_of_zeros_that_the_config_does_not_ask_for_is_no_bias(
    plain: Path, tmp_path: Path, value: float
) -> None:
    """Early GPTQ tools wrote such a bias for every layer."""
    write_integer_checkpoint(plain, tmp_path / "stored", LAYOUTS["gptq"])
    edit_tensors(tmp_path / "stored", {f"{UP}.bias": torch.full((256,), value, dtype=torch.float16)})
    checkpoint = Checkpoint.open(str(tmp_path / "stored"))
    if value:
        with pytest.raises(CheckpointError, match=r"up_proj\.bias is a bias that the config"):
            LayerBlock.load(checkpoint, 0, 1)
    else:
        assert LayerBlock.load(checkpoint, 0, 1).weight_bytes == LayerBlock.required_bytes(checkpoint, 0, 1)


@pytest.mark.parametrize("name", ["gptq", "gptq-desc_act", "w4a16", "w4a16-actorder", "w4a16-asymmetric"])
def test_rows_that_are_no_whole_number_of_groups(make_checkpoint: Make, tmp_path: Path, name: str) -> None:
    """Small models have such rows: 576 or 960 features in groups of 128."""
    sizes = {"hidden_size": 80, "intermediate_size": 144, "num_hidden_layers": 1}
    plain = make_checkpoint(**sizes, num_attention_heads=4, num_key_value_heads=4)
    group, settings = 64, copy.deepcopy(LAYOUTS[name].settings)
    if "group_size" in settings:
        settings["group_size"] = group
    else:
        settings["config_groups"]["group_0"]["weights"]["group_size"] = group
    layout = Layout(LAYOUTS[name].quantise | {"group": group}, LAYOUTS[name].store, settings)
    meant = write_integer_checkpoint(plain, tmp_path / "stored", layout)
    checkpoint = Checkpoint.open(str(tmp_path / "stored"))
    for weight, expected in meant.items():
        assert torch.equal(plain_weight(checkpoint, weight), expected), weight
    block = LayerBlock.load(checkpoint, 0, 1)
    assert block.weight_bytes == LayerBlock.required_bytes(checkpoint, 0, 1)
    for path in ("self_attn.o_proj", "mlp.down_proj"):
        weight = meant[f"model.layers.0.{path}.weight"]
        rows = torch.randn(3, weight.shape[1], generator=torch.Generator().manual_seed(1))
        got = block.layers[0].get_submodule(path)(rows)
        torch.testing.assert_close(got, rows @ weight.t(), atol=0.05, rtol=0.02)


def test_a_layer_that_was_not_reordered_after_all(plain: Path, tmp_path: Path) -> None:
    """compressed-tensors starts with the group -1 for every feature, and may leave a layer so."""
    layout = Layout({}, LAYOUTS["w4a16-actorder"].store, LAYOUTS["w4a16-actorder"].settings)
    meant = write_integer_checkpoint(plain, tmp_path / "stored", layout)
    edit_tensors(tmp_path / "stored", {f"{UP}.weight_g_idx": torch.full((128,), -1, dtype=torch.int32)})
    checkpoint = Checkpoint.open(str(tmp_path / "stored"))
    weight = meant[f"{UP}.weight"]
    assert torch.equal(plain_weight(checkpoint, f"{UP}.weight"), weight)
    block = LayerBlock.load(checkpoint, 0, 1)
    rows = torch.randn(3, 128, generator=torch.Generator().manual_seed(1))
    got = block.layers[0].get_submodule("mlp.up_proj")(rows)
    torch.testing.assert_close(got, rows @ weight.t(), atol=0.05, rtol=0.02)
    assert block.weight_bytes == LayerBlock.required_bytes(checkpoint, 0, 1)


@pytest.mark.parametrize(
    ("name", "file", "weights"),
    [
        ("gptq", "quantize_config.json", "gptq_model-4bit-128g.safetensors"),
        ("awq", "quant_config.json", "awq_model_w4_g64.safetensors"),
    ],
)
def test_the_files_of_the_first_tools(
    plain: Path, tmp_path: Path, name: str, file: str, weights: str
) -> None:
    """Their config.json says nothing of the quantisation, and the weights have a name of their own."""
    directory = tmp_path / "stored"
    meant = write_integer_checkpoint(plain, directory, LAYOUTS[name])
    config = json.loads((directory / "config.json").read_text())
    settings = config.pop("quantization_config")
    del settings["quant_method"]
    if name == "awq":
        settings["w_bit"], settings["q_group_size"] = settings.pop("bits"), settings.pop("group_size")
    (directory / "config.json").write_text(json.dumps(config))
    (directory / file).write_text(json.dumps(settings))
    (directory / "model.safetensors").rename(directory / weights)
    checkpoint = Checkpoint.open(str(directory))
    assert checkpoint.quant == "int4"
    assert torch.equal(plain_weight(checkpoint, f"{UP}.weight"), meant[f"{UP}.weight"])
    manifest = describe(checkpoint, tmp_path / "cache").manifest
    assert file in [entry.name for entry in manifest.files] and manifest.quant == "int4"
    fingerprint = checkpoint.fingerprint
    (directory / file).write_text(json.dumps(settings | {"sym": "changed"}))
    assert Checkpoint.open(str(directory)).fingerprint != fingerprint


def test_the_first_key_of_compressed_tensors(plain: Path, tmp_path: Path) -> None:
    write_integer_checkpoint(plain, tmp_path / "stored", LAYOUTS["w4a16"])
    path = tmp_path / "stored" / "config.json"
    config = json.loads(path.read_text())
    config["compression_config"] = config.pop("quantization_config")
    path.write_text(json.dumps(config))
    assert Checkpoint.open(str(tmp_path / "stored")).integer_format is not None


def test_a_quantised_lm_head_is_refused(plain: Path, tmp_path: Path) -> None:
    write_integer_checkpoint(plain, tmp_path / "stored", LAYOUTS["gptq"])
    edit_tensors(
        tmp_path / "stored",
        {"lm_head.weight": None, "lm_head.qweight": torch.zeros((16, 97), dtype=torch.int32)},
    )
    with pytest.raises(CheckpointError, match="the LM head is quantised, which is not supported"):
        _ = Checkpoint.open(str(tmp_path / "stored")).head_name


def test_the_reference_refuses_a_repacked_weight_that_is_wrong(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout({"symmetric": False}, gptq, LAYOUTS["gptq-asymmetric"].settings)
    write_integer_checkpoint(plain, tmp_path / "stored", layout)
    monkeypatch.setattr(repacking, "_MIDDLE", {4: 7})
    with pytest.raises(CheckpointError, match="the repacked weight is wrong"):
        ReferenceModel.load(Checkpoint.open(str(tmp_path / "stored")))
