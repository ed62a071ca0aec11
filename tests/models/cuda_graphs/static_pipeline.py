"""Pipelines whose blocks compute small forwards over static tensors, without a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.cuda_graphs.recording import CallingMaker, PieceFunction, Recording
from flowedge.models.cuda_graphs.static_decoding import BlockDecoding
from tests.models.pipeline import Pipeline


@dataclass
class CountingMaker:
    """Makes called pieces, and counts how many were made, and how often one was run."""

    made: int = 0
    runs: int = 0
    _calling: CallingMaker = field(default_factory=CallingMaker)

    def make(self, functions: Sequence[PieceFunction]) -> list[Recording]:
        self.made += len(functions)
        return self._calling.make([self._counted(function) for function in functions])

    def _counted(self, function: PieceFunction) -> PieceFunction:
        def run() -> None:
            self.runs += 1
            function()

        return run


class RefusingMaker:
    """A device that cannot record."""

    def make(self, functions: Sequence[PieceFunction]) -> list[Recording]:
        raise RuntimeError("operation not permitted when stream is capturing\nin detail")


def decode_statically(block: LayerBlock, uncaptured: int = 0) -> CountingMaker:
    maker = CountingMaker()
    block.decoding = BlockDecoding(block, maker, uncaptured=uncaptured)
    return maker


def static_pipeline(
    checkpoint: Checkpoint, blocks: int, capacity: int, **load: Any
) -> tuple[Pipeline, list[CountingMaker]]:
    pipeline = Pipeline(checkpoint, blocks, capacity, **load)
    makers = [decode_statically(block) for block in pipeline.blocks]
    pipeline.caches = [block.new_cache(capacity) for block in pipeline.blocks]
    return pipeline, makers
