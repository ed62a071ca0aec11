"""Time the LM head that a drafter proposes with, by its number of tokens and by its format.

Times are of the processor, on one thread, so that other work on the machine counts little.

Run: OMP_NUM_THREADS=1 python -m testbed.tools.drafters.proposal_times [--hidden 4096]
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch import nn

from flowedge.drafting.proposal_head import ProposalHead
from flowedge.models.lm_head import LMHead

TOKENS = (2048, 8192, 32768, 131072)
FORMATS = ("none", "int8", "int4")
ROWS = (1, 10)
REPEATS = 9


def median_ms(head: ProposalHead, rows: int) -> float:
    """Return the median processor time of the logits of `rows` rows, in milliseconds."""
    states = torch.randn(rows, head.exact.hidden_size).to(head.exact.weight.dtype)
    times = []
    for _ in range(REPEATS):
        began = time.process_time()
        head.logits(states)
        times.append(time.process_time() - began)
    return statistics.median(times) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print("tokens  format  made in s  " + "  ".join(f"{rows} rows ms" for rows in ROWS))
    for tokens in arguments.tokens:
        weight = nn.Parameter(torch.randn(tokens, arguments.hidden).bfloat16(), requires_grad=False)
        for quant in FORMATS:
            began = time.process_time()
            head = ProposalHead(LMHead(weight, "lm_head.weight"), None, quant)
            made = time.process_time() - began
            times = "  ".join(f"{median_ms(head, rows):9.2f}" for rows in ROWS)
            print(f"{tokens:6d}  {'bf16' if quant == 'none' else quant:6s}  {made:9.2f}  {times}", flush=True)


if __name__ == "__main__":
    main()
