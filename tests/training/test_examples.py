"""Training data: forms of a line, messages about wrong lines, and the tokens that count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flowedge.core.errors import BadRequestError
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.tokenizer_loading import load_tokenizer
from flowedge.text.tokenizer import encode_chat
from flowedge.training.documents import document_of, epoch_batches, prompt_tokens
from flowedge.training.examples import Example, Message, read_examples, split_held_out


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(Checkpoint.open("bundled"))


BAD_LINES: list[tuple[str, str]] = [
    ("{", "not JSON"),
    ("[1]", "not a JSON object"),
    ('{"question": "a"}', "none of"),
    ('{"prompt": "a", "response": 3}', '"response" is not text'),
    ('{"prompt": " "}', '"prompt" is empty'),
    ('{"text": ""}', '"text" is empty'),
    ('{"turns": []}', '"turns" is not a list'),
    ('{"messages": "a"}', '"messages" is not a list'),
    ('{"messages": [{"role": "robot", "content": "a"}]}', "needs a role"),
    ('{"messages": [{"role": "user"}]}', '"content" is not text'),
    ('{"messages": [{"role": "assistant", "content": "a"}]}', "begins with the assistant"),
]


def test_a_bad_line_is_named(tmp_path: Path) -> None:
    for line, complaint in BAD_LINES:
        file = tmp_path / "data.jsonl"
        file.write_text(f'{{"text": "fine"}}\n\n{line}\n', encoding="utf-8")
        with pytest.raises(BadRequestError, match=r"data\.jsonl:3: ") as caught:
            read_examples(file)
        assert complaint in str(caught.value)


@pytest.mark.parametrize("content", [None, b"", b"\n", b"\xff\xfe"])
def test_a_file_without_examples_is_named(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "data.jsonl"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(BadRequestError, match=r"data\.jsonl: "):
        read_examples(file)


def test_what_a_line_may_be(tmp_path: Path) -> None:
    conversation = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    lines = [
        {"prompt": "q", "response": "a"},
        {"prompt": "q"},
        {"turns": ["q", "more"]},
        {"text": "t"},
        {"messages": conversation},
    ]
    file = tmp_path / "data.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    question, answer = Message("user", "q"), Message("assistant", "a")
    assert read_examples(file) == [
        Example((question, answer)),
        Example((question,)),
        Example((question,)),
        Example(text="t"),
        Example((question, answer)),
    ]


def test_prompts_are_held_out_with_all_their_answers() -> None:
    examples = [
        Example((Message("user", f"q{index % 10}"), Message("assistant", f"a{index}"))) for index in range(30)
    ]
    training, held_out = split_held_out(examples, 4)
    assert len(held_out) == len({example.key for example in held_out}) == 4
    assert not {example.key for example in held_out} & {example.key for example in training}
    assert len(training) == 18
    assert split_held_out(examples[::-1], 4)[0] == training[::-1]
    assert split_held_out(examples[:1], 4) == (examples[:1], []), "something is left to train on"


def test_the_assistants_tokens_count_and_no_others(tokenizer: Any) -> None:
    example = Example(
        (
            Message("user", "Hi"),
            Message("assistant", "Hello!"),
            Message("user", "Bye"),
            Message("assistant", "See you."),
        )
    )
    document = document_of(tokenizer, example)
    written = tokenizer.decode(document.tokens[document.counted], skip_special_tokens=True)
    assert "".join(written.split()) == "Hello!Seeyou."
    prompt = encode_chat(tokenizer, "Hi")
    assert document.tokens[: len(prompt)].tolist() == prompt == prompt_tokens(tokenizer, example)
    assert document.counted.argmax() == len(prompt), "the answer begins where generation would"
    assert document.tokens[document.counted][-1] == tokenizer.eos_token_id
    # Row t decides token t + 2.
    assert np.flatnonzero(document.rows).tolist() == (np.flatnonzero(document.counted) - 2).tolist()


def test_batches_hold_every_document_once_within_their_bound() -> None:
    lengths = [30, 5, 80, 12, 40, 9, 33, 200]
    batches = epoch_batches(lengths, 80, seed=1, epoch=2)
    assert sorted(index for batch in batches for index in batch) == list(range(8))
    assert all(len(batch) == 1 or sum(lengths[index] for index in batch) <= 80 for batch in batches)
    assert batches == epoch_batches(lengths, 80, seed=1, epoch=2) != epoch_batches(lengths, 80, 1, 3)
