"""The tokenizer of a GGUF model as the files of a Hugging Face tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gguf.constants import TokenType
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.integrations.gguf.gguf_tokenizer_mapping import (
    GGUF_PRE_TOKENIZER_SPLITS,
    GGUF_TOKENIZER_MAPPING,
    convert_gguf_tokenizer,
)

from flowedge.core.errors import CheckpointError
from flowedge.models.checkpoint.gguf.gguf_model import GGUFModel
from flowedge.models.checkpoint.gguf.header import Value
from flowedge.models.checkpoint.gguf.metadata import Metadata

_MODELS = ("gpt2", "llama")
# Splits of text that transformers' converter makes without a pattern of its own.
_GPT2_SPLITS = frozenset({"gpt-2", "gpt2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling"})
# The splits of GPT-2 in which each digit is a word of its own as well.
_DIGIT_SPLITS = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"})
# The rules of Llama 3, which takes a word that is a token as it is, whatever the merges make of its letters.
_WHOLE_WORD_SPLITS = frozenset({"llama3", "llama-v3", "llama-bpe"})
_COMPOSED_SPLITS = frozenset({"qwen2", "deepseek-r1-qwen"})  # Qwen composes characters (NFC) first
# Architectures whose vocabularies of SentencePiece treat spaces by a rule of their own.
_OWN_SPACES = frozenset({"gemma2", "gemma3", "phi3"})
_SPACE = "\u2581"  # stands for a space in vocabularies of SentencePiece
_SPECIAL = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
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
    parts = _parts(metadata.values, "tokenizer")
    if len(set(names)) < len(names):
        raise CheckpointError("its tokenizer has a token twice")
    for name in ("scores", "token_type"):
        if name in parts and len(parts[name]) != len(tokens):
            raise CheckpointError(f"its tokenizer has {len(tokens)} tokens and {len(parts[name])} {name}")
    split = metadata.text("tokenizer.ggml.pre", "")
    if kind == "gpt2":
        backend = _byte_level(names, parts, split)
    else:
        backend, _ = convert_gguf_tokenizer(metadata.architecture, parts)
        if parts.get("add_prefix_space") is False and metadata.architecture not in _OWN_SPACES:
            _leave_spaces(backend)
    settings = _parts(metadata.values, "tokenizer_config")
    settings.setdefault("add_bos_token", kind == "llama" or split in _WHOLE_WORD_SPLITS)
    for name, key in _SPECIAL.items():
        token = metadata.token(f"tokenizer.ggml.{key}", len(tokens))
        settings[name] = None if token is None else names[token]
    tokenizer = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=backend, clean_up_tokenization_spaces=False, **settings
    )
    _check_ids(tokenizer, metadata, names)
    return tokenizer


def _parts(values: Mapping[str, Value], group: str) -> dict[str, Any]:
    """The values of a group of transformers' converter, by the names that it gives them."""
    names = GGUF_TOKENIZER_MAPPING[group]
    return {name: values[f"tokenizer.{key}"] for key, name in names.items() if f"tokenizer.{key}" in values}


def _byte_level(tokens: list[str], parts: dict[str, Any], split: str) -> Tokenizer:
    """A tokenizer that merges bytes. transformers' converter would add a token that GPT-2 has."""
    merges = [tuple(merge.split(" ")) for merge in parts.get("merges", ())]
    if not merges or any(len(merge) != 2 for merge in merges):
        raise CheckpointError("its tokenizer has no list of merges, or one that is not of pairs")
    vocab = {token: index for index, token in enumerate(tokens)}
    whole_words = split in _WHOLE_WORD_SPLITS
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges, fuse_unk=False, ignore_merges=whole_words))
    backend.pre_tokenizer = _split_rule(split)
    backend.decoder = decoders.ByteLevel()
    if split in _COMPOSED_SPLITS:
        backend.normalizer = normalizers.NFC()
    backend.add_tokens(
        [
            AddedToken(token, normalized=False, special=kind == TokenType.CONTROL)
            for token, kind in zip(tokens, parts.get("token_type", ()), strict=False)
            if kind in (TokenType.CONTROL, TokenType.USER_DEFINED)
        ]
    )
    return backend


def _leave_spaces(backend: Tokenizer) -> None:
    """Have a tokenizer add no space in front of a text, and remove none."""
    backend.pre_tokenizer = pre_tokenizers.Metaspace(_SPACE, prepend_scheme="never", split=False)
    backend.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )


def _split_rule(split: str) -> pre_tokenizers.PreTokenizer:
    """The rule by which text is split into words before merges apply."""
    pattern = GGUF_PRE_TOKENIZER_SPLITS.get(split)
    if pattern is None and split in _DIGIT_SPLITS:
        pattern = r"\p{N}"
    elif pattern is None and split not in _GPT2_SPLITS:
        raise CheckpointError(f"its tokenizer splits words by the rule {split!r}, which is not supported")
    own_pattern = split in _GPT2_SPLITS or split in _DIGIT_SPLITS
    steps: list[Any] = [pre_tokenizers.Split(Regex(pattern), behavior="isolated")] if pattern else []
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=own_pattern))
    return pre_tokenizers.Sequence(steps)


def _check_ids(tokenizer: Any, metadata: Metadata, tokens: list[str]) -> None:
    """Check that no token has changed its id, and that none was added."""
    if len(tokenizer) > len(tokens):
        raise CheckpointError(f"the converted tokenizer has {len(tokenizer)} tokens instead of {len(tokens)}")
    for key in _SPECIAL.values():
        token = metadata.token(f"tokenizer.ggml.{key}", len(tokens))
        if token is not None and tokenizer.convert_tokens_to_ids(tokens[token]) != token:
            raise CheckpointError(f"the converted tokenizer has another id for the token {tokens[token]!r}")
