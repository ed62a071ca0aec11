"""Measure what a layer with a state costs beside one with attention, as in Qwen 3.5 and Granite 4."""

from __future__ import annotations

import argparse

import numpy as np
import torch
from transformers import AutoConfig

from flowedge.models.architecture import Architecture
from flowedge.models.block import LayerBlock
from flowedge.models.decoder_layer import DecoderLayer
from flowedge.models.families.table import family_of
from flowedge.models.host.payloads import DTYPES
from flowedge.models.quant.quantize import quantize_block
from flowedge.planning.measuring.generic_layers import middle_block
from flowedge_testbed.report.markdown import table
from testbed.tools.exact.costs import Timed
from testbed.tools.gpu.turns import shortest_ms

FIELDS = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
# By FIELDS, and heads of the values of a state.
SHAPES = {"Qwen 3.5 0.8B": (1024, 3584, 8, 2, 16), "Qwen 3.5 9B": (4096, 12288, 16, 4, 32)}
GRANITE = "Granite 4 H-Micro"


class TimedTree(Timed):
    """Draft rows that are leaves of a chain of as many draft rows, whose steps are taken again for them."""

    def __init__(self, block: LayerBlock, context: int, rows: int) -> None:
        super().__init__(block, context, 2 * rows)
        self.seconds()  # the chain, and as many rows behind it
        chain = np.arange(context, context + rows)
        self._inputs, self._positions = self._inputs[rows:], chain + 1
        self._parents = np.append(self._parents[:rows], chain)
        self._cached = context + rows


def block_of(shape: str, quant: str, *, recurrent: bool) -> LayerBlock:
    """Make one layer from the middle of a model, with random weights."""
    kind = "linear_attention" if recurrent else "full_attention"
    if shape == GRANITE:
        name, sizes = "granitemoehybrid", dict(zip(FIELDS, (2048, 8192, 32, 8), strict=True))
        mamba = {"mamba_n_heads": 64, "mamba_d_state": 128, "shared_intermediate_size": 8192}
        sizes |= {**mamba, "num_local_experts": 0}
    else:
        name = "qwen3_5_text"
        sizes = dict(zip((*FIELDS, "linear_num_value_heads"), SHAPES[shape], strict=True))
    config = AutoConfig.for_model(name, **sizes, vocab_size=32, num_hidden_layers=3, layer_types=[kind] * 3)
    family = family_of(name)
    architecture, dtype = Architecture.of(family, config), DTYPES["bfloat16"]
    layer = DecoderLayer(architecture, 1, 0).to(dtype)
    for parameter in layer.parameters():
        if not parameter.isfinite().all() or parameter.ndim == 1:
            torch.nn.init.uniform_(parameter, 0.0, 1.0)
    quantize_block(layer.requires_grad_(False).eval(), quant, dtype)
    block = middle_block(config, architecture, [layer], dtype, torch.device("cpu"))
    block.prepare(exact=True)
    return block


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quant", default="int4")
    parser.add_argument("--contexts", nargs="*", type=int, default=[100, 4000])
    parser.add_argument("--rows", nargs="*", type=int, default=[1, 16, 128])
    parser.add_argument("--shapes", nargs="*", default=[*SHAPES, GRANITE])
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    lines = []
    for shape in arguments.shapes:
        blocks = [block_of(shape, arguments.quant, recurrent=recurrent) for recurrent in (True, False)]
        for context in arguments.contexts:
            for name, timed, counts in (
                ("chain", Timed, arguments.rows),
                ("leaves of a chain", TimedTree, [16]),
            ):
                for rows in counts:
                    with torch.inference_mode():
                        made = [timed(block, context, rows) for block in blocks]
                        state, attention = shortest_ms(made, arguments.repeats)
                    lines.append([shape, str(context), f"{rows}, {name}", f"{state:.2f}", f"{attention:.2f}"])
        del blocks
    print(f"ms a layer, bfloat16, weights {arguments.quant}, one thread of a CPU")
    print(table(["model", "context", "rows", "a state", "attention"], lines))


if __name__ == "__main__":
    main()
