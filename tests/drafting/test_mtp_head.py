"""The layer that comes with a model drafts by its definition; it is counted, named and refused."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from flowedge.core.errors import BadRequestError, CheckpointError
from flowedge.device.kernel_library import missing_reason
from flowedge.drafting.drafter import Frontier
from flowedge.drafting.drafter_format import DrafterFormat
from flowedge.drafting.drafter_memory import drafter_memory
from flowedge.drafting.heads.head_drafter import SCRATCH_ROWS, HeadDrafter
from flowedge.drafting.heads.mtp_head import MtpHead, has_mtp
from flowedge.drafting.joined import JoinedDrafter
from flowedge.drafting.loading import TargetModel, drafter_kinds, drafter_taps, load_drafter
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.model_header import predicts_ahead
from flowedge.models.checkpoint.model_source import FoundModel
from flowedge.models.lm_head import LMHead
from tests.drafting.mtp_files import PlainMtp, add_mtp, make_mtp, plain_mtp
from tests.drafting.trees import extend, grow, grow_and_check
from tests.models.conftest import edit_config, edit_tensors
from tests.models.layer_pairs import tiny_config
from tests.models.tiny_families import VOCAB, make_tiny
from tests.support.breadth import dealt
from tests.support.gguf_files import write_gguf
from tests.support.integer_checkpoints import LAYOUTS, write_integer_checkpoint

ROWS, HIDDEN = 40, 32


def target_of(
    checkpoint: Checkpoint, dtype: torch.dtype = torch.float32, form: DrafterFormat | None = None
) -> TargetModel:
    head = LMHead.load(checkpoint, dtype)
    return TargetModel(checkpoint, head, None, dtype, form=form or DrafterFormat())


def loaded(checkpoint: Checkpoint, **settings: object) -> HeadDrafter:
    drafter = load_drafter(("mtp",), target_of(checkpoint, **settings))  # type: ignore[arg-type]
    assert isinstance(drafter, HeadDrafter) and isinstance(drafter.head, MtpHead)
    return drafter


def check_growths(drafter: HeadDrafter, plain: PlainMtp) -> None:
    """Hold growths of a session, which is extended in between, against the plain layer."""
    rng = np.random.default_rng(1)
    features = rng.standard_normal((ROWS, HIDDEN)).astype(np.float32)
    next_tokens = rng.integers(0, VOCAB, ROWS)
    drafter.open("s", ROWS, 0)
    rows = 0
    for growth, step in enumerate((9, 1, 14)):
        extend(drafter, "s", features[rows : rows + step], next_tokens[rows : rows + step])
        rows += step

        def check(path: list[int], tokens: np.ndarray, log_probs: np.ndarray, rows: int = rows) -> None:
            known = [*next_tokens[:rows].tolist(), *path]
            before = torch.from_numpy(features[:rows])
            for length in range(rows, len(known) + 1):
                states = plain.states(torch.tensor(known[:length]), before)
                before = torch.cat((before, states[-1:]))
            expected = plain.log_probs(before[-1:])[0]
            np.testing.assert_allclose(log_probs, expected[tokens].numpy(), atol=1e-4)
            np.testing.assert_allclose(log_probs, expected.topk(len(tokens)).values.numpy(), atol=1e-4)

        grow_and_check(drafter, growth, 3, check, vocab=VOCAB)


@pytest.mark.parametrize(
    ("family", "by_torch"),
    dealt(
        itertools.product(("qwen3_5", "qwen3_5_moe", "qwen3_next", "glm4_moe_lite"), (False, True)),
        lambda case: case != ("qwen3_next", True),
    ),
)
@torch.inference_mode()
def test_growth_equals_the_plain_layer(family: str, by_torch: bool, tmp_path: Path) -> None:
    directory = make_mtp(tmp_path, family)
    drafter = loaded(Checkpoint(directory))
    forward = vars(drafter)["_forward"]
    assert (vars(forward)["_kernels"] is None) == bool(missing_reason())
    if by_torch:
        vars(forward)["_kernels"] = None
    check_growths(drafter, plain_mtp(directory))


@torch.inference_mode()
def test_a_multimodal_checkpoint_has_the_same_names(tmp_path: Path) -> None:
    directory = make_mtp(tmp_path, multimodal=True)
    check_growths(loaded(Checkpoint(directory)), PlainMtp(directory))


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5_moe", "glm4_moe_lite"])
@torch.inference_mode()
def test_files_of_gguf_have_it_behind_the_models_layers(family: str, tmp_path: Path) -> None:
    directory = make_mtp(tmp_path, family)
    path = write_gguf(tmp_path / "model.gguf", directory, "F32", tokenizer=None)
    checkpoint = Checkpoint.open(str(path))
    assert has_mtp(checkpoint) and predicts_ahead(FoundModel(path.parent, (path,)))
    check_growths(loaded(checkpoint), plain_mtp(directory))
    for quant, dtype in (("none", torch.float32), ("int8", torch.bfloat16)):
        form = DrafterFormat(quant)  # type: ignore[arg-type]
        counted = drafter_memory(("mtp",), checkpoint, dtype, form)
        assert counted.weights == loaded(checkpoint, dtype=dtype, form=form).weight_bytes


def test_blocks_of_gguf_are_held_as_stored(tmp_path: Path) -> None:
    directory = make_mtp(tmp_path)
    path = write_gguf(tmp_path / "model.gguf", directory, "Q8_0", tokenizer=None)
    checkpoint, form = Checkpoint.open(str(path)), DrafterFormat("none")
    drafter = loaded(checkpoint, form=form)
    assert drafter_memory(("mtp",), checkpoint, torch.float32, form).weights == drafter.weight_bytes
    plain = loaded(Checkpoint(directory), form=form)
    if not missing_reason():
        assert drafter.weight_bytes < plain.weight_bytes / 2
    rng = np.random.default_rng(2)
    features, tokens = rng.standard_normal((9, HIDDEN)).astype(np.float32), rng.integers(0, VOCAB, 9)
    found = []
    for each in (drafter, plain):
        each.open("s", ROWS, 0)
        extend(each, "s", features, tokens)
        found.append(grow(each, "s", 1, Frontier([0], [-1], [0]), VOCAB))
    scores = [dict(zip(each.tokens[0].tolist(), each.log_probs[0], strict=True)) for each in found]
    assert max(abs(scores[0][token] - scores[1][token]) for token in range(VOCAB)) < 1


def test_it_is_a_drafter_like_others(tmp_path: Path) -> None:
    checkpoint = Checkpoint(make_mtp(tmp_path))
    assert has_mtp(checkpoint)
    assert drafter_kinds(("mtp", "ngram")) == ("mtp", "ngram")
    assert drafter_taps(("mtp", "ngram"), 4) == ()
    drafter = loaded(checkpoint)
    assert drafter.needs_features and drafter.taps == () and drafter.can_learn
    joined = load_drafter(("mtp", "ngram"), target_of(checkpoint))
    assert isinstance(joined, JoinedDrafter)
    assert joined.fingerprint == f"{drafter.fingerprint}+ngram-1-12"
    with pytest.raises(BadRequestError, match="recall corrects an EAGLE head"):
        load_drafter(("mtp", "recall"), target_of(checkpoint))


@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5_moe", "glm4_moe_lite"])
@pytest.mark.parametrize(
    ("dtype", "quant"),
    [(torch.float32, "none"), (torch.bfloat16, "auto"), (torch.bfloat16, "int8"), (torch.float32, "int4")],
)
def test_its_memory_is_known_before_it_is_loaded(
    family: str, dtype: torch.dtype, quant: str, tmp_path: Path
) -> None:
    checkpoint = Checkpoint(make_mtp(tmp_path, family))
    form = DrafterFormat(quant)  # type: ignore[arg-type]
    counted = drafter_memory(("mtp",), checkpoint, dtype, form)
    drafter = loaded(checkpoint, dtype=dtype, form=form)
    assert counted.weights == drafter.weight_bytes
    assert counted.row * (100 + SCRATCH_ROWS) == drafter.session_bytes(100)


@pytest.mark.parametrize(
    ("family", "layout"),
    [("qwen3_5", "gptq-asymmetric"), ("qwen3_5", "w8a16"), ("glm4_moe_lite", "gptq-column")],
)
def test_weights_that_are_stored_quantised_stay_so(family: str, layout: str, tmp_path: Path) -> None:
    plain = AutoModelForCausalLM.from_config(tiny_config(family, hidden_size=64, intermediate_size=64))
    plain.save_pretrained(tmp_path / "plain")
    write_integer_checkpoint(add_mtp(tmp_path / "plain"), tmp_path / "stored", LAYOUTS[layout])
    checkpoint, form = Checkpoint(tmp_path / "stored"), DrafterFormat("int8")
    assert has_mtp(checkpoint) and checkpoint.is_quantised("mtp.layers.0.self_attn.o_proj.weight")
    drafter = loaded(checkpoint, dtype=torch.bfloat16, form=form)
    assert drafter_memory(("mtp",), checkpoint, torch.bfloat16, form).weights == drafter.weight_bytes
    drafter.open("s", ROWS, 0)
    extend(drafter, "s", np.zeros((3, 64), dtype=np.uint16), np.arange(3))
    grow_and_check(drafter, 1, 2, lambda *_: None, vocab=VOCAB)


def test_a_tied_embedding_is_counted_once(tmp_path: Path) -> None:
    untied = Checkpoint(make_mtp(tmp_path / "untied"))
    directory = make_mtp(tmp_path / "tied")
    edit_tensors(directory, {"lm_head.weight": None})
    edit_config(directory, tie_word_embeddings=True)
    tied = Checkpoint(directory)
    one, other = (drafter_memory(("mtp",), each, torch.float32).weights for each in (untied, tied))
    assert one - other == 4 * VOCAB * HIDDEN
    assert loaded(tied).weight_bytes == other


def test_models_without_such_a_layer(tmp_path: Path) -> None:
    for name in ("qwen3_5", "qwen3"):
        checkpoint = Checkpoint(make_tiny(tmp_path / name, name))
        for use in (loaded, lambda each: drafter_memory(("mtp",), each, torch.float32)):
            with pytest.raises(BadRequestError, match=r"drafter mtp: .* has no layer that predicts further"):
                use(checkpoint)
    other = make_tiny(tmp_path / "other", "qwen3")
    edit_tensors(other, {"mtp.fc.weight": torch.zeros(HIDDEN, 2 * HIDDEN)})
    assert not has_mtp(Checkpoint(other)), "of a family whose layer is not known"
    with pytest.raises(BadRequestError, match=r"drafter mtp is a draft head, which needs the embedding"):
        load_drafter(("mtp",), TargetModel(None, None, None, torch.float32))


@pytest.mark.parametrize(
    ("settings", "tensors", "said"),
    [
        ({"mtp_num_hidden_layers": 2}, {}, "mtp_num_hidden_layers is 2; a drafter has 1"),
        ({"num_nextn_predict_layers": 2}, {}, "num_nextn_predict_layers is 2; a drafter has 1"),
        ({"mtp_use_dedicated_embeddings": True}, {}, "sets mtp_use_dedicated_embeddings, which is not"),
        ({}, {"mtp.layers.1.input_layernorm.weight": torch.zeros(HIDDEN)}, "mtp.layers.1.* is no part of"),
        ({}, {"mtp.embed_tokens.weight": torch.zeros(VOCAB, HIDDEN)}, "mtp.embed_tokens.weight is no part"),
        ({}, {"mtp.fc.bias": torch.zeros(HIDDEN)}, "mtp.fc.bias is a bias that the config does not ask for"),
        ({}, {"mtp.norm.weight": None}, "tensor mtp.norm.weight is missing"),
        ({}, {"mtp.norm.weight": torch.zeros(3)}, "tensor mtp.norm.weight has shape"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(
    settings: dict[str, object], tensors: dict[str, torch.Tensor | None], said: str, tmp_path: Path
) -> None:
    directory = make_mtp(tmp_path)
    edit_config(directory, **settings)
    edit_tensors(directory, tensors)
    with pytest.raises(CheckpointError, match=said):
        loaded(Checkpoint(directory))


def test_copies_of_the_targets_tensors_are_left_out(tmp_path: Path) -> None:
    """Of a GLM-4.7-Flash the target's embedding and LM head serve, whether or not the layer repeats them."""
    directory = make_mtp(tmp_path, "glm4_moe_lite")
    fingerprint = loaded(Checkpoint(directory)).fingerprint
    copies = ("model.layers.4.embed_tokens.weight", "model.layers.4.shared_head.head.weight")
    edit_tensors(directory, {copies[0]: torch.zeros(3, HIDDEN)})
    with pytest.raises(
        CheckpointError, match=r"mtp\.embed_tokens\.weight has shape \[3, 32\], the config asks"
    ):
        loaded(Checkpoint(directory))
    edit_tensors(directory, dict.fromkeys(copies))
    assert loaded(Checkpoint(directory)).fingerprint == fingerprint
