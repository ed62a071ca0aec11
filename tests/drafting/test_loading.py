"""The values of --drafter, and the messages when a drafter cannot be loaded."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from flowedge.core.errors import BadRequestError, CheckpointError
from flowedge.core.pipeline_config import drafter_label, drafter_names
from flowedge.drafting.choice import check_recall, drafter_value, drafters_of
from flowedge.drafting.heads.eagle_head import EagleHead
from flowedge.drafting.heads.head_drafter import HeadDrafter
from flowedge.drafting.joined import JoinedDrafter
from flowedge.drafting.lm import LMDrafter
from flowedge.drafting.loading import TargetModel, drafter_kinds, load_drafter
from flowedge.drafting.lookup.ngram import NGramDrafter
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.tokenizer_loading import load_tokenizer
from flowedge.models.lm_head import LMHead
from flowedge.v1 import measure_pb2 as pb
from tests.models.tiny_families import make_tiny


@pytest.fixture(scope="module")
def target() -> TargetModel:
    checkpoint = Checkpoint.open("bundled")
    return TargetModel(checkpoint, LMHead.load(checkpoint), load_tokenizer(checkpoint), torch.float32)


@pytest.fixture(scope="module")
def lm(small_lm: Callable[..., Path]) -> Path:
    return small_lm(vocab_size=4160)


NAMES: list[tuple[str | Sequence[str], tuple[str, ...]]] = [
    ("", ()),
    ("none", ()),
    ([], ()),
    (["none"], ()),
    ("ngram", ("ngram",)),
    ("owner/name", ("owner/name",)),
    ("a+b", ("a+b",)),
    (["bundled", "ngram"], ("bundled", "ngram")),
    (("ngram", "owner/name"), ("ngram", "owner/name")),
    (["bundled", "recall", "bundled-small", "ngram"], ("bundled", "recall", "bundled-small", "ngram")),
]


def test_names_are_one_text_or_several() -> None:
    for given, names in NAMES:
        assert drafter_names(given) == names
        assert drafter_names(drafter_value(names)) == names


def test_a_label_is_for_people() -> None:
    assert drafter_label(()) == "none"
    assert drafter_label(("bundled", "ngram")) == "bundled+ngram"
    assert drafter_value(()) == "none"
    assert drafter_value(("bundled",)) == "bundled"
    assert drafter_value(("bundled", "ngram")) == ["bundled", "ngram"]


def test_a_message_carries_several_names() -> None:
    assert drafters_of(pb.MeasureDeviceRequest(drafter="a+b", drafters=["a", "b"])) == ("a", "b")
    assert drafters_of(pb.MeasureDeviceRequest(drafter="a+b")) == ("a+b",), "an older sender names one"
    assert drafters_of(pb.MeasureDeviceRequest(drafter="none")) == ()
    assert drafters_of(pb.MeasureDeviceRequest()) == ()
    with pytest.raises(BadRequestError, match="not joined with itself"):
        drafters_of(pb.MeasureDeviceRequest(drafters=["a", "a"]))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["bundled", "ngram", "bundled"], "bundled is not joined with itself"),
        (["x"] * 40 + ["ngram"], "at most 8"),
        (["", "ngram"], "empty name"),
        (["ngram", ""], "empty name"),
        (["none", "ngram"], "none cannot be joined"),
        (["ngram", "ngram"], "not joined with itself"),
    ],
)
def test_names_that_make_no_sense(given: list[str], said: str) -> None:
    with pytest.raises(BadRequestError, match=said):
        drafter_names(given)


@pytest.mark.parametrize(
    "names",
    [("recall",), ("ngram", "recall"), ("bundled-small", "recall"), ("bundled-eagle3", "recall")],
)
def test_recall_needs_a_head(target: TargetModel, names: tuple[str, ...]) -> None:
    with pytest.raises(BadRequestError, match="recall corrects an EAGLE head"):
        load_drafter(names, target)


def test_recall_may_correct_a_drafter_that_only_the_agents_know() -> None:
    check_recall(["recall", "owner/head"], [None])
    check_recall(["ngram"], ["ngram"])


def test_every_kind_is_loaded(target: TargetModel, lm: Path) -> None:
    assert load_drafter((), target) is None
    assert isinstance(load_drafter(("ngram",), target), NGramDrafter)
    eagle, small = load_drafter(("bundled",), target), load_drafter((str(lm),), target)
    assert isinstance(eagle, HeadDrafter) and isinstance(eagle.head, EagleHead) and eagle.needs_features
    assert isinstance(small, LMDrafter) and not small.needs_features
    joined = load_drafter(("ngram", str(lm)), target)
    assert isinstance(joined, JoinedDrafter)
    assert joined.fingerprint == f"{small.fingerprint}+ngram-1-12"
    assert drafter_kinds((str(lm), "bundled")) == ("lm", "eagle")


@pytest.mark.parametrize(
    ("name", "kind"), [("bundled", "eagle"), ("bundled-small", "lm"), ("bundled-eagle3", "eagle3")]
)
def test_the_bundled_ones_are_loaded_by_name(target: TargetModel, name: str, kind: str) -> None:
    assert drafter_kinds((name,)) == (kind,)
    loaded = load_drafter((name,), target)
    assert loaded is not None
    assert 2e6 < loaded.weight_bytes < 2e7
    joined = load_drafter((name, "ngram"), target)
    assert isinstance(joined, JoinedDrafter)
    assert joined.fingerprint == f"{loaded.fingerprint}+ngram-1-12"


def test_a_tied_head_is_kept_once(target: TargetModel, lm: Path) -> None:
    small = load_drafter((str(lm),), target)
    assert small is not None
    parameters = sum(torch.Size(Checkpoint(lm).shape(name)).numel() for name in Checkpoint(lm).names)
    assert small.weight_bytes == 4 * parameters
    eagle = load_drafter(("bundled",), target)
    assert eagle is not None
    files = sum(path.stat().st_size for path in (target.checkpoint.directory.parent / "eagle").iterdir())
    assert eagle.weight_bytes == pytest.approx(2 * files, rel=0.01), "bfloat16 on disk, nothing of the target"


def test_one_layer_with_a_tokenizer_is_a_language_model(
    target: TargetModel, small_lm: Callable[..., Path]
) -> None:
    assert isinstance(load_drafter((str(small_lm(num_hidden_layers=1)),), target), LMDrafter)


def test_a_model_with_states_cannot_draft(target: TargetModel, lm: Path, tmp_path: Path) -> None:
    make_tiny(tmp_path, "qwen3_5")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(lm / name, tmp_path)
    with pytest.raises(BadRequestError, match="has recurrent layers and cannot draft"):
        load_drafter([str(tmp_path)], target)


def test_another_tokenizer_is_named_with_its_first_difference(
    target: TargetModel, lm: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(lm, other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = (
        next(token for token, id_ in vocabulary.items() if id_ == wanted) for wanted in (300, 400)
    )
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(CheckpointError, match="another tokenizer") as error:
        load_drafter((str(other),), target)
    assert f"token 300 is {second!r} there and {first!r}" in str(error.value)


def test_a_head_for_another_model(target: TargetModel, tmp_path: Path) -> None:
    other = tmp_path / "head"
    shutil.copytree(target.checkpoint.directory.parent / "eagle", other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "draft_vocab_size": 512}))
    with pytest.raises(CheckpointError, match=r"fc\.bias is not part of this head"):
        load_drafter((str(other),), target)
    (other / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"config\.json: not a JSON object"):
        load_drafter((str(other),), target)
    with pytest.raises(BadRequestError, match=r"nowhere: no such directory.*bundled"):
        load_drafter(("nowhere",), target)
