"""The bundled pair, loaded once for the tests of a worker."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch

from flowedge.core.pipeline_config import DRAFT_NODE, VerificationPlace
from flowedge.core.request import Finished, Request, Tokens
from flowedge.core.sampling import SamplingParams
from flowedge.drafting.drafter import Drafter
from flowedge.drafting.heads.eagle_head import load_eagle_head
from flowedge.drafting.heads.head_drafter import HeadDrafter
from flowedge.models.block import LayerBlock
from flowedge.models.check.reference import ReferenceModel
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.tokenizer_loading import eos_token_ids, load_tokenizer
from flowedge.models.lm_head import LMHead, load_embedding
from flowedge.planning.fixed_costs import FixedCosts
from flowedge.planning.in_process import load_blocks, virtual_pipeline
from flowedge.planning.virtual_pipeline import (
    ExpressDelay,
    TimedOutput,
    VirtualObserver,
    VirtualPipeline,
)
from flowedge.text.grammar_compiler import GrammarCompiler
from flowedge.text.tokenizer import StreamDecoder, encode_chat

TEXT = (
    "A farmer has 12 hens. Each hen lays 5 eggs a week, and he sells a dozen eggs for $3. "
    "How many dollars does he earn in four weeks? Explain each step. "
)


@dataclass(frozen=True)
class Pair:
    """A target and its drafter, both bundled."""

    checkpoint: Checkpoint
    head: LMHead
    drafter: Drafter
    tokenizer: Any
    grammars: GrammarCompiler | None = None

    def prompt(self, num_tokens: int) -> tuple[int, ...]:
        """A chat prompt cut to, or repeated up to, a number of tokens."""
        ids = encode_chat(self.tokenizer, TEXT * (num_tokens // 30 + 1))
        return tuple(ids[:num_tokens])

    def pipeline(
        self,
        split: list[int],
        quant: str = "none",
        express_fault: ExpressDelay | None = None,
        observer: VirtualObserver | None = None,
        verification: VerificationPlace = DRAFT_NODE,
    ) -> VirtualPipeline:
        return virtual_pipeline(
            self.checkpoint,
            split,
            FixedCosts(),
            drafter=self.drafter,
            head=self.head,
            make_text=lambda: StreamDecoder(self.tokenizer),
            express_fault=express_fault,
            observer=observer,
            verification=verification,
            blocks=bundled_blocks(tuple(split), quant),
            grammars=self.grammars,
        )


@cache
def bundled_blocks(split: tuple[int, ...], quant: str = "none") -> list[LayerBlock]:
    """Return the blocks of the bundled model; they are loaded once, because they hold nothing of a run."""
    return load_blocks(Checkpoint.open("bundled"), split, quant)


@cache
def reference(quant: str) -> ReferenceModel:
    return ReferenceModel.load("bundled", quant)


@pytest.fixture(scope="session")
def pair() -> Pair:
    torch.set_num_threads(1)
    checkpoint = Checkpoint.open("bundled")
    head = LMHead.load(checkpoint)
    embedding = load_embedding(checkpoint, shared_with=head)
    eagle = load_eagle_head(checkpoint.directory.parent / "eagle", torch.float32)
    tokenizer = load_tokenizer(checkpoint)
    grammars = GrammarCompiler(tokenizer, eos_token_ids(checkpoint, tokenizer), head.vocab_size)
    return Pair(checkpoint, head, HeadDrafter(eagle, head, embedding), tokenizer, grammars)


@cache
def expected(prompt: tuple[int, ...], sampling: SamplingParams, count: int, quant: str) -> tuple[int, ...]:
    """Return the tokens that the plain model generates, by transformers' own generate."""
    return tuple(reference(quant).generate(prompt, sampling, count, frozenset()).token_ids)


def token_ids(outputs: list[TimedOutput]) -> tuple[int, ...]:
    assert isinstance(outputs[-1].output, Finished)
    return tuple(t for o in outputs if isinstance(o.output, Tokens) for t in o.output.token_ids)


def request(
    prompt: tuple[int, ...], sampling: SamplingParams, count: int, strategy: str, session: str = "s"
) -> Request:
    return Request(session, prompt, sampling, count, strategy=strategy)
