"""What a crafted tokenizer.json may make of a short text is bounded, and published kinds are not refused."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from flowedge.core.errors import CapacityError, CheckpointError
from flowedge.text.tokenizer import encode_text
from flowedge.text.tokenizer_bounds import check_growth, check_tokenizer

TEN = [normalizers.Replace("a", "a" * 10)] * 9
KEYS = ("normalizer", "pre_tokenizer", "decoder", "post_processor")


def with_parts(vocabulary: tuple[str, ...] = ("a", "b"), **parts: Any) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE({piece: number for number, piece in enumerate(vocabulary)}, []))
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    return tokenizer


BOUNDLESS: list[tuple[Tokenizer, str]] = [
    (with_parts(normalizer=normalizers.Replace(Regex(""), "b" * 99)), "normalizer Replace .* 100 times"),
    (with_parts(normalizer=normalizers.Replace("a", "b" * 99)), "normalizer Replace .* 99 times"),
    (with_parts(pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.ByteLevel()] * 9)), "512 times"),
    (with_parts(decoder=decoders.Sequence([decoders.Replace("a", "aa")] * 9)), "its decoder .* 512 times"),
    (
        with_parts(
            post_processor=processors.TemplateProcessing(
                single="a " * 99 + "$A", pair="$A $B", special_tokens=[("a", 0)]
            )
        ),
        "puts 101 tokens around",
    ),
    (with_parts(("a", "b" * 2000)), "a token of 2000 characters"),
    (
        Tokenizer(models.WordPiece({"a": 0}, unk_token="a", max_input_chars_per_word=1 << 20)),
        "chars_per_word",
    ),
]


@pytest.mark.parametrize(("tokenizer", "problem"), BOUNDLESS, ids=lambda each: None)
def test_a_tokenizer_without_bounds_is_refused(tokenizer: Tokenizer, problem: str) -> None:
    with pytest.raises(CheckpointError, match=f"the tokenizer of here cannot be used: .*{problem}"):
        check_tokenizer(tokenizer, "here")


@pytest.mark.parametrize("parts", [TEN, [normalizers.Sequence(TEN[:4]), normalizers.Sequence(TEN[4:])]])
def test_a_chain_of_replacements_makes_no_long_text(parts: list[Any]) -> None:
    backend = with_parts(normalizer=normalizers.Sequence(parts))
    check_tokenizer(backend, "here")  # no part of it is of an impossible kind
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    assert encode_text(tokenizer, "bb") == [1, 1]
    tracemalloc.start()
    try:
        with pytest.raises(CapacityError, match=r"makes 500000 bytes of a prompt of 5000"):
            encode_text(tokenizer, "a" * 5000)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "normalizer",
    [
        normalizers.Replace(" ", "\u2581"),
        normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]),
        normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), "\u2581")]),
        normalizers.BertNormalizer(),
        normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()]),
    ],
)
def test_published_kinds_take_any_usual_text(normalizer: Any) -> None:
    backend = with_parts(
        normalizer=normalizer,
        pre_tokenizer=pre_tokenizers.Sequence([pre_tokenizers.Digits(), pre_tokenizers.ByteLevel()]),
        decoder=decoders.Sequence(
            [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
        ),
    )
    check_tokenizer(backend, "here")
    for text in (
        "the quick brown fox",
        "\uc548\ub155\ud558\uc138\uc694 " * 20_000,
        " " * 60_000,
        "\u00fc\u4e2d" * 9999,
    ):
        check_growth(backend, text)
