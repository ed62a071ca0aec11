"""Files of true paths: what is written is read, and a file that does not fit is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from flowedge.core.errors import BadRequestError
from flowedge.core.sampling import SamplingParams
from flowedge_testbed.true_paths.path_file import PathFile, write_path_file
from flowedge_testbed.true_paths.path_header import METADATA, PathFileHeader, TargetFacts
from flowedge_testbed.true_paths.true_path import TruePath

END = 7
WARM = SamplingParams(temperature=1.0, top_p=0.9, seed=3)
FACTS = TargetFacts(
    title="small.gguf",
    fingerprint="f" * 20,
    tokenizer="a" * 64,
    parameters=None,
    vocab_size=10,
    hidden_size=2,
    max_positions=64,
    eos=[END],
    dtype="float16",
    device="cuda",
)


def path(*tokens: int) -> TruePath:
    """A path whose prompt are its first two tokens."""
    rows = np.arange(2 * (len(tokens) - 1), dtype=np.float32).reshape(-1, 2)
    return TruePath(2, np.array(tokens, dtype=np.int64), rows)


PATHS = [
    (("long",), SamplingParams(seed=5), path(1, 2, 3, 4, 5, 6)),
    (("long",), WARM, path(1, 2, 8, 8, END)),
    (("long",), SamplingParams(seed=6), path(1, 2, 3, 4, 5, 6)),  # greedy once more
    (("short",), SamplingParams(), path(4, 4, END)),
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    written = tmp_path / "paths.safetensors"
    write_path_file(written, FACTS, PATHS, max_new_tokens=4, versions={"torch": "2"}, taps=())
    return written


def test_what_is_written_is_read(file: Path) -> None:
    read = PathFile.read(file)
    assert read.header.target == FACTS
    assert [(kept.tokens, kept.seed) for kept in read.header.paths] == [(6, 0), (5, 3), (3, 0)]
    assert read.encode(("long",)) == (1, 2)
    for turns, sampling, wanted in PATHS:
        found = read.path(read.encode(turns, sampling), sampling, 4, frozenset([END]))
        assert (found.prompt_tokens, found.tokens.tolist()) == (2, wanted.tokens.tolist())
        assert np.array_equal(found.features, wanted.features)


def test_a_shorter_answer_is_the_beginning_of_a_longer_one(file: Path) -> None:
    found = PathFile.read(file).path((1, 2), WARM, 2, frozenset([END]))
    assert found.tokens.tolist() == [1, 2, 8, 8]
    assert np.array_equal(found.features, path(1, 2, 8, 8).features)


def test_what_the_file_lacks_is_named(file: Path) -> None:
    read = PathFile.read(file)
    with pytest.raises(BadRequestError, match=r"of 2 prompts, and none of 'unknown'"):
        read.encode(("unknown",))
    with pytest.raises(BadRequestError, match=r"temperature 0\.5, top_k 0, top_p 1 .* temperature 0, 1"):
        read.path((1, 2), SamplingParams(temperature=0.5), 4, frozenset())
    with pytest.raises(BadRequestError, match="4 new tokens of each prompt, and 5 are asked for"):
        read.path((1, 2), WARM, 5, frozenset())
    with pytest.raises(BadRequestError, match=r"taps \[\], and drafter head reads .* taps \[1, 4, 7\]"):
        read.check_features((1, 4, 7), "head")


def test_features_are_left_out_for_drafters_that_read_none(tmp_path: Path) -> None:
    file = tmp_path / "tokens.safetensors"
    write_path_file(file, FACTS, PATHS, max_new_tokens=4, versions={}, taps=None)
    read = PathFile.read(file)
    assert read.path((1, 2), WARM, 4, frozenset()).features.shape == (4, 0)
    with pytest.raises(BadRequestError, match="holds no hidden states, and drafter head reads"):
        read.check_features((), "head")


def changed(file: Path, tensors: dict[str, Any], **header: Any) -> Path:
    """Write a file again with other tensors and other values in its header."""
    content = PathFile.read(file).header.model_dump() | header
    whole = {
        "tokens": torch.tensor([1, 2, 3, 4, 5, 6, 1, 2, 8, 8, END, 4, 4, END], dtype=torch.int32),
        "features": torch.zeros(11, 2, dtype=torch.float16),
    }
    text = PathFileHeader.model_construct(**content).model_dump_json(warnings=False)
    kept = {name: tensor for name, tensor in {**whole, **tensors}.items() if tensor is not None}
    save_file(kept, file, metadata={METADATA: text})
    return file


@pytest.mark.parametrize(
    ("tensors", "header", "said"),
    [
        ({"tokens": None}, {}, "no tensor 'tokens'"),
        ({"tokens": torch.zeros(14)}, {}, r"'tokens' is torch.float32 \[14\]"),
        ({"tokens": torch.full((14,), 10, dtype=torch.int32)}, {}, "tokens beyond the target's 10"),
        ({"features": torch.zeros(11, 3, dtype=torch.float16)}, {}, r"asks for torch.float16 \[11, 2\]"),
        ({"features": torch.zeros(11, 2)}, {}, "'features' is torch.float32"),
        ({"more": torch.zeros(1)}, {}, "a tensor 'more'"),
        ({}, {"max_new_tokens": 3}, "a path has 4 new tokens"),
        ({}, {"format": 2}, "key format"),
        ({}, {"paths": []}, "key paths"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(
    file: Path, tensors: dict[str, Any], header: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadRequestError, match=rf"paths.safetensors: no file of true paths: .*{said}"):
        PathFile.read(changed(file, tensors, **header))


def test_a_hidden_state_that_is_no_number_is_refused(file: Path) -> None:
    rows = torch.zeros(11, 2, dtype=torch.float16)
    rows[6] = torch.nan
    read = PathFile.read(changed(file, {"features": rows}))
    assert not read.path((1, 2), SamplingParams(), 4, frozenset()).features.any()
    with pytest.raises(BadRequestError, match="a hidden state is not finite"):
        read.path((1, 2), WARM, 4, frozenset())


def test_another_file_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    save_file({"tokens": torch.zeros(1)}, other)
    with pytest.raises(BadRequestError, match="flowedge bench --save-paths writes such files"):
        PathFile.read(other)
    other.write_bytes(b"no such file")
    with pytest.raises(BadRequestError, match="no file of true paths"):
        PathFile.read(other)
