"""What a failed capture leaves behind in torch, whose CUDA functions are replaced here."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from flowedge.models.cuda_graphs.recording import CapturingMaker

POOL = (0, 7)


class NotedCuda:
    """The CUDA functions of torch that a capture calls.

    Attributes:
        calls: the calls that change the state of the allocator, and captures.
        stops: whether the allocator has left the capture when its end fails.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.stops = False
        for name, replaced in (
            ("device", nullcontext),
            ("stream", nullcontext),
            ("Stream", NotedStream),
            ("current_stream", NotedStream),
            ("current_device", lambda: 1),
            ("CUDAGraph", lambda: self),
            ("graph_pool_handle", lambda: POOL),
            ("empty_cache", lambda: None),
        ):
            patch.setattr(torch.cuda, name, replaced)
        patch.setattr("torch._C._cuda_endAllocateToPool", self.end_allocation, raising=False)
        patch.setattr("torch._C._cuda_releasePool", self.release, raising=False)

    def capture_begin(self, **_: object) -> None:
        self.calls.append("begin")

    def capture_end(self) -> None:
        raise RuntimeError("capture was invalidated")

    def end_allocation(self, device: int, pool: Any) -> None:
        if self.stops:
            raise RuntimeError("not currently recording to mempool_id")
        self.calls.append(f"end {device} {pool}")

    def release(self, device: int, pool: Any) -> None:
        self.calls.append(f"release {device} {pool}")


class NotedStream:
    def wait_stream(self, _other: object) -> None:
        pass

    def synchronize(self) -> None:
        pass


@pytest.mark.parametrize("stops", [False, True])
def test_the_allocator_leaves_a_failed_capture(monkeypatch: pytest.MonkeyPatch, stops: bool) -> None:
    cuda = NotedCuda(monkeypatch)
    cuda.stops = stops
    collecting: list[bool] = []

    def wait() -> None:
        collecting.append(gc.isenabled())
        if len(collecting) > 1:
            raise RuntimeError("the operation is not permitted when a stream is capturing")

    with pytest.raises(RuntimeError, match="invalidated") as caught:
        CapturingMaker(torch.device("cuda:1")).make([wait])
    assert "not permitted" in str(caught.value.__context__)
    assert cuda.calls == (["begin"] if stops else ["begin", "end 1 (0, 7)", "release 1 (0, 7)"])
    assert collecting == [True, False], "nothing is collected during a capture"
    assert gc.isenabled()
