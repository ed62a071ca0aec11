"""A tokenizer of as many tokens as one wants, and a tiny model with it."""

from __future__ import annotations

import itertools
import string
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

EOS = 0


def large_tokenizer(size: int) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer of so many tokens, most of which are words."""
    words = map("".join, itertools.product(string.ascii_lowercase, repeat=4))
    pieces = itertools.chain(["<eos>"], sorted(ByteLevel.alphabet()), words)
    tokenizer = Tokenizer(models.BPE({piece: number for number, piece in zip(range(size), pieces)}, []))  # noqa: B905
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(False), decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")


def make_model(directory: Path, size: int) -> Path:
    """Write a model of two small layers with a vocabulary of so many tokens."""
    large_tokenizer(size).save_pretrained(directory)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1 << 13,
        bos_token_id=None,
        eos_token_id=EOS,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    return directory
