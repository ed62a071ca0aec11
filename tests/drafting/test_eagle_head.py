"""The EAGLE head: its published layout on disk, and its incremental forward against the full causal one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from flowedge.core.errors import CheckpointError
from flowedge.drafting.heads.draft_head import KeyValueViews
from flowedge.drafting.heads.eagle_head import EagleHead, load_eagle_head, save_eagle_head
from tests.drafting.made_drafters import HIDDEN, small_config
from tests.models.conftest import edit_tensors

PUBLISHED_NAMES = {
    "fc.weight",
    "fc.bias",
    "layers.0.self_attn.q_proj.weight",
    "layers.0.self_attn.k_proj.weight",
    "layers.0.self_attn.v_proj.weight",
    "layers.0.self_attn.o_proj.weight",
    "layers.0.mlp.gate_proj.weight",
    "layers.0.mlp.up_proj.weight",
    "layers.0.mlp.down_proj.weight",
    "layers.0.post_attention_layernorm.weight",
}


def small_head(fc_bias: bool = True, own_embedding: bool = False) -> EagleHead:
    torch.manual_seed(0)
    head = EagleHead(small_config(), fc_bias, own_embedding)
    torch.nn.init.normal_(head.layers[0].post_attention_layernorm.weight, mean=1.0, std=0.1)
    return head.requires_grad_(False).eval()


def empty_cache(head: EagleHead, capacity: int) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (head.config.num_key_value_heads, capacity, head.config.head_dim)
    return torch.full(shape, torch.nan), torch.full(shape, torch.nan)


def views(cache: tuple[torch.Tensor, torch.Tensor], length: int) -> KeyValueViews:
    return KeyValueViews(cache[0][:, :length], cache[1][:, :length])


def as_bin(directory: Path) -> None:
    torch.save(load_file(directory / "model.safetensors"), directory / "pytorch_model.bin")
    (directory / "model.safetensors").unlink()


def edit_config(directory: Path, **changes: object) -> None:
    path = directory / "config.json"
    settings = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in settings.items() if value is not None}))


@pytest.mark.parametrize("own_embedding", [False, True])
@pytest.mark.parametrize("pickled", [False, True])
def test_layout_round_trip(tmp_path: Path, pickled: bool, own_embedding: bool) -> None:
    head = small_head(own_embedding=own_embedding)
    save_eagle_head(head, tmp_path)
    extra = {"embed_tokens.weight"} if own_embedding else set()
    assert set(load_file(tmp_path / "model.safetensors")) == PUBLISHED_NAMES | extra
    if pickled:
        as_bin(tmp_path)
        with pytest.warns(UserWarning, match="pickle"):
            loaded = load_eagle_head(tmp_path, torch.float32)
    else:
        loaded = load_eagle_head(tmp_path, torch.float32)
    assert (loaded.embed_tokens is not None) is own_embedding
    stored = head.state_dict()
    assert all(torch.equal(value, stored[name]) for name, value in loaded.state_dict().items())
    assert not loaded.training


def test_saved_files_have_the_mode_that_new_files_have(tmp_path: Path) -> None:
    save_eagle_head(small_head(), tmp_path / "head")
    (tmp_path / "new").touch()
    assert {path.stat().st_mode for path in (tmp_path / "head").iterdir()} == {
        (tmp_path / "new").stat().st_mode
    }


@pytest.mark.parametrize(("setting", "has_bias"), [(None, True), (True, True), (False, False)])
def test_bias_key_of_the_config(tmp_path: Path, setting: bool | None, has_bias: bool) -> None:
    save_eagle_head(small_head(fc_bias=has_bias), tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["bias"] is has_bias
    edit_config(tmp_path, bias=setting)
    assert (load_eagle_head(tmp_path, torch.float32).fc.bias is not None) is has_bias


def test_older_config_and_derived_buffer(tmp_path: Path) -> None:
    save_eagle_head(small_head(), tmp_path)
    edit_config(
        tmp_path, rope_parameters=None, head_dim=None, rope_theta=5000.0, architectures=["LlamaForCausalLM"]
    )
    edit_tensors(tmp_path, {"layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)})
    head = load_eagle_head(tmp_path, torch.float32)
    assert head.config.rope_parameters["rope_theta"] == 5000.0


def test_dtype_leaves_rotary_frequencies_exact(tmp_path: Path) -> None:
    save_eagle_head(small_head(), tmp_path)
    head = load_eagle_head(tmp_path, torch.bfloat16)
    assert {weight.dtype for weight in head.parameters()} == {torch.bfloat16}
    assert torch.equal(head.rotary_emb.inv_freq, small_head().rotary_emb.inv_freq)


def whole(head: EagleHead, embedded: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
    """The head's rows of whole sequences from position 0: [batch, length, hidden]."""
    positions = torch.arange(features.shape[1])[None]
    rows: torch.Tensor = head(embedded, features, positions, None, None)
    return rows


@pytest.mark.parametrize("steps", [(9,), (4, 1, 3, 1), (1,) * 9])
def test_incremental_equals_full_causal_forward(steps: tuple[int, ...]) -> None:
    head = small_head()
    embeddings, features = torch.randn(2, 9, HIDDEN)
    full = whole(head, embeddings[None], features[None])[0]
    cache, done, predicted = empty_cache(head, 16), 0, []
    for rows in steps:
        end = done + rows
        mask = torch.ones(end, end).tril()[done:].bool()
        positions = torch.arange(done, end)
        predicted.append(head(embeddings[done:end], features[done:end], positions, views(cache, end), mask))
        done = end
    torch.testing.assert_close(torch.cat(predicted), full, atol=1e-5, rtol=0)


def test_layer_equals_transformers_decoder_layer_without_input_norm() -> None:
    head, config = small_head(), small_config()
    config._attn_implementation = "sdpa"  # noqa: SLF001 (there is no public way)
    reference = LlamaDecoderLayer(config, layer_idx=0).eval()
    reference.load_state_dict(head.layers[0].state_dict(), strict=False)
    reference.input_layernorm = torch.nn.Identity()
    embeddings, features = torch.randn(2, 1, 9, HIDDEN)
    rotary = LlamaRotaryEmbedding(config)(features, torch.arange(9)[None])
    with torch.no_grad():
        fused = head.fc(torch.cat((embeddings, features), dim=-1))
        expected = reference(fused, position_embeddings=rotary)
    torch.testing.assert_close(whole(head, embeddings, features), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fc.bias", None),
        ("layers.0.self_attn.k_proj.weight", None),
        ("fc.weight", torch.zeros(HIDDEN, HIDDEN)),
        ("layers.0.input_layernorm.weight", torch.zeros(HIDDEN)),
        ("d2t", torch.zeros(64)),
    ],
)
def test_bad_tensor_is_named(tmp_path: Path, name: str, value: torch.Tensor | None) -> None:
    save_eagle_head(small_head(), tmp_path)
    edit_tensors(tmp_path, {name: value})
    with pytest.raises(CheckpointError, match=name):
        load_eagle_head(tmp_path, torch.float32)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", b"[1]", "JSON object"),
        ("config.json", b"{", "cannot be read"),
        ("config.json", b'{"num_hidden_layers": 2}', "num_hidden_layers is 2"),
        ("config.json", b'{"hidden_size": "wide"}', "hidden_size is 'wide', not an integer"),
        ("model.safetensors", b"junk", "cannot be read"),
        ("config.json", None, "cannot be read"),
        ("model.safetensors", None, "neither"),
    ],
)
def test_bad_file_is_a_checkpoint_error(
    tmp_path: Path, file: str, content: bytes | None, message: str
) -> None:
    save_eagle_head(small_head(), tmp_path)
    if content is None:
        (tmp_path / file).unlink()
    else:
        (tmp_path / file).write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        load_eagle_head(tmp_path, torch.float32)


def test_bin_with_code_is_refused(tmp_path: Path) -> None:
    save_eagle_head(small_head(), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save({"fc.weight": small_head()}, tmp_path / "pytorch_model.bin")
    with (
        pytest.warns(UserWarning, match="pickle"),
        pytest.raises(CheckpointError, match="holds more than tensors"),
    ):
        load_eagle_head(tmp_path, torch.float32)


def test_positions_have_a_batch_where_transformers_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    head, asked = small_head(), []
    rotate = head.rotary_emb.forward

    def noted(like: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        asked.append(positions.shape)
        cos, sin = rotate(like, positions)
        return cos, sin

    monkeypatch.setattr(head.rotary_emb, "forward", noted)
    like, positions = torch.zeros(0), torch.tensor([3, 4, 9])
    flat, batched = head.rotation(like, positions), head.rotation(like, positions[None])
    assert asked == [(1, 3), (1, 3)]
    for alone, among in zip(flat, batched, strict=True):
        assert alone.shape == (3, head.config.head_dim)
        assert torch.equal(alone, among[0])
