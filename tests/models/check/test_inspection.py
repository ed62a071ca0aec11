"""The sizes that inspection announces are those of loading, and inspection reads no tensor."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from flowedge.cli.main import run
from flowedge.drafting.heads.mtp_head import mtp_tensors
from flowedge.models.block import LayerBlock
from flowedge.models.check.inspection import inspect_checkpoint
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.files.weight_file import OpenFile
from flowedge.models.quant.int8 import Int8
from flowedge.models.quant.quantize import QUANTISATIONS
from tests.drafting.mtp_files import make_mtp
from tests.models.conftest import Make
from tests.models.tiny_families import TINY, make_multimodal, make_tiny


@pytest.fixture
def nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: OpenFile, tensor: torch.Tensor, offset: int) -> None:
        raise AssertionError("a tensor was read")

    monkeypatch.setattr(OpenFile, "read_into", refuse)


@pytest.mark.parametrize("shard", ["1GB", "60KB"])
def test_sizes(make_checkpoint: Make, shard: str, nothing_is_read: None) -> None:
    sizes = inspect_checkpoint(Checkpoint.open(str(make_checkpoint(shard))), "bfloat16", [])
    attention, mlp, norms = 2 * 64 * 64 + 2 * 32 * 64, 3 * 64 * 128, 2 * 64
    assert sizes.parameters == 4 * (attention + mlp + norms) + 2 * 97 * 64 + 64
    assert tuple(sizes.layer_bytes) == QUANTISATIONS
    assert sizes.layer_bytes["none"] == [2 * (attention + mlp + norms)] * 4
    assert sizes.layer_bytes["nf4"] == [(attention + mlp) * 9 // 16 + 2 * norms] * 4
    assert sizes.embedding_bytes == sizes.head_bytes and not sizes.tied
    assert sizes.head_bytes["none"] == sizes.head_bytes["nf4"] == 2 * 97 * 64
    assert sizes.head_bytes["int8"] == sizes.head_bytes["int4"] == Int8().weight_bytes(97, 64)
    bytes_of_layer = {"float32": 256, "float16": 128, "bfloat16": 128, "int8": 80}
    assert sizes.kv_bytes == {dtype: [size] * 4 for dtype, size in bytes_of_layer.items()}


@pytest.mark.parametrize("quant", ["none", "nf4", "int4"])
def test_blocks_take_what_was_announced(directory: Path, quant: str) -> None:
    checkpoint = Checkpoint.open(str(directory))
    sizes = inspect_checkpoint(checkpoint, "float32", [quant])
    block = LayerBlock.load(checkpoint, 0, 4, quant=quant)
    announced = sum(sizes.layer_bytes[quant]) + sizes.embedding_bytes[quant] + sizes.norm_bytes
    assert block.weight_bytes == announced
    assert block.new_cache(10).kv.nbytes == 10 * sum(sizes.kv_bytes["float32"])


@pytest.mark.parametrize("family", ["qwen3_5", "glm4_moe_lite"])
def test_the_layer_that_predicts_further_tokens_is_shown(
    family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = str(make_mtp(tmp_path, family))
    assert run(["inspect", directory, "--dtype", "float32", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    checkpoint = Checkpoint(tmp_path)
    stored, ahead = mtp_tensors(checkpoint), [name for name in checkpoint.names if name.startswith("mtp.")]
    assert len(ahead) - len(stored) == (2 if family == "glm4_moe_lite" else 0), "copies of the target's"
    assert told["mtp_bytes"]["none"] == checkpoint.tensor_bytes(stored)
    assert told["mtp_bytes"]["int4"] < told["mtp_bytes"]["int8"] < told["mtp_bytes"]["none"]
    assert 4 * told["parameters"] == checkpoint.tensor_bytes(set(checkpoint.names) - set(ahead))
    assert run(["inspect", directory]) == 0
    assert "layer that predicts further tokens (--drafter mtp): " in capsys.readouterr().out
    assert run(["inspect", "bundled", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mtp_bytes"] == {}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", TINY)
def test_every_family(tmp_path: Path, name: str) -> None:
    """Layers of one model may differ."""
    checkpoint = Checkpoint.open(str(make_tiny(tmp_path, name)))
    sizes = inspect_checkpoint(checkpoint, "float32", ["none", "int4"])
    assert sizes.parameters is not None
    assert 4 * sizes.parameters == checkpoint.tensor_bytes(checkpoint.names)
    for quant, layers in sizes.layer_bytes.items():
        blocks = [LayerBlock.required_bytes(checkpoint, index, index + 1, quant=quant) for index in (1, 2)]
        assert blocks == layers[1:3]
    differ = sizes.layer_bytes["none"][1] != sizes.layer_bytes["none"][2]
    unlike = name in ("qwen3_moe", "glm4_moe_lite-yarn") or name.startswith("gemma4")
    assert differ == (unlike or checkpoint.architecture.recurrence is not None)
    whole = LayerBlock.load(checkpoint, 0, sizes.num_layers)
    assert whole.new_cache(1).store.nbytes == sum(sizes.kv_bytes["float32"])


def test_the_other_models_of_a_multimodal_checkpoint_are_not_counted(tmp_path: Path) -> None:
    make_multimodal(tmp_path / "whole")
    make_tiny(tmp_path / "text", "gemma3")
    whole, text = (Checkpoint.open(str(tmp_path / name)) for name in ("whole", "text"))
    assert (
        inspect_checkpoint(whole, "float32", []).layer_bytes
        == inspect_checkpoint(text, "float32", []).layer_bytes
    )
    assert (
        inspect_checkpoint(whole, "float32", []).parameters
        == inspect_checkpoint(text, "float32", []).parameters
    )


def test_json(make_checkpoint: Make, capsys: pytest.CaptureFixture[str], nothing_is_read: None) -> None:
    directory = make_checkpoint(tie_word_embeddings=True)
    options = ["--quant", "nf4", "--quant", "none", "--memory", "0.001", "--devices", "3"]
    options += ["--context", "100", "--dtype", "float32"]
    assert run(["inspect", str(directory), "--json", *options]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["tied"] and document["num_layers"] == 4
    assert document["draft_head"]["tokens"] == 97
    assert document["draft_head"]["bytes"]["none"] == document["head_bytes"]["none"] == 97 * 64 * 4
    assert [row["quant"] for row in document["fits"]] == ["nf4", "none"]
    row = document["fits"][0]
    layer = document["layer_bytes"]["nf4"][0] + 100 * document["kv_bytes"]["float32"][0]
    assert row["split"] == [2, 2] and row["fits"] and row["least_devices"] == 2
    assert row["stage_bytes"] == [2 * layer + 97 * 64 * 4, 2 * layer + 64 * 4]


def test_the_tables(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--memory", "0.0002", "--devices", "6", "--dtype", "float32"]
    assert run(["inspect", str(directory), *sizes]) == 0
    shown = capsys.readouterr().out
    for text in (*QUANTISATIONS[1:], "4 layers of width 64", "does not fit", "more stages than layers"):
        assert text in shown
    assert "LM head of the 97 tokens that a drafter proposes" in shown
    assert shown.count("\nfloat32") == 3  # a row of each table: layers, keys and values, devices needed
    assert run(["inspect", "bundled"]) == 0
    shown = capsys.readouterr().out
    assert "the same tensor" in shown


def test_layers_that_are_not_supported(make_checkpoint: Make, capsys: pytest.CaptureFixture[str]) -> None:
    place = make_checkpoint(hidden_act="relu")
    assert run(["inspect", str(place)]) == 1
    assert "the activation 'relu' is not supported; supported: gelu," in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["inspect", "/no/such/model"], 1, "no such directory"),
        (["inspect", "~no-such-user/model"], 2, "the home directory of ~no-such-user is not known"),
        (["inspect", "bundled", "--devices", "3"], 2, "--memory"),
        (["inspect", "bundled", "--devices", "1", "--memory", "1"], 2, "--devices"),
        (["inspect", "bundled", "--quant", "int3"], 2, "int4"),
        (["inspect"], 2, "Missing argument"),
    ],
)
def test_wrong_usage(
    arguments: list[str], code: int, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == code
    captured = capsys.readouterr()
    assert complaint in captured.err and captured.out == ""
