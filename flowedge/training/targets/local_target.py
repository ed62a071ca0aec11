"""A training target whose layers are all in this process."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flowedge.core.request import DecodeCounters, Finished, Request
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.tokenizer import StreamDecoder, eos_token_ids, load_tokenizer
from flowedge.models.layers.block import LayerBlock
from flowedge.models.layers.cache import SessionCache
from flowedge.models.layers.head import LMHead, load_embedding
from flowedge.models.layers.sampler import TokenSampler
from flowedge.models.layers.taps import Taps
from flowedge.models.quant.quant_cache import QuantCache
from flowedge.simulate.fixed_costs import FixedCosts
from flowedge.simulate.in_process import virtual_pipeline
from flowedge.training.targets.target import Question, TokenIds, TrainingTarget

CHUNK_ROWS = 256  # rows of one forward: the bound of the memory of activations


class LocalTarget(TrainingTarget):
    """All layers of a model, one text at a time."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        block: LayerBlock,
        lm_head: LMHead,
        embedding: nn.Embedding,
        tokenizer: Any,
        eos: frozenset[int],
        taps: Taps = (),
    ) -> None:
        super().__init__(checkpoint, lm_head, embedding, tokenizer, eos, taps)
        self._block = block

    @classmethod
    def load(
        cls,
        source: str,
        quant: str,
        dtype: torch.dtype,
        taps: Taps = (),
        device: torch.device | str = "cpu",
    ) -> LocalTarget:
        """All layers of a directory, hub id or "bundled"; CheckpointError as in Checkpoint.open."""
        checkpoint = Checkpoint.open(source)
        tokenizer = load_tokenizer(checkpoint)
        layers = checkpoint.config.num_hidden_layers
        block = LayerBlock.load(
            checkpoint,
            0,
            layers,
            quant=quant,
            dtype=dtype,
            device=device,
            quant_cache=QuantCache.configured(),
        )
        lm_head = LMHead.load(checkpoint, dtype=dtype, device=device)
        embedding = load_embedding(checkpoint, dtype=dtype, device=device, shared_with=lm_head)
        eos = eos_token_ids(checkpoint, tokenizer)
        return cls(checkpoint, block, lm_head, embedding, tokenizer, eos, taps)

    def features(self, texts: Iterable[TokenIds]) -> Generator[Tensor, None, None]:
        """See TrainingTarget."""
        for tokens in texts:
            ids = torch.from_numpy(tokens.astype(np.int64))
            chunks = list(self._forward(ids, self._block.new_cache(len(ids)), 0, self.taps))
            # A copy, made outside of inference mode: autograd refuses to save tensors that were made in it.
            yield torch.cat([chunk.float() for chunk in chunks])

    def answers(self, questions: Iterable[Question]) -> Iterator[list[int]]:
        """See TrainingTarget."""
        return map(self._answer, questions)

    def decode(self, head: Path, questions: Iterable[Question], strategy: str) -> Iterator[DecodeCounters]:
        """See TrainingTarget; by the whole machinery in this process."""
        lm_head = self.lm_head
        if lm_head.weight.device.type != "cpu":  # a draft node drafts and samples on the CPU
            lm_head = LMHead.load(self.checkpoint, dtype=lm_head.weight.dtype)
        drafter = self.load_drafter(head, lm_head)
        for number, question in enumerate(questions):
            pipeline = virtual_pipeline(
                self.checkpoint,
                [self._block.num_layers],
                FixedCosts(),
                drafter=drafter,
                head=lm_head,
                make_text=lambda: StreamDecoder(self.tokenizer),
                blocks=[self._block],
            )
            request = Request(
                f"e{number}",
                tuple(question.prompt),
                question.sampling,
                self.room(question),
                self.eos,
                strategy=strategy,
            )
            for timed in pipeline.generate(request):
                if isinstance(timed.output, Finished):
                    yield timed.output.counters

    def _answer(self, question: Question) -> list[int]:
        room = self.room(question)
        sampler = TokenSampler(question.sampling, self._block.vocab_size)
        cache = self._block.new_cache(len(question.prompt) + room)
        pending, cached = torch.tensor(question.prompt, dtype=torch.int64), 0
        answer: list[int] = []
        while len(answer) < room and not (answer and answer[-1] in self.eos):
            for chunk in self._forward(pending, cache, cached):
                last = chunk[-1:]
            cached += len(pending)
            answer.append(sampler.draw(self.lm_head.logits(last)[0].cpu(), cached))
            pending = torch.tensor(answer[-1:], dtype=torch.int64)
        return answer

    def _forward(self, ids: Tensor, cache: SessionCache, cached: int, taps: Taps = ()) -> Iterator[Tensor]:
        """The rows of ids [rows] that follow `cached` rows, some at a time."""
        for chunk in torch.split(ids, CHUNK_ROWS):
            positions = np.arange(cached, cached + len(chunk))
            parents = np.append(-1, positions[:-1])
            hidden = self._block.forward(chunk, positions, cache, cached, cached, parents, _never, taps)
            assert hidden is not None, "nothing aborts it"
            yield hidden
            cached += len(chunk)


@contextmanager
def open_local_target(
    source: str, quant: str, dtype: torch.dtype, taps: Taps, device: torch.device | str = "cpu"
) -> Iterator[TrainingTarget]:
    """See OpenTarget."""
    yield LocalTarget.load(source, quant, dtype, taps, device)


def _never() -> bool:
    return False
