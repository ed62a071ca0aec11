"""A training target whose layers are all in this process."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor

from flowedge.core.errors import NonFiniteError
from flowedge.core.request import DecodeCounters, Finished
from flowedge.models.attention.kv_cache import KVCache
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.tokenizer_loading import eos_token_ids, load_tokenizer
from flowedge.models.lm_head import LMHead
from flowedge.models.quant.quant_cache import QuantCache
from flowedge.models.sampling.token_sampler import TokenSampler
from flowedge.models.taps import Taps
from flowedge.planning.fixed_costs import FixedCosts
from flowedge.planning.in_process import virtual_pipeline
from flowedge.text.tokenizer import StreamDecoder
from flowedge.training.target import Question, TokenIds, TrainingTarget

CHUNK_ROWS = 256  # rows of one forward, which bound the memory of activations


class LocalTarget(TrainingTarget):
    """All layers of a model, which run one text at a time."""

    def __init__(
        self, source: str, quant: str, dtype: torch.dtype, taps: Taps = (), device: torch.device | str = "cpu"
    ) -> None:
        """Load a directory, hub id or "bundled"."""
        checkpoint = Checkpoint.open(source)
        tokenizer = load_tokenizer(checkpoint)
        layers, cache = checkpoint.config.num_hidden_layers, QuantCache.configured()
        self._block = LayerBlock.load(
            checkpoint, 0, layers, quant=quant, dtype=dtype, device=device, quant_cache=cache
        )
        lm_head = LMHead.load(checkpoint, dtype=dtype, device=device)
        super().__init__(checkpoint, lm_head, tokenizer, eos_token_ids(checkpoint, tokenizer), taps)

    def features(self, texts: Iterable[TokenIds]) -> Generator[Tensor, None, None]:
        for tokens in texts:
            ids = torch.from_numpy(tokens.astype(np.int64))
            chunks = list(self._forward(ids, self._block.new_cache(len(ids)), 0, self.taps))
            # A copy outside of inference mode, because autograd refuses tensors that were made in it.
            features = torch.cat([chunk.float() for chunk in chunks])
            if not features.isfinite().all():
                dtype = str(self._block.dtype).removeprefix("torch.")
                raise NonFiniteError.of("the hidden states of the target on this machine", dtype)
            yield features

    def answers(self, questions: Iterable[Question]) -> Iterator[list[int]]:
        return map(self._answer, questions)

    def decode(self, drafter: str, questions: Iterable[Question], strategy: str) -> Iterator[DecodeCounters]:
        lm_head = self.lm_head
        if lm_head.weight.device.type != "cpu":  # a draft node drafts and samples on the CPU
            lm_head = LMHead.load(self.checkpoint, dtype=lm_head.weight.dtype)
        loaded = self.load_drafter(drafter, lm_head)
        for question in questions:
            pipeline = virtual_pipeline(
                self.checkpoint,
                [self._block.num_layers],
                FixedCosts(),
                drafter=loaded,
                head=lm_head,
                make_text=lambda: StreamDecoder(self.tokenizer),
                blocks=[self._block],
            )
            for timed in pipeline.generate(self.request(question, strategy)):
                if isinstance(timed.output, Finished):
                    yield timed.output.counters

    def _answer(self, question: Question) -> list[int]:
        answer_budget = self.answer_budget(question)
        sampler = TokenSampler(question.sampling, self._block.vocab_size)
        cache = self._block.new_cache(len(question.prompt) + answer_budget)
        pending, cached = torch.tensor(question.prompt, dtype=torch.int64), 0
        answer: list[int] = []
        while len(answer) < answer_budget and not (answer and answer[-1] in self.eos):
            for chunk in self._forward(pending, cache, cached):
                last = chunk[-1:]
            cached += len(pending)
            answer.append(sampler.draw(self.lm_head.logits(last)[0].cpu(), cached))
            pending = torch.tensor(answer[-1:], dtype=torch.int64)
        return answer

    def _forward(self, ids: Tensor, cache: KVCache, cached: int, taps: Taps = ()) -> Iterator[Tensor]:
        """Yield the rows of ids [rows], which follow `cached` rows, in chunks."""
        for chunk in torch.split(ids, CHUNK_ROWS):
            positions = np.arange(cached, cached + len(chunk))
            parents = np.append(-1, positions[:-1])
            hidden = self._block.forward(
                chunk, positions, cache, cached, cached, parents, lambda: False, taps
            )
            assert hidden is not None, "nothing aborts it"
            yield hidden
            cached += len(chunk)


def open_local_target(
    source: str, quant: str, dtype: torch.dtype, taps: Taps, device: torch.device | str = "cpu"
) -> AbstractContextManager[TrainingTarget]:
    """Open a target (see OpenTarget) in this process, on `device`."""
    return nullcontext(LocalTarget(source, quant, dtype, taps, device))
