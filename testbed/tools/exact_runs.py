"""Count the tokens in which strategies differ from the same pipeline's plain decoding, in any precision.

Each run is one prompt by one strategy on the bundled models, in one process on the virtual clock. Results are
appended to a file, and runs that are in the file already are not repeated: a call with a limit of minutes is
continued by the next call.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from flowedge.core.request import Failed, Request, Tokens
from flowedge.core.sampling import SamplingParams
from flowedge.drafting.drafter import Drafter
from flowedge.drafting.loading import TargetModel, load_drafter
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.tokenizer import StreamDecoder, encode_chat, load_tokenizer
from flowedge.models.graphs.static_decoding import capture_decoding
from flowedge.models.kv.store import KvFormat
from flowedge.models.layers.block import LayerBlock
from flowedge.models.layers.head import LMHead
from flowedge.models.layers.language_model import LanguageModel
from flowedge.simulate.fixed_costs import FixedCosts
from flowedge.simulate.in_process import virtual_pipeline
from flowedge.strategies.registry import STRATEGIES
from flowedge_testbed.prompts import OWN_FILE
from flowedge_testbed.report.markdown import table

PLAIN = "autoregressive"
SPLIT = (2, 2, 2, 2)
SAMPLINGS = {"T0": SamplingParams(), "T1": SamplingParams(temperature=1.0, seed=29)}


@dataclass(frozen=True)
class Precision:
    """How the target's layers and caches are held."""

    quant: str
    dtype: torch.dtype
    kv: KvFormat = "native"


PRECISIONS = {
    "fp32": Precision("none", torch.float32),
    "bf16": Precision("none", torch.bfloat16),
    "fp16": Precision("none", torch.float16),
    "int8": Precision("int8", torch.bfloat16),
    "int4": Precision("int4", torch.bfloat16),
    "nf4": Precision("nf4", torch.bfloat16),
    "bf16-kv8": Precision("none", torch.bfloat16, "int8"),
    "int4-kv8": Precision("int4", torch.bfloat16, "int8"),
}


class ExactRuns:
    """The bundled pair in one precision, with and without exact blocks."""

    def __init__(self, precision: Precision, exact: bool, device: torch.device) -> None:
        self._checkpoint = Checkpoint.open("bundled")
        self._tokenizer = load_tokenizer(self._checkpoint)
        self._device = device
        self._head = LMHead.load(self._checkpoint, precision.dtype, device, exact=exact)
        self._blocks = [
            LayerBlock.load(
                self._checkpoint,
                sum(SPLIT[:index]),
                sum(SPLIT[: index + 1]),
                quant=precision.quant,
                dtype=precision.dtype,
                device=device,
                exact=exact,
                kv=precision.kv if exact else "native",
            )
            for index in range(len(SPLIT))
        ]
        for block in self._blocks:
            if block.exact != exact:
                raise SystemExit(f"the blocks are not exact here: {block.inexact_reason}")
            capture_decoding(block)  # as agents do; nothing on a CPU
        self._drafter = self._bundled_drafter()
        small = Checkpoint(self._checkpoint.directory.parent / "small")
        self._middle = LanguageModel.load(small, self._head.vocab_size, torch.float32, device)

    def _bundled_drafter(self) -> Drafter:
        head = LMHead.load(self._checkpoint, device=self._device)
        target = TargetModel(self._checkpoint, head, self._tokenizer, torch.float32)
        drafter = load_drafter(("bundled",), target)
        if drafter is None:
            raise SystemExit("the bundled drafter cannot be loaded")
        return drafter

    def encode(self, message: str) -> tuple[int, ...]:
        return tuple(encode_chat(self._tokenizer, message))

    def tokens(
        self, prompt: tuple[int, ...], sampling: SamplingParams, count: int, strategy: str
    ) -> list[int]:
        """Generate `count` tokens; the end of the answer is not heeded."""
        pipeline = virtual_pipeline(
            self._checkpoint,
            SPLIT,
            FixedCosts(),
            drafter=self._drafter,
            head=self._head,
            make_text=lambda: StreamDecoder(self._tokenizer),
            blocks=self._blocks,
            side_models=(self._middle,) if strategy == "pipespec" else (),
        )
        outputs = [
            timed.output
            for timed in pipeline.generate(Request("s", prompt, sampling, count, strategy=strategy))
        ]
        failed = [output for output in outputs if isinstance(output, Failed)]
        if failed:
            raise SystemExit(f"{strategy} failed: {failed[0]}")
        return [token for output in outputs if isinstance(output, Tokens) for token in output.token_ids]


def read_prompts() -> list[str]:
    return [json.loads(line)["turns"][0] for line in OWN_FILE.read_text().splitlines()]


def first_difference(tokens: Sequence[int], plain: Sequence[int]) -> int:
    """The number of equal tokens before the first that differs."""
    equal = [a == b for a, b in zip(tokens, plain, strict=True)]
    return equal.index(False) if False in equal else len(equal)


def cases(prompts: int) -> Iterator[tuple[int, str]]:
    """(prompt, sampling) in an order in which any beginning has both samplings."""
    for prompt in range(prompts):
        for sampling in SAMPLINGS:
            yield prompt, sampling


def run_case(
    runs: ExactRuns, message: str, sampling: SamplingParams, count: int
) -> Iterator[tuple[str, int, int]]:
    """Yield (strategy, compared tokens, 1 if they differ else 0) of each strategy on one prompt.

    Compared are the tokens up to the first that differs, because every later token has another context.
    """
    prompt = runs.encode(message)
    plain = runs.tokens(prompt, sampling, count, PLAIN)
    for strategy in STRATEGIES:
        if strategy == PLAIN:
            continue
        equal = first_difference(runs.tokens(prompt, sampling, count, strategy), plain)
        yield strategy, min(equal + 1, count), int(equal < count)


def read_results(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def report(results: Sequence[dict[str, Any]]) -> str:
    """A table of compared tokens and differences by precision, attention and temperature."""
    lines = []
    for precision in PRECISIONS:
        for exact in (False, True):
            own = [r for r in results if (r["precision"], r["exact"]) == (precision, exact)]
            if not own:
                continue
            line = [precision, "exact" if exact else "plain"]
            for sampling in SAMPLINGS:
                at = [r for r in own if r["sampling"] == sampling]
                line += [str(sum(r["tokens"] for r in at)), str(sum(r["differences"] for r in at))]
            lines.append(line)
    columns = [f"{sampling} {what}" for sampling in SAMPLINGS for what in ("tokens", "differences")]
    return table(["precision", "attention", *columns], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--precision", nargs="*", default=["bf16", "int8", "int4", "nf4"], choices=PRECISIONS)
    parser.add_argument("--tokens", type=int, default=20_000, help="least compared tokens of each precision")
    parser.add_argument("--answer", type=int, default=96, help="tokens of an answer")
    parser.add_argument("--minutes", type=float, default=20.0, help="no case is begun after these minutes")
    parser.add_argument("--plain", action="store_true", help="run blocks that are not exact, to compare")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--results", type=Path, default=Path("exact-runs.jsonl"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    exact, end = not arguments.plain, time.monotonic() + 60 * arguments.minutes
    prompts = read_prompts()
    for precision in arguments.precision:
        runs: ExactRuns | None = None
        for index, sampling in cases(len(prompts)):
            results = read_results(arguments.results)
            own = [r for r in results if (r["precision"], r["exact"]) == (precision, exact)]
            done = {(r["prompt"], r["sampling"], r["answer"]) for r in own}
            if sum(r["tokens"] for r in own) >= arguments.tokens or time.monotonic() > end:
                break
            if (index, sampling, arguments.answer) in done:
                continue
            runs = runs or ExactRuns(PRECISIONS[precision], exact, torch.device(arguments.device))
            found = run_case(runs, prompts[index], SAMPLINGS[sampling], arguments.answer)
            common = {
                "precision": precision,
                "exact": exact,
                "prompt": index,
                "sampling": sampling,
                "answer": arguments.answer,
            }
            lines = [
                json.dumps({**common, "strategy": strategy, "tokens": tokens, "differences": differences})
                for strategy, tokens, differences in list(found)
            ]
            with arguments.results.open("a") as file:
                file.write("".join(line + os.linesep for line in lines))
    print(report(read_results(arguments.results)))


if __name__ == "__main__":
    main()
