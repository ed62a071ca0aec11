"""Tries what FlowEdge computes on one device, as a program of its own: a broken library may crash or hang it.

Its argument is torch's name of a device. It prints a DeviceTrial as a line of JSON before the quantisations
are tried, and again after each of them. So the results before a crash are known.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from flowedge.device.compute import (
    BFLOAT16,
    CPU,
    FLOAT16,
    FLOAT32,
    NOT_TRIED,
    DeviceProbe,
    cpu_dtypes,
    missing_kernels,
    processor_name,
)
from flowedge.models.quant.backend import WeightRows
from flowedge.models.quant.quantize import QUANTISATIONS, backend_of

WIDTH = 128  # of the matrices: a multiple of every kernel's group
ROWS = (1, 16)  # libraries have a kernel for one row and another for more
TOLERANCE = 0.05  # of the largest element, against the same product on the CPU
_BFLOAT16_CAPABILITY = (8, 0)
# bitsandbytes ends the process when it cannot launch a kernel, so torch's own products are tried first.
_OF_TORCH = ("int4", "w8a16")
_QUANTISATIONS = (*_OF_TORCH, *(quant for quant in QUANTISATIONS[1:] if quant not in _OF_TORCH))


def trials_here(name: str) -> Iterator[DeviceProbe]:
    """Yield what runs on a device, as far as it has been tried; the last trial is complete."""
    device = torch.device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        yield DeviceProbe(name, problem="torch.cuda.is_available() is False")
        return
    try:
        found = _describe(device)
        _try_product(device, found.dtypes[0])
        _try_attention(device, found.dtypes[0])
    except Exception as error:  # noqa: BLE001 (a broken driver may raise anything)
        yield DeviceProbe(name, problem=_said(error))
        return
    problems = dict.fromkeys(_QUANTISATIONS, NOT_TRIED)
    yield replace(found, quant_problems=problems)
    for quant in _QUANTISATIONS:
        problem = _quant_problem(quant, device, found.dtypes[0])
        problems = {**problems, quant: problem} if problem else _without(problems, quant)
        yield replace(found, quant_problems=problems)


def _describe(device: torch.device) -> DeviceProbe:
    if device.type == CPU:
        return DeviceProbe(CPU, processor_name(), cpu_dtypes())
    index = torch.cuda.current_device() if device.index is None else device.index
    properties = torch.cuda.get_device_properties(index)
    free, total = torch.cuda.mem_get_info(index)
    capability = torch.cuda.get_device_capability(index)
    missing = missing_kernels(torch.cuda.get_arch_list(), capability)
    if missing:  # such a build imports, and fails at its first kernel with an error that does not say why
        raise RuntimeError(missing)
    has_bfloat16 = capability >= _BFLOAT16_CAPABILITY
    integrated = bool(properties.is_integrated)
    return DeviceProbe(
        f"cuda:{index}",
        str(properties.name),
        (BFLOAT16, FLOAT16, FLOAT32) if has_bfloat16 else (FLOAT16, FLOAT32),
        integrated=integrated,
        memory_total=0 if integrated else int(total),
        memory_free=0 if integrated else int(free),
    )


def _try_product(device: torch.device, dtype: str) -> None:
    left, right = (_values(seed, (16, WIDTH), dtype) for seed in (0, 1))
    _compare(left.to(device) @ right.T.to(device), left.float() @ right.T.float(), "a product")


def _try_attention(device: torch.device, dtype: str) -> None:
    """Attend with a mask, as layers do: torch has other kernels for that than without a mask."""
    query, key, value = (_values(seed, (1, 2, 16, 64), dtype) for seed in (2, 3, 4))
    mask = torch.zeros((1, 1, 16, 16), dtype=query.dtype)
    mask.masked_fill_(torch.ones(16, 16).triu(1).bool(), torch.finfo(query.dtype).min)
    wanted = scaled_dot_product_attention(query.float(), key.float(), value.float(), mask.float())
    query, key, value, mask = (part.to(device) for part in (query, key, value, mask))
    found = scaled_dot_product_attention(query, key, value, mask)
    _compare(found, wanted, "an attention")


def _quant_problem(quant: str, device: torch.device, dtype: str) -> str:
    """Multiply with a quantised weight on the device; return what goes wrong."""
    try:
        backend = backend_of(quant)
        reason = backend.unavailable(device)
        if reason is not None:
            return reason
        weight = _values(5, (WIDTH, WIDTH), FLOAT32)
        encoded = backend.encode(WeightRows.of(weight))
        like = nn.Linear(WIDTH, WIDTH, bias=False, device="meta")
        layer = backend.build(encoded, like, getattr(torch, dtype), device)
        for rows in ROWS:
            inputs = _values(6, (rows, WIDTH), dtype)
            # A quantised weight differs from the weight by up to a few percent of the largest.
            _compare(layer(inputs.to(device)), inputs.float() @ weight.T, f"a product of {rows} rows", 0.5)
    except Exception as error:  # noqa: BLE001 (a broken library may raise anything)
        return _said(error)
    return ""


def _without(problems: dict[str, str], quant: str) -> dict[str, str]:
    return {other: problem for other, problem in problems.items() if other != quant}


def _values(seed: int, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(getattr(torch, dtype))


def _compare(found: torch.Tensor, wanted: torch.Tensor, what: str, tolerance: float = TOLERANCE) -> None:
    difference = (found.float().cpu() - wanted).abs().max() / wanted.abs().max()
    if not float(difference) <= tolerance:  # also where it is no number
        raise RuntimeError(f"{what} is wrong there: it differs from the CPU's by {float(difference):.3g}")


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"


if __name__ == "__main__":
    with torch.inference_mode():
        for trial in trials_here(sys.argv[1]):
            print(trial.to_json(), flush=True)
