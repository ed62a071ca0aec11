"""Pieces of a static forward: functions that are called, or CUDA graphs that are replayed."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch

PieceFunction = Callable[[], None]  # reads and writes static tensors alone


class Recording(Protocol):
    """A part of a forward, between two questions whether the forward is to be aborted."""

    def run(self) -> None: ...


class RecordingMaker(Protocol):
    """Makes the pieces of a forward from its functions, whose static tensors hold a forward's inputs."""

    def make(self, functions: Sequence[PieceFunction]) -> list[Recording]:
        """Return a piece for each function.

        Raises:
            RuntimeError: when the device cannot record a function.
        """


class CalledRecording:
    """Calls its function."""

    def __init__(self, function: PieceFunction) -> None:
        self._function = function

    def run(self) -> None:
        self._function()


class CallingMaker:
    """Makes pieces that call their functions, for devices without graphs."""

    def make(self, functions: Sequence[PieceFunction]) -> list[Recording]:
        return [CalledRecording(function) for function in functions]


class CapturedRecording:
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
        self._made: weakref.WeakSet[CapturedRecording] = weakref.WeakSet()

    def make(self, functions: Sequence[PieceFunction]) -> list[Recording]:
        with torch.cuda.device(self._device):
            self._warm_up(functions)
            if not self._made:  # torch frees a pool together with its last graph
                self._pool = torch.cuda.graph_pool_handle()
            with torch.cuda.stream(self._side), _collection_off():
                return [self._captured(function) for function in functions]

    def _warm_up(self, functions: Sequence[PieceFunction]) -> None:
        """Call the functions once, so that libraries choose kernels and allocate before a capture."""
        if self._side is None:
            # A stream of this device, for captures too: workspaces of libraries belong to a stream.
            new_stream: Any = torch.cuda.Stream
            self._side = new_stream()
        current, side = torch.cuda.current_stream(), self._side
        side.wait_stream(current)
        try:
            with torch.cuda.stream(side):
                for function in functions:
                    function()
        finally:
            current.wait_stream(side)
        side.synchronize()
        torch.cuda.empty_cache()  # memory of the side stream, which no other stream would use

    def _captured(self, function: PieceFunction) -> CapturedRecording:
        graph: Any = torch.cuda.CUDAGraph()
        # Other threads of the agent may allocate on the device meanwhile.
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            function()
        finally:
            _end_capture(graph, self._pool)
        piece = CapturedRecording(graph)
        self._made.add(piece)
        return piece


@contextmanager
def _collection_off() -> Iterator[None]:
    """Turn off garbage collection: freeing a graph or an event of other work may end a capture."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _end_capture(graph: Any, pool: Any) -> None:
    """End a capture; after a failure, also in torch's allocator.

    torch itself leaves the allocator in the capture, where it frees no memory and `empty_cache` fails.
    """
    try:
        graph.capture_end()
    except RuntimeError:
        library: Any = torch._C
        end = getattr(library, "_cuda_endAllocateToPool", None)  # the name since torch 2.8
        end = end or library._cuda_endAllocateCurrentStreamToPool
        device = torch.cuda.current_device()
        try:
            end(device, pool)
        except RuntimeError:  # the failure came later: the allocator is not in the capture
            pass
        else:
            library._cuda_releasePool(device, pool)
        raise
