"""Token documents and their endless packing into fixed-length training rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from flowedge.text.tokenizer import render_messages
from testbed.tools.models.texts.conversation import Conversation, with_system
from testbed.tools.models.texts.corpus import ChatPair, Corpus
from testbed.tools.models.texts.everyday import everyday
from testbed.tools.models.texts.tool_chats import tool_chats

Document = NDArray[np.uint16]  # token ids, so vocabularies of up to 65,536 entries

REPEATS = {"roleplay_instruct": 2.0, "code_instruct": 1.5, "stdlib_complete": 0.5, "stdlib_explain": 0.5}
TEXT_REPEATS = 0.1
EVERYDAY, TOOL_CHATS = 12000, 4000  # conversations an epoch
SHORT = 400  # characters of an answer that may stand beside tools that do not help
FOLLOW_UP_SHARE = 0.2  # pairs packed without bos, so that they read as a later turn of a conversation


@dataclass(frozen=True)
class WeightedDocument:
    """A document, and how often it occurs in an epoch on average."""

    tokens: Document
    repeats: float
    is_chat: bool = True


def pair_tokens(tokenizer: PreTrainedTokenizerBase, pair: ChatPair) -> Document:
    """Return the tokens of the chat template: bos, user turn, assistant turn, eos."""
    return conversation_tokens(tokenizer, Conversation.of(pair))


def conversation_tokens(tokenizer: PreTrainedTokenizerBase, conversation: Conversation) -> Document:
    """Return the tokens of the chat template for a whole conversation."""
    text = render_messages(tokenizer, conversation.messages, answered=True, tools=conversation.tools)
    return np.array(tokenizer.encode(text, add_special_tokens=False), dtype=np.uint16)


def corpus_documents(tokenizer: PreTrainedTokenizerBase, corpus: Corpus) -> list[WeightedDocument]:
    """Return training pairs and plain texts as tokens, weighted so that chat dominates."""
    pairs = corpus.training_pairs
    said = with_system([Conversation.of(pair) for pair in pairs], seed=1)
    documents = [
        WeightedDocument(conversation_tokens(tokenizer, each), REPEATS.get(pair.source, 1.0), not each.begins)
        for pair, each in zip(pairs, said, strict=True)
    ]
    short = [
        each for pair, each in zip(pairs, said, strict=True) if len(pair.response) < SHORT and not each.begins
    ]
    for each in [*everyday(EVERYDAY, seed=2), *tool_chats(TOOL_CHATS, 3, short)]:
        documents.append(WeightedDocument(conversation_tokens(tokenizer, each), 1.0, not each.begins))
    for text in corpus.texts:
        inner = tokenizer.encode(text, add_special_tokens=False)
        ids = [tokenizer.bos_token_id, *inner, tokenizer.eos_token_id]
        documents.append(WeightedDocument(np.array(ids, dtype=np.uint16), TEXT_REPEATS, is_chat=False))
    return documents


def epoch_documents(
    documents: list[WeightedDocument], generator: np.random.Generator
) -> Iterator[tuple[Document, bool]]:
    """Yield one shuffled epoch: a document, and whether it reads as a later turn of what came before."""
    chosen = [document for document in documents for _ in range(int(document.repeats + generator.random()))]
    after_chat = False
    for index in generator.permutation(len(chosen)):
        document = chosen[index]
        yield document.tokens, after_chat and document.is_chat and generator.random() < FOLLOW_UP_SHARE
        after_chat = document.is_chat


def packed_batches(documents: list[WeightedDocument], rows: int, length: int, seed: int) -> Iterator[Tensor]:
    """Yield batches of token ids, int64 [rows, length], without end.

    A row begins with a document, as what is decoded does. Rows that are cut anywhere say little of that.
    """
    generator = np.random.default_rng(seed)
    batch: list[Document] = []
    row: list[Document] = []
    while True:
        for tokens, follows in epoch_documents(documents, generator):
            row.append(tokens[1:] if row and follows else tokens)
            if sum(map(len, row)) < length:
                continue
            batch.append(np.concatenate(row)[:length])
            row = []
            if len(batch) == rows:
                yield torch.from_numpy(np.stack(batch).astype(np.int64))
                batch = []
