"""The tokenizer of a GGUF file gives the token ids of the tokenizer that the file was made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter, TokenType
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from flowedge.core.errors import CheckpointError
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.tokenizer_loading import eos_token_ids, load_tokenizer
from flowedge.models.gguf.gguf_model import GGUFModel
from flowedge.models.gguf.tokenizer_files import make_tokenizer
from flowedge.models.gguf_families.config import end_tokens
from flowedge.models.gguf_families.metadata import Metadata
from flowedge.text.tokenizer import encode_messages
from tests.models.gguf.conftest import Bundled
from tests.support.gguf_files import BUNDLED, add_metadata, add_tensor, add_tokenizer, finish, tensors_of

TEXTS = (
    "A farmer has 12 hens and 345 eggs.",
    "  two spaces\n\nand lines\t\tand tabs ",
    "ünïcödé, 日本語 and 🦊!",
    "<|user|>special<|assistant|> tokens</s>",
    "don't we'll I'M 3.14e10 a_b-c",
    "",
)
PIECES = ("<unk>", "<s>", "</s>", "<0x41>", "\u2581", "a", "b", "\u2581a", "ab", "\u2581ab", "<mark>")


def test_ids_and_text(bundled_gguf: Bundled) -> None:
    ours = load_tokenizer(Checkpoint.open(str(bundled_gguf("F16"))))
    original = AutoTokenizer.from_pretrained(BUNDLED)
    assert ours.get_vocab() == original.get_vocab()
    for text in TEXTS:
        ids = original.encode(text)
        assert ours.encode(text) == ids
        assert ours.decode(ids) == original.decode(ids)
        assert ours.decode(ids, skip_special_tokens=True) == original.decode(ids, skip_special_tokens=True)
    assert (ours.bos_token, ours.eos_token, ours.pad_token) == ("<s>", "</s>", "<pad>")


def test_chat_template_and_end_tokens(bundled_gguf: Bundled) -> None:
    checkpoint = Checkpoint.open(str(bundled_gguf("F16")))
    ours, original = load_tokenizer(checkpoint), AutoTokenizer.from_pretrained(BUNDLED)
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]
    assert encode_messages(ours, messages) == encode_messages(original, messages)
    assert eos_token_ids(checkpoint, ours) == eos_token_ids(Checkpoint(BUNDLED), original) == {1}


def test_another_tokenizer(bundled_gguf: Bundled, tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(str(bundled_gguf("F16")))
    original = AutoTokenizer.from_pretrained(BUNDLED)
    original.chat_template = "{{ messages[0]['content'] }}"
    original.save_pretrained(tmp_path)
    checkpoint.tokenizer = tmp_path
    assert load_tokenizer(checkpoint).chat_template == original.chat_template
    assert eos_token_ids(checkpoint) == {1}


def written(path: Path, **tokenizer: Any) -> GGUFModel:
    """A file of the bundled model with another tokenizer; `tokenizer` are values without "tokenizer."."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(BUNDLED)
    file = GGUFWriter(path, "llama")
    add_metadata(file, config, "llama")
    if not tokenizer:
        add_tokenizer(file, BUNDLED, pre="default")
    for key, value in tokenizer.items():
        add = {bool: file.add_bool, int: file.add_uint32, str: file.add_string, list: file.add_array}
        add[type(value)](f"tokenizer.{key.replace('__', '.')}", value)
    add_tensor(
        file, "token_embd.weight", tensors_of(BUNDLED, config, "llama")["model.embed_tokens.weight"], "F16"
    )
    finish(file)
    return GGUFModel([path])


SENTENCEPIECE: dict[str, Any] = {
    "ggml__model": "llama",
    "ggml__tokens": list(PIECES),
    "ggml__scores": [0.0, 0.0, 0.0, 0.0, -1.0, -2.0, -3.0, -4.0, -5.0, -6.0, -1000.0],
    "ggml__token_type": [2, 3, 3, 6, 1, 1, 1, 1, 1, 1, int(TokenType.USER_DEFINED)],
    "ggml__bos_token_id": 1,
    "ggml__eos_token_id": 2,
    "ggml__unknown_token_id": 0,
}


def test_a_sentencepiece_vocabulary(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(written(tmp_path / "x.gguf", **SENTENCEPIECE).metadata)
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("ab a")) == ["<s>", "\u2581ab", "\u2581a"]
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("a<mark>"))[-1] == "<mark>"
    assert tokenizer.decode(tokenizer.encode("ab A"), skip_special_tokens=True) == "ab A"
    settings = SENTENCEPIECE | {"ggml__add_bos_token": False}
    tokenizer = make_tokenizer(written(tmp_path / "y.gguf", **settings).metadata)
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("ab")) == ["\u2581ab"]


def test_spaces_behind_special_tokens(tmp_path: Path) -> None:
    """Only a file that says so (`add_space_prefix`) has no space behind a special token."""
    expected = ["<s>", "\u2581ab", "<mark>", "\u2581a", "</s>", "\u2581", "\u2581ab"]
    for prefix, words in (
        ({}, expected),
        ({"ggml__add_space_prefix": True}, ["<s>", "\u2581ab", "<mark>", "a"]),
    ):
        path = tmp_path / f"{len(prefix)}.gguf"
        written(path, **SENTENCEPIECE, **prefix)
        tokenizer = load_tokenizer(Checkpoint.open(str(path)))
        found = tokenizer.convert_ids_to_tokens(tokenizer.encode("ab<mark>a</s> ab"))
        assert found[: len(words)] == words
        assert tokenizer.decode(tokenizer.encode("ab A"), skip_special_tokens=True) == "ab A"


def test_a_sentencepiece_vocabulary_with_one_score_for_all(tmp_path: Path) -> None:
    """The order of the tokens is the order of the merges where the converter had no scores."""
    tokens = ["<unk>", "<s>", "</s>", "<0x41>", "\u2581", "a", "b", "ab", "aba", "abab"]
    one = {"ggml__tokens": tokens, "ggml__scores": [-1000.0] * 10, "ggml__token_type": [2, 3, 3, 6] + [1] * 6}
    tokenizer = make_tokenizer(written(tmp_path / "x.gguf", **(SENTENCEPIECE | one)).metadata)
    assert tokenizer.tokenize("ababa") == ["\u2581", "ab", "aba"]


def test_special_tokens_of_phi3_take_the_space_behind_them(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    phi3 = {
        "ggml__tokens": [
            "<unk>",
            "<s>",
            "</s>",
            "<0x0A>",
            "\u2581",
            "a",
            "\u2581a",
            "<|endoftext|>",
            "<|end|>",
        ],
        "ggml__scores": [0.0, 0.0, 0.0, 0.0, -1.0, -2.0, -3.0, -1000.0, -1000.0],
        "ggml__token_type": [2, 3, 3, 6, 1, 1, 1, 3, 3],
    }
    model = written(path, **(SENTENCEPIECE | phi3))
    tokenizer = make_tokenizer(Metadata(model.metadata.values, "phi3"))
    tokenizer.save_pretrained(tmp_path / "phi3")
    for loaded in (tokenizer, AutoTokenizer.from_pretrained(tmp_path / "phi3")):
        ids = loaded.encode("a<|end|>\na<|endoftext|>\n", add_special_tokens=False)
        texts = loaded.convert_ids_to_tokens(ids)
        assert texts == ["\u2581a", "<|end|>", "\u2581a", "<|endoftext|>", "\u2581", "<0x0A>"]


def test_a_padding_token_that_is_none(tmp_path: Path) -> None:
    settings = SENTENCEPIECE | {"ggml__padding_token_id": 32000}
    assert make_tokenizer(written(tmp_path / "x.gguf", **settings).metadata).pad_token is None


def test_a_sentencepiece_vocabulary_without_the_first_space(tmp_path: Path) -> None:
    settings = SENTENCEPIECE | {"ggml__add_space_prefix": False}
    tokenizer = make_tokenizer(written(tmp_path / "x.gguf", **settings).metadata)
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("ab a")) == ["<s>", "ab", "\u2581a"]
    assert tokenizer.decode(tokenizer.encode(" ab A"), skip_special_tokens=True) == " ab A"


@pytest.mark.parametrize(
    ("split", "text", "words"),
    [
        ("gpt-2", "a1234 b", ["a", "1234", " b"]),
        ("smollm", "a1234 b", ["a", "1", "2", "3", "4", " b"]),
        ("llama-bpe", "a1234 b", ["a", "123", "4", " b"]),
        ("qwen2", "a12 b", ["a", "1", "2", " b"]),
        ("tekken", "a12 aB Bc", ["a", "1", "2", " a", "B", " Bc"]),
        ("gpt-4o", "it's 1234", ["it's", " ", "123", "4"]),
        ("glm4", "x1234 I'M\n", ["x", "123", "4", " I", "'M", "\n"]),
        ("seed-coder", "x12 =\n y", ["x", "1", "2", " =", "\n", " y"]),
        ("deepseek-coder", "x12 =\ny.z", ["x", "1", "2", " =", "\n", "y", ".", "z"]),
        ("deepseek-v3", "x1234 .foo", ["x", "123", "4", " .", "foo"]),
    ],
)
def test_rules_of_words(tmp_path: Path, split: str, text: str, words: list[str]) -> None:
    path = tmp_path / "x.gguf"
    tokens = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 324))]
    values = {
        "ggml__model": "gpt2",
        "ggml__pre": split,
        "ggml__tokens": [*tokens, "ab", "abc"],
        "ggml__merges": ["a b"],
    }
    tokenizer = make_tokenizer(written(path, **values).metadata)
    backend: Tokenizer = tokenizer.backend_tokenizer
    assert backend.pre_tokenizer is not None
    found = [
        word.replace("\u0120", " ").replace("\u010a", "\n")
        for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)
    ]
    assert found == words
    whole = split in ("llama-bpe", "tekken")
    assert (tokenizer.tokenize("abc") == ["abc"]) is whole


BYTES = {
    "ggml__model": "gpt2",
    "ggml__pre": "gpt-2",
    "ggml__tokens": ["a", "b", "ab"],
    "ggml__merges": ["a b"],
}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (None, "splits words by the rule 'default'"),
        ({"ggml__pre": "chatglm-bpe"}, "splits words by the rule 'chatglm-bpe'"),
        ({"ggml__pre": ""}, r"does not name the rule that splits words \(tokenizer.ggml.pre\)"),
        ({"ggml__model": "t5"}, "of the kind 't5' is not supported"),
        ({"ggml__model": "bert"}, "of the kind 'bert' is not supported"),
        ({"ggml__model": "none"}, "of the kind 'none'"),
        ({"ggml__tokens": ["a", "b", "a"]}, "has the token 'a' twice"),
        ({"ggml__tokens": "abc"}, "has no list of tokens"),
        ({"ggml__merges": ["ab"]}, "no list of merges"),
        ({"ggml__merges": ["a z"]}, "cannot be converted"),
        ({"ggml__bos_token_id": 3}, "not a token id below 3|not an integer|is 3, not a token id"),
        ({"ggml__token_type": [1, 1]}, "3 tokens and 2 token_type"),
    ],
)
def test_refusals_name_the_remedy(tmp_path: Path, changes: dict[str, Any] | None, message: str) -> None:
    path = tmp_path / "x.gguf"
    written(path, **({} if changes is None else BYTES | changes))
    with pytest.raises(CheckpointError, match=message) as raised:
        load_tokenizer(Checkpoint.open(str(path)))
    assert "--tokenizer DIR" in str(raised.value) and str(path) in str(raised.value)


def test_no_tokenizer_at_all(tmp_path: Path) -> None:
    written(tmp_path / "x.gguf", chat_template="x")
    with pytest.raises(
        CheckpointError, match=r"the metadata have no tokenizer\.ggml\.model; give a tokenizer"
    ):
        load_tokenizer(Checkpoint.open(str(tmp_path / "x.gguf")))


def test_a_vocabulary_of_gemma4_has_merges(tmp_path: Path) -> None:
    """A space is a piece, none is put in front of a text, and unknown characters are bytes."""
    gemma4 = {
        "ggml__model": "gemma4",
        "ggml__tokens": [
            *("<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<0xC3>", "<0xA9>", "<turn|>"),
            *("\u2581", "a", "b", "ab", "\u2581ab", "\u2581\u2581"),
        ],
        "ggml__merges": ["a b", "\u2581 ab", "\u2581 \u2581"],
        "ggml__scores": [-1000.0] * 14,
        "ggml__token_type": [3, 3, 3, 2, 3, 6, 6, 3, 1, 1, 1, 1, 1, 1],
        "ggml__bos_token_id": 2,
        "ggml__eos_token_id": 1,
        "ggml__eot_token_id": 7,
        "ggml__unknown_token_id": 3,
        "ggml__add_bos_token": True,
    }
    metadata = Metadata(written(tmp_path / "x.gguf", **gemma4).metadata.values, "gemma4")
    tokenizer = make_tokenizer(metadata)
    tokenizer.save_pretrained(tmp_path / "gemma4")
    for loaded in (tokenizer, AutoTokenizer.from_pretrained(tmp_path / "gemma4")):
        ids = loaded.encode("ab ab  aé<turn|>")
        assert ids == [2, 11, 12, 13, 9, 5, 6, 7]
        assert loaded.decode(ids, skip_special_tokens=True) == "ab ab  aé"
    assert end_tokens(metadata, 14) == [1, 7]
