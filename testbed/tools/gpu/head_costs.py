"""Measure a draft head's growth layer by layer, over static tensors, and as CUDA graphs on a GPU."""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from torch import nn

from flowedge.drafting.drafter import Frontier, GrowRequest
from flowedge.drafting.heads.eagle_head import EagleHead
from flowedge.drafting.heads.head_drafter import HeadDrafter
from flowedge.models.cuda_graphs.recording import CallingMaker, CapturingMaker, RecordingMaker
from flowedge.models.files.decoder_configs import LlamaDecoderConfig
from flowedge.models.host.payloads import DTYPES
from flowedge.models.lm_head import LMHead
from flowedge_testbed.report.markdown import table
from testbed.tools.exact.costs import SHAPES
from testbed.tools.gpu.turns import shortest_ms

SESSION = "measure"
WIDTH = 10  # children of a node


class TimedGrowth:
    """A drafter with a session that has a context, and a growth that begins with one layer of nodes."""

    def __init__(self, drafter: HeadDrafter, context: int, rows: int) -> None:
        hidden = int(drafter.head.config.hidden_size)
        features = np.random.default_rng(0).standard_normal((context, hidden)).astype(np.float32)
        drafter.open(SESSION, context, 0)
        drafter.grow([GrowRequest.extension(SESSION, features, np.zeros(context, dtype=np.int64))])
        self._drafter = drafter
        self._below = Frontier(list(range(1, rows + 1)), [0] * rows, list(range(rows)))
        self._growth = 0

    def seconds(self) -> float:
        """Grow the root and a layer; return the time of the layer, its best children on the host."""
        self._growth += 1
        self._drafter.grow([GrowRequest(SESSION, self._growth, Frontier([0], [-1], [0]), WIDTH)])
        started = time.perf_counter()
        self._drafter.grow([GrowRequest(SESSION, self._growth, self._below, WIDTH)])
        return time.perf_counter() - started

    def close(self) -> None:
        self._drafter.close(SESSION)


def drafters(
    shape: str, vocab: int, recalls: bool, dtype: torch.dtype, device: torch.device
) -> list[HeadDrafter]:
    """Drafters with one random head: layer by layer, with static tensors, and with graphs on a GPU."""
    sizes = SHAPES[shape]
    config = LlamaDecoderConfig(
        vocab_size=vocab,
        hidden_size=sizes.hidden,
        intermediate_size=sizes.intermediate,
        num_hidden_layers=1,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
    )
    head = EagleHead(config, fc_bias=True).to(device, dtype).eval()
    embedding = nn.Embedding(vocab, sizes.hidden).to(device, dtype)
    lm_head = LMHead(nn.Parameter(embedding.weight.detach(), requires_grad=False), "lm_head.weight")
    makers: list[RecordingMaker | None] = [None, CallingMaker()]
    if device.type == "cuda":
        makers.append(CapturingMaker(device))
    made = []
    for maker in makers:
        drafter = HeadDrafter(head, lm_head, embedding, recalls=recalls)
        if maker is not None:
            drafter.decode_statically(maker, uncaptured=0)
        made.append(drafter)
    return made


def measure(made: list[HeadDrafter], context: int, rows: int, repeats: int) -> list[float]:
    """The shortest growth of a layer by each drafter in ms; the drafters take turns."""
    timed = [TimedGrowth(drafter, context, rows) for drafter in made]
    for each in timed:
        each.seconds()
    shortest = shortest_ms(timed, repeats)
    for each in timed:
        each.close()
    return shortest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="*", default=["8M", "1B"], choices=SHAPES)
    parser.add_argument("--vocab", type=int, default=32_000)
    parser.add_argument("--recall", action="store_true")
    parser.add_argument("--dtype", default="bfloat16", choices=DTYPES)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--contexts", nargs="*", type=int, default=[64, 1000, 4000])
    parser.add_argument("--rows", nargs="*", type=int, default=[1, 10, 20])
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    device, dtype, lines = torch.device(arguments.device), DTYPES[arguments.dtype], []
    for shape in arguments.shapes:
        made = drafters(shape, arguments.vocab, arguments.recall, dtype, device)
        for context in arguments.contexts:
            for rows in arguments.rows:
                times = measure(made, context, rows, arguments.repeats)
                lines.append([shape, str(context), str(rows), *(f"{ms:.2f}" for ms in times)])
        if failure := made[-1].decoding_failure:
            print(f"{shape}: not recorded, so that it ran layer by layer: {failure}")
    columns = ["model", "context", "rows", "layer by layer", "static", "graphs"][: 3 + len(made)]
    print(f"ms for a layer of a growth, {arguments.dtype}, {arguments.vocab} tokens, {device}")
    print(table(columns, lines))


if __name__ == "__main__":
    main()
