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
from flowedge.models.checkpoint.gguf.gguf_model import GGUFModel
from flowedge.models.checkpoint.gguf.tokenizer_files import make_tokenizer
from flowedge.models.checkpoint.tokenizer import encode_messages, eos_token_ids, load_tokenizer
from tests.models.checkpoint.gguf.conftest import Bundled
from tests.support.gguf_files import BUNDLED, add_metadata, add_tensor, add_tokenizer, tensors_of

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
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
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
    found = [word.replace("\u0120", " ") for word, _ in backend.pre_tokenizer.pre_tokenize_str(text)]
    assert found == words
    whole = split == "llama-bpe"
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
        ({"ggml__model": "bert"}, "of the kind 'bert' is not supported"),
        ({"ggml__model": "none"}, "of the kind 'none'"),
        ({"ggml__tokens": ["a", "b", "a"]}, "has a token twice"),
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
