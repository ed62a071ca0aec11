"""The tokenizer of a GGUF model as the files of a Hugging Face tokenizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gguf.constants import TokenType
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.integrations.gguf.gguf_tokenizer_mapping import (
    GGUF_TOKENIZER_MAPPING,
    convert_gguf_tokenizer,
)

from flowedge.core.errors import CheckpointError
from flowedge.models.gguf.gguf_model import GGUFModel
from flowedge.models.gguf.split_rules import COMPOSED, WHOLE_WORDS, split_rule
from flowedge.models.gguf_families.metadata import Metadata, Value

_GEMMA4 = "gemma4"  # pieces of SentencePiece with a list of merges
_MODELS = ("gpt2", "llama", _GEMMA4)
# Architectures whose vocabularies of SentencePiece treat spaces by a rule of their own.
_OWN_SPACES = frozenset({"gemma2", "gemma3", "phi3"})
_SPACE = "\u2581"  # stands for a space in vocabularies of SentencePiece
_SPECIAL = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
# Settings of a tokenizer by the keys of a file. transformers' table of them lacks two in 5.20.
_SETTINGS = {
    "chat_template": "tokenizer.chat_template",
    "add_bos_token": "tokenizer.ggml.add_bos_token",
    "add_eos_token": "tokenizer.ggml.add_eos_token",
}
_NEEDED = frozenset({"bos_token_id", "eos_token_id"})  # an id that names no token is an error
# The control tokens of Phi 3 that leave the white space behind them alone.
_PHI3_KEEPS_SPACE = frozenset({"<unk>", "<s>", "<|endoftext|>"})
_REMEDY = "give a tokenizer by --tokenizer DIR, the directory of the original model's tokenizer"


def write_tokenizer(model: GGUFModel, directory: Path) -> None:
    """Write the tokenizer's files into `directory`, with the chat template of the GGUF file.

    Raises:
        CheckpointError: when the file has no tokenizer, or one that cannot be converted.
    """
    try:
        make_tokenizer(model.metadata).save_pretrained(directory)
    except CheckpointError as error:
        raise CheckpointError(f"{model.path}: {error}; {_REMEDY}") from error
    # The tokenizers library has no error class of its own for impossible vocabularies.
    except Exception as error:
        raise CheckpointError(
            f"{model.path}: its tokenizer cannot be converted ({type(error).__name__}: {error}); {_REMEDY}"
        ) from error


def make_tokenizer(metadata: Metadata) -> Any:
    """The tokenizer of a file with this metadata. Raises what `write_tokenizer` raises."""
    kind, tokens = metadata.text("tokenizer.ggml.model"), metadata.values.get("tokenizer.ggml.tokens")
    if kind not in _MODELS:
        raise CheckpointError(f"its tokenizer of the kind {kind!r} is not supported")
    names = [token for token in tokens if isinstance(token, str)] if isinstance(tokens, list) else []
    if not isinstance(tokens, list) or not names or len(names) < len(tokens):
        raise CheckpointError("its tokenizer has no list of tokens")
    parts = _parts(metadata.values)
    if len(set(names)) < len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise CheckpointError(f"its tokenizer has the token {twice[:80]!r} twice")
    for name in ("scores", "token_type"):
        if name in parts and len(parts[name]) != len(tokens):
            raise CheckpointError(f"its tokenizer has {len(tokens)} tokens and {len(parts[name])} {name}")
    split = metadata.text("tokenizer.ggml.pre", "")
    if kind == "gpt2":
        backend = _byte_level(names, parts, split)
    elif kind == _GEMMA4:
        backend, _ = convert_gguf_tokenizer(metadata.architecture, parts)
    else:
        backend = _sentencepiece(metadata.architecture, names, parts)
    values = metadata.values
    settings: dict[str, Any] = {name: values[key] for name, key in _SETTINGS.items() if key in values}
    settings.setdefault("add_bos_token", kind == "llama" or split in WHOLE_WORDS)
    for name, key in _SPECIAL.items():
        read = metadata.token if key in _NEEDED else metadata.token_or_none
        token = read(f"tokenizer.ggml.{key}", len(tokens))
        settings[name] = None if token is None else names[token]
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend, clean_up_tokenization_spaces=False, **settings
    )
    _check_ids(tokenizer, metadata, names)
    return tokenizer


def _parts(values: Mapping[str, Value]) -> dict[str, Any]:
    """The values that transformers' converter reads, by the names that it gives them."""
    names = GGUF_TOKENIZER_MAPPING["tokenizer"]
    return {name: values[f"tokenizer.{key}"] for key, name in names.items() if f"tokenizer.{key}" in values}


def _byte_level(tokens: list[str], parts: dict[str, Any], split: str) -> Tokenizer:
    """A tokenizer that merges bytes. transformers' converter would add a token that GPT-2 has."""
    merges = [tuple(merge.split(" ")) for merge in parts.get("merges", ())]
    if not merges or any(len(merge) != 2 for merge in merges):
        raise CheckpointError("its tokenizer has no list of merges, or one that is not of pairs")
    vocab = {token: index for index, token in enumerate(tokens)}
    whole_words = split in WHOLE_WORDS
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges, fuse_unk=False, ignore_merges=whole_words))
    backend.pre_tokenizer = split_rule(split)
    backend.decoder = decoders.ByteLevel()
    if split in COMPOSED:
        backend.normalizer = normalizers.NFC()
    backend.add_tokens(
        [
            AddedToken(token, normalized=False, special=kind == TokenType.CONTROL)
            for token, kind in zip(tokens, parts.get("token_type", ()), strict=False)
            if kind in (TokenType.CONTROL, TokenType.USER_DEFINED)
        ]
    )
    return backend


def _sentencepiece(architecture: str, tokens: list[str], parts: dict[str, Any]) -> Tokenizer:
    """A tokenizer of SentencePiece. transformers' converter makes it from tokens and scores.

    The converter adds a space at the start of a text only. llama.cpp and the tokenizers of Llama 2 and the
    first Mistral models add one behind each special token as well. Later tokenizers say that they add a
    space at the start (`add_space_prefix`), and are taken at their word.
    """
    backend, _ = convert_gguf_tokenizer(architecture, parts | {"scores": _scores(parts)})
    own_spaces, prefix = architecture in _OWN_SPACES, parts.get("add_prefix_space")
    if not own_spaces and prefix is None:
        _space_everywhere(backend)
    elif not own_spaces and prefix is False:
        _leave_spaces(backend)
    if architecture == "phi3":
        kinds = parts.get("token_type", ())
        control = [name for name, kind in zip(tokens, kinds, strict=False) if kind == TokenType.CONTROL]
        backend.add_special_tokens(
            [
                AddedToken(name, rstrip=True, normalized=False)
                for name in control
                if name not in _PHI3_KEEPS_SPACE
            ]
        )
    return backend


def _scores(parts: dict[str, Any]) -> list[float]:
    """The scores of the tokens, or the order of the tokens where the file gives one score to all.

    llama.cpp's converter writes one score where a model has a tokenizer.json and no tokenizer.model.
    """
    scores: list[float] = parts.get("scores", [])
    kinds = parts.get("token_type", [TokenType.NORMAL] * len(scores))
    normal = {score for score, kind in zip(scores, kinds, strict=True) if kind == TokenType.NORMAL}
    return scores if len(normal) > 1 else [-float(index) for index in range(len(parts["tokens"]))]


def _space_everywhere(backend: Tokenizer) -> None:
    """Have a tokenizer add a space in front of a text, and in front of the text behind a special token."""
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), normalizers.Replace(" ", _SPACE)])
    backend.pre_tokenizer = None


def _leave_spaces(backend: Tokenizer) -> None:
    """Have a tokenizer add no space in front of a text, and remove none."""
    backend.pre_tokenizer = pre_tokenizers.Metaspace(_SPACE, prepend_scheme="never", split=False)
    backend.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )


def _check_ids(tokenizer: Any, metadata: Metadata, tokens: list[str]) -> None:
    """Check that no token has changed its id, and that none was added."""
    if len(tokenizer) > len(tokens):
        raise CheckpointError(f"the converted tokenizer has {len(tokenizer)} tokens instead of {len(tokens)}")
    for key in _SPECIAL.values():
        token = metadata.token_or_none(f"tokenizer.ggml.{key}", len(tokens))
        if token is not None and tokenizer.convert_tokens_to_ids(tokens[token]) != token:
            raise CheckpointError(f"the converted tokenizer has another id for the token {tokens[token]!r}")
