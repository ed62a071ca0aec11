"""The rules by which byte-level tokenizers split text into words, by the names that GGUF files give them."""

from __future__ import annotations

from tokenizers import Regex, pre_tokenizers
from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

from flowedge.core.errors import CheckpointError

# The words of GPT-2.
_GPT2 = frozenset(
    {
        "gpt-2",
        "gpt2",
        "phi-2",
        "mpt",
        "olmo",
        "jais",
        "trillion",
        "granite-docling",
        "a.x-4.0",
        "mellum",
    }
)
# The words of GPT-2, of which each digit is one as well.
_SINGLE_DIGITS = frozenset(
    {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}
)
_HAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_HAN_AND_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
# Patterns that are applied one after the other, each within the parts that the patterns before have left.
_STEPS = {
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _HAN, r"\p{N}"),
    "deepseek-v3": (
        r"\p{N}{1,3}",
        _HAN_AND_KANA,
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
        r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
    "seed-coder": (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}"
        r"| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
} | {name: (pattern,) for name, pattern in GGUF_PRE_TOKENIZER_SPLITS.items()}
_STEPS["glm4"] = _STEPS["llama3"]  # which takes no whole words

# Rules that take a word that is a token as it is, whatever the merges make of its letters. A text begins with
# the BOS token, unless the file says otherwise.
WHOLE_WORDS = frozenset(
    {
        "llama3",
        "llama-v3",
        "llama-bpe",
        "falcon3",
        "falcon-h1",
        "pixtral",
        "midm-2.0",
        "lfm2",
        "jina-v5-nano",
        "tekken",
    }
)
COMPOSED = frozenset({"qwen2", "deepseek-r1-qwen"})  # Qwen composes characters (NFC) first


def split_rule(name: str) -> pre_tokenizers.PreTokenizer:
    """Build the rule that a file names.

    Raises:
        CheckpointError: when the rule is not supported.
    """
    patterns = (r"\p{N}",) if name in _SINGLE_DIGITS else _STEPS.get(name, ())
    as_gpt2 = name in _GPT2 or name in _SINGLE_DIGITS
    if not patterns and not as_gpt2:
        raise CheckpointError(
            f"its tokenizer splits words by the rule {name!r}, which is not supported"
            if name
            else "its tokenizer does not name the rule that splits words (tokenizer.ggml.pre)"
        )
    steps: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns
    ]
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=as_gpt2))
    return pre_tokenizers.Sequence(steps)
