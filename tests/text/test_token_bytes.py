"""The bytes of tokens join to the bytes of the text."""

from __future__ import annotations

from typing import Any

import pytest

from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.tokenizer_loading import load_tokenizer
from flowedge.text.token_bytes import TokenBytes
from tests.text.test_tokenizer import SENTENCES, byte_level, sentencepiece_kind


@pytest.mark.parametrize("make", [byte_level, sentencepiece_kind])
@pytest.mark.parametrize("text", SENTENCES)
def test_bytes_of_all_tokens_are_the_text(make: Any, text: str) -> None:
    tokenizer = make()
    token_bytes = TokenBytes(tokenizer)
    tokens = tokenizer.encode(text, add_special_tokens=False)
    joined = b"".join(map(token_bytes.of, tokens)).decode()
    assert joined in (text, " " + text)  # a sentencepiece tokenizer puts a space before a text


@pytest.mark.parametrize("make", [byte_level, sentencepiece_kind])
def test_a_part_of_a_character_is_its_bytes(make: Any) -> None:
    tokenizer = make()
    token_bytes = TokenBytes(tokenizer)
    parts = [token_bytes.of(token) for token in tokenizer.encode("🙂", add_special_tokens=False)]
    assert len([part for part in parts if part.strip()]) > 1
    assert b"".join(parts).strip() == "🙂".encode()


def test_special_tokens_are_their_names() -> None:
    tokenizer = load_tokenizer(Checkpoint.open("bundled"))
    assert TokenBytes(tokenizer).of(tokenizer.eos_token_id) == tokenizer.eos_token.encode()


def test_an_id_without_a_token_has_no_bytes() -> None:
    assert TokenBytes(byte_level()).of(100_000) == b""
