"""Token documents and their endless packing into fixed-length training rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from testbed.tools.models.corpus import ChatPair, Corpus

Document = NDArray[np.uint16]  # token ids, so vocabularies of up to 65,536 entries

REPEATS = {"roleplay_instruct": 2.0, "code_instruct": 1.5, "stdlib_complete": 0.5, "stdlib_explain": 0.5}
TEXT_REPEATS = 0.1
FOLLOW_UP_SHARE = 0.2  # pairs packed without bos, so that they read as a later turn of a conversation


@dataclass(frozen=True)
class WeightedDocument:
    """A document, and how often it occurs in an epoch on average."""

    tokens: Document
    repeats: float
    is_chat: bool = True


def pair_tokens(tokenizer: PreTrainedTokenizerBase, pair: ChatPair) -> Document:
    """Return the tokens of the chat template: bos, user turn, assistant turn, eos."""
    messages = [{"role": "user", "content": pair.prompt}, {"role": "assistant", "content": pair.response}]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    return np.array(tokenizer.encode(text, add_special_tokens=False), dtype=np.uint16)


def corpus_documents(tokenizer: PreTrainedTokenizerBase, corpus: Corpus) -> list[WeightedDocument]:
    """Return training pairs and plain texts as tokens, weighted so that chat dominates."""
    documents = [
        WeightedDocument(pair_tokens(tokenizer, pair), REPEATS.get(pair.source, 1.0))
        for pair in corpus.training_pairs
    ]
    for text in corpus.texts:
        inner = tokenizer.encode(text, add_special_tokens=False)
        ids = [tokenizer.bos_token_id, *inner, tokenizer.eos_token_id]
        documents.append(WeightedDocument(np.array(ids, dtype=np.uint16), TEXT_REPEATS, is_chat=False))
    return documents


def epoch_stream(documents: list[WeightedDocument], generator: np.random.Generator) -> Document:
    """Return one shuffled epoch as a single stream of tokens."""
    chosen = [document for document in documents for _ in range(int(document.repeats + generator.random()))]
    pieces: list[Document] = []
    after_chat = False
    for index in generator.permutation(len(chosen)):
        document = chosen[index]
        follows = after_chat and document.is_chat and generator.random() < FOLLOW_UP_SHARE
        pieces.append(document.tokens[1:] if follows else document.tokens)
        after_chat = document.is_chat
    return np.concatenate(pieces)


def packed_batches(documents: list[WeightedDocument], rows: int, length: int, seed: int) -> Iterator[Tensor]:
    """Yield batches of token ids, int64 [rows, length], without end."""
    generator = np.random.default_rng(seed)
    size = rows * length
    stream = epoch_stream(documents, generator)
    while True:
        if len(stream) < size:
            stream = np.concatenate([stream, epoch_stream(documents, generator)])
        yield torch.from_numpy(stream[:size].astype(np.int64)).view(rows, length)
        stream = stream[size:]
