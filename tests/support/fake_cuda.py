"""A GPU that is not there: fake tensors on "cuda", which have shapes, dtypes and devices but no content.

An operation whose tensors are on different devices raises an error, and so does everything for which the host
would wait for the GPU, outside of the copies of flowedge.models.host.copies.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from flowedge.drafting import ranking
from flowedge.drafting.heads import eagle3_head
from flowedge.models import token_table
from flowedge.models.files.weight_file import WeightSlice
from flowedge.models.host import copies
from flowedge.models.lm_head import LayerInputs
from flowedge.models.quant import backend
from flowedge.models.rotary import Rotary

CUDA = torch.device("cuda:0")  # without an index, torch asks the driver for the current device


class HostWaitError(Exception):
    """The host reads what a GPU has computed, or moves a tensor, outside of the named copies."""


@dataclass
class FakeCuda:
    """What happened on the fake GPU.

    Attributes:
        modules: the modules of flowedge from which operations on the GPU were called.
        uploads, downloads: the copies so far.
    """

    modules: set[str] = field(default_factory=set)
    uploads: int = 0
    downloads: int = 0
    loading: bool = False

    @contextmanager
    def load(self) -> Iterator[None]:
        """Allow the plain copies to the device by which weights are loaded."""
        self.loading = True
        try:
            yield
        finally:
            self.loading = False

    def copies_of(self, function: Callable[[], Any]) -> tuple[int, int]:
        """Call a function; return the numbers of its uploads and downloads."""
        before = self.uploads, self.downloads
        function()
        return self.uploads - before[0], self.downloads - before[1]


@contextmanager
def fake_cuda() -> Iterator[FakeCuda]:
    """Make "cuda" a device of fake tensors, and the named copies copies of ones."""
    seen = FakeCuda()
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        _replace_copies(patch, seen)
        patch.setattr(token_table, "_held", WeakValueDictionary())  # a fake tensor belongs to its mode
        ranking._noise.cache_clear()
        stack.callback(ranking._noise.cache_clear)
        stack.enter_context(FakeTensorMode())
        stack.enter_context(_Watch(seen))
        stack.enter_context(_Indexing())
        yield seen


@contextmanager
def really() -> Iterator[None]:
    """Compute with real tensors on the CPU for a while."""
    with _disable_current_modes():
        yield


def on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which computes with real tensors on the CPU."""

    def call(*arguments: Any) -> Any:
        with really():
            return function(*arguments)

    return call


def _replace_copies(patch: pytest.MonkeyPatch, seen: FakeCuda) -> None:
    """Replace the ends of the named copies; what they do before and after is run as it is."""
    on_host, host_array, host_angles = copies._on_host, copies._host_array, Rotary._host_angles
    make = Rotary._make

    def upload(staged: np.ndarray, device: torch.device) -> torch.Tensor:
        seen.uploads += 1
        return torch.empty(staged.shape, dtype=torch.uint8, device=device)

    def download(tensor: torch.Tensor) -> np.ndarray:
        seen.downloads += 1
        return np.ones(tuple(tensor.shape), dtype=str(tensor.dtype).removeprefix("torch."))

    def read(own: WeightSlice, shape: tuple[int, ...], _offset: int) -> torch.Tensor:
        return torch.empty(shape, dtype=own.dtype)

    def make_rotary(own: Rotary, kind: str | None) -> torch.nn.Module:
        return make(own, kind) if own._length is None else on_cpu(make)(own, kind)

    def host_rows(own: LayerInputs, tokens: np.ndarray) -> np.ndarray:
        return np.zeros((len(tokens), own.projection.out_features), dtype=np.uint16)  # of bfloat16

    patch.setattr(copies, "_upload", upload)
    patch.setattr(copies, "_download", download)
    patch.setattr(copies, "_on_host", on_cpu(on_host))
    patch.setattr(copies, "_host_array", on_cpu(host_array))
    patch.setattr(Rotary, "_host_angles", on_cpu(host_angles))
    patch.setattr(Rotary, "_make", make_rotary)
    patch.setattr(LayerInputs, "_host_rows", host_rows)
    patch.setattr(WeightSlice, "_read", read)
    # Checks of the content of files.
    patch.setattr(eagle3_head, "check_maps", lambda *_: None)
    patch.setattr(backend, "check_finite", lambda *_: None)


class _Watch(TorchDispatchMode):
    """Refuses copies between the devices, and notes who computes on the GPU."""

    def __init__(self, seen: FakeCuda) -> None:
        super().__init__()
        self._seen = seen

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given, returned = _devices((args, kwargs)), _devices(result)
        if "cuda" in given | returned:
            self._seen.modules |= _callers()
        if "cpu" in returned and "cuda" in given:
            raise HostWaitError(f"{func} copies from the GPU to the host outside of the named copies")
        if "cpu" in given and "cuda" in returned and not self._seen.loading:
            raise HostWaitError(f"{func} copies from the host to the GPU outside of the named copies")
        return result


def _devices(tree: Any) -> set[str]:
    tensors = (leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor))
    return {tensor.device.type for tensor in tensors if tensor.numel() != 1 or tensor.device.type != "cpu"}


def _callers() -> set[str]:
    """The modules of flowedge from which the operation was called, by the test that pytest has called."""
    frame: Any = sys._getframe(1)
    names: set[str] = set()
    while frame is not None and "_pytest.python" not in names:
        names.add(frame.f_globals.get("__name__", ""))
        frame = frame.f_back
    return {name for name in names if name.startswith("flowedge.")}


class _Indexing(TorchFunctionMode):
    """Indexing and copying by aten's operations: torch's own asks for a driver, which a CPU build lacks."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.__getitem__ and args[0].device.type == "cuda":
            view, tensors = _select(args[0], args[1])
            return view if tensors is None else torch.ops.aten.index(view, tensors)
        if func is torch.Tensor.__setitem__ and args[0].device.type == "cuda":
            view, tensors = _select(args[0], args[1])
            value = args[2]
            if tensors is None:
                return _copy(view, value) if isinstance(value, torch.Tensor) else view.fill_(value)
            if not isinstance(value, torch.Tensor):
                value = torch.full((), value, dtype=view.dtype, device=view.device)
            return torch.ops.aten.index_put_(view, tensors, value)
        if func is torch.Tensor.copy_ and args[0].device.type == "cuda":
            return _copy(args[0], args[1])
        if func is torch.Tensor.contiguous and not args[0].is_contiguous():
            return torch.ops.aten.clone(args[0], memory_format=torch.contiguous_format)
        return func(*args, **(kwargs or {}))


def _copy(to: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    with torch._C._AutoDispatchBelowAutograd():  # autograd's own copy_ asks for a device guard as well
        return torch.ops.aten.copy_(to, source)


def _select(tensor: torch.Tensor, index: Any) -> tuple[torch.Tensor, list[torch.Tensor | None] | None]:
    """The view that integers, slices, None and ... of an index select, and the tensors that are left."""
    parts = list(index) if isinstance(index, tuple) else [index]
    used = sum(part is not None and part is not Ellipsis for part in parts)
    whole = [slice(None)] * (tensor.dim() - used)
    if Ellipsis in [part for part in parts if not isinstance(part, torch.Tensor | np.ndarray)]:
        place = next(i for i, part in enumerate(parts) if part is Ellipsis)
        parts[place : place + 1] = whole
    axis, tensors = 0, []
    for part in parts:
        if part is None:
            tensor = tensor.unsqueeze(axis)
            tensors.append(None)
        elif isinstance(part, slice):
            start, stop, step = part.indices(tensor.shape[axis])
            tensor = torch.ops.aten.slice(tensor, axis, start, max(start, stop), step)
            tensors.append(None)
        elif isinstance(part, torch.Tensor):
            tensors.append(part)
        elif isinstance(part, list | np.ndarray):
            raise HostWaitError("an index of host data is copied to the GPU outside of the named copies")
        else:
            tensor = torch.ops.aten.select(tensor, axis, int(part))
            continue
        axis += 1
    return tensor, (tensors if any(part is not None for part in tensors) else None)
