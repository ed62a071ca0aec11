"""Print what decides how FlowEdge computes on a GPU: versions, capability, and the kernels that it gets."""

from __future__ import annotations

import argparse
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch.backends.cuda import SDPAParams, can_use_efficient_attention

from flowedge.models.attention.kv_store import PlainStore
from flowedge.models.attention.masked import AttentionMask, MaskRows, write_masks
from flowedge_testbed.report.markdown import table

PACKAGES = ("torch", "transformers", "bitsandbytes", "numpy", "safetensors")
HEAD_SIZES = (64, 80, 96, 128, 256)
ROWS, CONTEXT = (1, 8, 64), (255, 1000)
KV_HEADS, GROUP = 4, 4


def facts(device: torch.device) -> list[list[str]]:
    """The versions, and the properties of the device."""
    properties = torch.cuda.get_device_properties(device)
    free, total = torch.cuda.mem_get_info(device)
    backends: Any = torch.backends
    return [
        *([name, _version(name)] for name in PACKAGES),
        ["CUDA of torch", str(torch.version.cuda)],
        ["cuDNN", str(backends.cudnn.version())],
        ["built for", " ".join(torch.cuda.get_arch_list())],
        ["GPU", f"{properties.name}, {properties.major}.{properties.minor}"],
        ["multiprocessors", str(properties.multi_processor_count)],
        ["integrated", str(bool(properties.is_integrated))],
        ["free of total MiB", f"{free >> 20} of {total >> 20}"],
        ["products of float32", torch.get_float32_matmul_precision()],
        ["cuDNN's attention", "on" if backends.cuda.cudnn_sdp_enabled() else "off"],
    ]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def efficient_shapes(device: torch.device, dtype: torch.dtype) -> list[list[str]]:
    """For each head size, where torch's efficient kernel takes attention with a mask; it copies nothing."""
    lines = []
    for size in HEAD_SIZES:
        store = PlainStore((1, 2, KV_HEADS, max(CONTEXT) + max(ROWS) + 1, size), dtype, device)
        mask = AttentionMask(store.kv.shape[3], dtype, device)
        taken = [_is_efficient(store, mask, rows, context) for rows in ROWS for context in CONTEXT]
        lines.append(
            [str(dtype).removeprefix("torch."), str(size), *("yes" if each else "NO" for each in taken)]
        )
    return lines


def _is_efficient(store: PlainStore, mask: AttentionMask, rows: int, context: int) -> bool:
    """Whether the kernel takes the folded rows of a forward; torch logs why not."""
    seen = torch.ones((rows, rows)).tril().bool().numpy()
    (written,) = write_masks([mask], [MaskRows(context, seen)])
    written = written.repeat(1, 1, GROUP, 1).expand(1, KV_HEADS, -1, -1)
    keys, values = store.view(0, 0, context + rows)
    query = torch.zeros((1, KV_HEADS, GROUP * rows, keys.shape[3]), dtype=keys.dtype, device=keys.device)
    params = SDPAParams(query, keys, values, written, 0.0, False, False)
    return bool(can_use_efficient_attention(params, debug=True))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m testbed.tools.gpu.facts", description=__doc__)
    parser.add_argument("--device", default="cuda:0")
    device = torch.device(parser.parse_args().device)
    print(table(["what", "value"], facts(device)))
    columns = [f"{rows} rows at {context}" for rows in ROWS for context in CONTEXT]
    lines = [line for dtype in (torch.bfloat16, torch.float16) for line in efficient_shapes(device, dtype)]
    print("\nattention with a mask: torch's efficient kernel takes")
    print(table(["dtype", "head size", *columns], lines))


if __name__ == "__main__":
    main()
