"""Pieces of a static forward: functions that are called, or CUDA graphs that are replayed."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

Function = Callable[[], None]  # reads and writes static tensors alone


class Piece(Protocol):
    """A part of a forward, between two questions whether the forward is to be aborted."""

    def run(self) -> None: ...


class PieceMaker(Protocol):
    """Makes the pieces of a forward from its functions, whose static tensors hold a forward's inputs."""

    def make(self, functions: Sequence[Function]) -> list[Piece]:
        """Return a piece for each function.

        Raises:
            RuntimeError: when the device cannot record a function.
        """


class CalledPiece:
    """Calls its function."""

    def __init__(self, function: Function) -> None:
        self._function = function

    def run(self) -> None:
        self._function()


class CallingMaker:
    """Makes pieces that call their functions, for devices without graphs."""

    def make(self, functions: Sequence[Function]) -> list[Piece]:
        return [CalledPiece(function) for function in functions]


class CapturedPiece:
    """Replays a CUDA graph, on the current stream."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph

    def run(self) -> None:
        self._graph.replay()


class CapturingMaker:
    """Captures the functions of a block's forwards as CUDA graphs, which share the memory of intermediates.

    Graphs may share it because forwards of a block never overlap, and because nothing that a graph leaves
    behind for another forward is an intermediate.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = None
        self._side: Any = None  # a stream
        self._made: weakref.WeakSet[CapturedPiece] = weakref.WeakSet()

    def make(self, functions: Sequence[Function]) -> list[Piece]:
        with torch.cuda.device(self._device):
            self._warm_up(functions)
            if not self._made:  # torch frees a pool together with its last graph
                self._pool = torch.cuda.graph_pool_handle()
            return [self._captured(function) for function in functions]

    def _warm_up(self, functions: Sequence[Function]) -> None:
        """Call the functions once, so that libraries choose kernels and allocate before a capture."""
        if self._side is None:
            new_stream: Any = torch.cuda.Stream
            self._side = new_stream()
        current, side = torch.cuda.current_stream(), self._side
        side.wait_stream(current)
        with torch.cuda.stream(side):
            for function in functions:
                function()
        current.wait_stream(side)

    def _captured(self, function: Function) -> CapturedPiece:
        graph = torch.cuda.CUDAGraph()
        # Other threads of the agent may allocate on the device meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            function()
        piece = CapturedPiece(graph)
        self._made.add(piece)
        return piece
