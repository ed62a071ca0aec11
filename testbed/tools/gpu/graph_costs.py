"""Measure a decode forward layer by layer, over static tensors, and as CUDA graphs where there is a GPU."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

import torch

from flowedge.models.block import LayerBlock
from flowedge.models.cuda_graphs.recording import CallingMaker, CapturingMaker, RecordingMaker
from flowedge.models.cuda_graphs.static_decoding import BlockDecoding
from flowedge.models.host.payloads import DTYPES
from flowedge.planning.measuring.generic_layers import generic_block
from flowedge_testbed.report.markdown import table
from testbed.tools.exact.costs import SHAPES, Timed, exact_copy
from testbed.tools.gpu.turns import shortest_ms


def variants(block: LayerBlock) -> list[LayerBlock]:
    """The block layer by layer, with static tensors, and with graphs where the device has them."""
    makers: list[RecordingMaker] = [CallingMaker()]
    if block.device.type == "cuda":
        makers.append(CapturingMaker(block.device))
    made = [replace(block) for _ in makers]
    for each, maker in zip(made, makers, strict=True):
        each.decoding = BlockDecoding(each, maker, uncaptured=0)
    return [block, *made]


def measure(blocks: Sequence[LayerBlock], context: int, rows: int, repeats: int) -> list[float]:
    """The shortest forward of each block in ms; the blocks take turns."""
    with torch.inference_mode():
        timed = [Timed(block, context, rows) for block in blocks]
        for each in timed:
            each.seconds()
        return shortest_ms(timed, repeats)


def driver_bytes(device: torch.device) -> int:
    """The bytes of a GPU that are neither free nor in the reserve of torch; 0 on a CPU."""
    if device.type == "cpu":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return int(total - free - torch.cuda.memory_reserved(device))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="*", default=["8M", "1B"], choices=SHAPES)
    parser.add_argument("--quant", default="none")
    parser.add_argument("--dtype", default="bfloat16", choices=DTYPES)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--exact", action="store_true")
    parser.add_argument("--contexts", nargs="*", type=int, default=[64, 1000, 4000])
    parser.add_argument("--rows", nargs="*", type=int, default=[1, 8, 16, 64])
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    device, dtype, lines = torch.device(arguments.device), DTYPES[arguments.dtype], []
    for shape in arguments.shapes:
        block = generic_block(SHAPES[shape], arguments.layers, dtype, device, arguments.quant)
        blocks = variants(exact_copy(block, "native") if arguments.exact else block)
        before = driver_bytes(device)
        for context in arguments.contexts:
            for rows in arguments.rows:
                times = measure(blocks, context, rows, arguments.repeats)
                lines.append([shape, str(context), str(rows), *(f"{ms:.2f}" for ms in times)])
        if device.type == "cuda":
            print(
                f"{shape}: the driver took {driver_bytes(device) - before >> 20} MiB for graphs and kernels"
            )
        for each in blocks[1:]:
            assert isinstance(each.decoding, BlockDecoding)
            if each.decoding.failure:
                print(f"{shape}: not recorded, so that it ran layer by layer: {each.decoding.failure}")
    columns = ["model", "context", "rows", "layer by layer", "static", "graphs"][: 3 + len(blocks)]
    print(f"ms for {arguments.layers} layers, {arguments.dtype}, weights {arguments.quant}, {device}")
    print(table(columns, lines))


if __name__ == "__main__":
    main()
