"""The bundled pair, loaded once for the tests of a worker."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

from flowedge.core.request import Finished, Request, Tokens
from flowedge.core.sampling import SamplingParams
from flowedge.drafting.drafter import Drafter
from flowedge.drafting.heads.eagle_head import load_eagle_head
from flowedge.drafting.heads.head_drafter import HeadDrafter
from flowedge.drafting.loading import TargetModel, load_drafter
from flowedge.models.block import LayerBlock
from flowedge.models.check.reference import ReferenceModel
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.tokenizer_loading import eos_token_ids, load_tokenizer
from flowedge.models.lm_head import LMHead, load_embedding
from flowedge.planning.fixed_costs import FixedCosts
from flowedge.planning.in_process import load_blocks, virtual_pipeline
from flowedge.planning.virtual_pipeline import Costs, ExpressDelay, TimedOutput, VirtualPipeline
from flowedge.strategies.auto.measured import MeasuredPipeline
from flowedge.strategies.auto.probation import DraftingProbation, Mode
from flowedge.text.grammar_compiler import GrammarCompiler
from flowedge.text.tokenizer import StreamDecoder, encode_chat
from tests.drafting.made_drafters import small_config
from tests.support.gguf_files import BUNDLED

TEXT = (
    "A farmer has 12 hens. Each hen lays 5 eggs a week, and he sells a dozen eggs for $3. "
    "How many dollars does he earn in four weeks? Explain each step. "
)

SMALL_VOCAB = 24
SMALL_PROMPT = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 1, 4, 1, 5)  # of a model of so few tokens


def random_config(layers: int, spread: float, vocab_size: int = SMALL_VOCAB) -> LlamaConfig:
    """Of a small model with random weights of a standard deviation, which decide for few tokens."""
    return small_config(
        vocab_size=vocab_size,
        num_hidden_layers=layers,
        initializer_range=spread,
        bos_token_id=0,
        eos_token_id=0,
    )


@dataclass(frozen=True)
class Pair:
    """A target and its drafter, both bundled."""

    checkpoint: Checkpoint
    head: LMHead
    drafter: Drafter
    tokenizer: Any
    grammars: GrammarCompiler

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Pair:
        """The bundled model in the form of a checkpoint, with its EAGLE head."""
        head = LMHead.load(checkpoint)
        embedding = load_embedding(checkpoint)
        eagle = load_eagle_head(BUNDLED.parent / "eagle", torch.float32)
        tokenizer = load_tokenizer(checkpoint)
        grammars = GrammarCompiler(tokenizer, eos_token_ids(checkpoint, tokenizer), head.vocab_size)
        return cls(checkpoint, head, HeadDrafter(eagle, head, embedding), tokenizer, grammars)

    def prompt(self, num_tokens: int) -> tuple[int, ...]:
        """A chat prompt cut to, or repeated up to, a number of tokens."""
        ids = encode_chat(self.tokenizer, TEXT * (num_tokens // 30 + 1))
        return tuple(ids[:num_tokens])

    def pipeline(
        self, split: list[int], quant: str = "none", costs: Costs | None = None, **options: Any
    ) -> VirtualPipeline:
        """A pipeline on the virtual clock; `options` are those of `virtual_pipeline`."""
        settings = {
            "drafter": self.drafter,
            "head": self.head,
            "make_text": lambda: StreamDecoder(self.tokenizer),
            "grammars": self.grammars,
        } | options
        if "blocks" not in settings:
            settings["blocks"] = bundled_blocks(tuple(split), quant)
        return virtual_pipeline(self.checkpoint, split, costs or FixedCosts(), **settings)


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
    return Pair.of(Checkpoint.open("bundled"))


@cache
def drafter_of(pair: Pair, names: str) -> Drafter:
    """Return a drafter for the target of the pair, loaded once; its names are joined by "+"."""
    target = TargetModel(pair.checkpoint, pair.head, pair.tokenizer, torch.float32)
    drafter = load_drafter(names.split("+"), target)
    assert drafter is not None
    return drafter


@cache
def expected(prompt: tuple[int, ...], sampling: SamplingParams, count: int, quant: str) -> tuple[int, ...]:
    """Return the tokens that the plain model generates, by transformers' own generate."""
    return tuple(reference(quant).generate(prompt, sampling, count, frozenset()).token_ids)


class Restless(DraftingProbation):
    """Takes another mode after every few tokens, whatever was measured."""

    calls = 0

    def decide(self, *_: float) -> bool:
        self.calls += 1
        self.mode = (Mode.ALL, Mode.LOOKUP, Mode.PLAIN, Mode.LOOKUP, Mode.ALL)[self.calls // 2 % 5]
        return True


def restless_pipeline() -> MeasuredPipeline:
    """What sessions share that go from mode to mode, lookup alone among them."""
    measured = MeasuredPipeline(looks_up=True)
    measured.trials[True] = measured.trials[False] = Restless()
    return measured


def outputs_of(pipeline: VirtualPipeline, session: str) -> list[TimedOutput]:
    return [timed for timed in pipeline.outputs if timed.output.session == session]


def drawn(outputs: list[TimedOutput]) -> tuple[int, ...]:
    """The tokens of an answer, whatever ended it."""
    return tuple(t for o in outputs if isinstance(o.output, Tokens) for t in o.output.token_ids)


def finished(outputs: list[TimedOutput]) -> Finished:
    last = outputs[-1].output
    assert isinstance(last, Finished), last
    return last


def token_ids(outputs: list[TimedOutput]) -> tuple[int, ...]:
    """The tokens of an answer that has come to its end."""
    finished(outputs)
    return drawn(outputs)


def text_of(outputs: list[TimedOutput]) -> str:
    return "".join(timed.output.text for timed in outputs if isinstance(timed.output, Tokens))


def faulty(seed: int, lost: float) -> ExpressDelay:
    """A share of the express messages is lost, and the others come late and out of order."""
    rng = random.Random(seed)
    return lambda _stage, _message: None if rng.random() < lost else rng.random() * 2


def request(
    prompt: tuple[int, ...], sampling: SamplingParams, count: int, strategy: str, session: str = "s"
) -> Request:
    return Request(session, prompt, sampling, count, strategy=strategy)
