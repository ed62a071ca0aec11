"""Count the tokens in which strategies differ from the same pipeline's plain decoding, in any precision.

Each run is one prompt by one strategy on the bundled models, in one process on the virtual clock. All of them
are computed on one device, on a GPU with CUDA graphs as agents have them. Results are appended to a file, and
runs that are in the file already are not repeated: a call with a limit of minutes is continued by the next
call. The exit code is 1 if exact blocks gave a token that differs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from flowedge.core.request import Failed, Request, Tokens
from flowedge.core.sampling import SamplingParams
from flowedge.drafting.drafter import Drafter
from flowedge.drafting.loading import TargetModel, load_drafter
from flowedge.models.attention.kv_store import KvFormat
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.tokenizer_loading import load_tokenizer
from flowedge.models.cuda_graphs.static_decoding import capture_decoding
from flowedge.models.language_model import LanguageModel
from flowedge.models.lm_head import LMHead
from flowedge.planning.fixed_costs import FixedCosts
from flowedge.planning.in_process import virtual_pipeline
from flowedge.strategies.choice import STRATEGIES
from flowedge.text.tokenizer import StreamDecoder, encode_chat
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


@dataclass(frozen=True)
class ResultKind:
    """What the runs of one line of the report have in common.

    Attributes:
        precision: a key of PRECISIONS.
        exact: whether the blocks are exact.
        device: torch's name of the device that computes.
        graphs: whether small forwards are CUDA graphs.
    """

    precision: str
    exact: bool
    device: str
    graphs: bool

    def of(self, results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the results of this kind. Results without a device are of a CPU."""
        own = asdict(self).items()
        defaults = {"device": "cpu", "graphs": False}
        return [result for result in results if own <= (defaults | result).items()]


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
    """The bundled models of one kind of results: blocks, LM head, drafter and middle model on one device."""

    def __init__(self, kind: ResultKind) -> None:
        precision, exact = PRECISIONS[kind.precision], kind.exact
        self._checkpoint = Checkpoint.open("bundled")
        self._tokenizer = load_tokenizer(self._checkpoint)
        self._head = LMHead.load(self._checkpoint, precision.dtype, kind.device, exact=exact)
        self._blocks = [
            LayerBlock.load(
                self._checkpoint,
                sum(SPLIT[:index]),
                sum(SPLIT[: index + 1]),
                quant=precision.quant,
                dtype=precision.dtype,
                device=kind.device,
                exact=exact,
                kv=precision.kv if exact else "native",
            )
            for index in range(len(SPLIT))
        ]
        for block in self._blocks:
            if block.exact != exact:
                raise SystemExit(f"the blocks are not exact here: {block.inexact_reason}")
        self._drafter = self._bundled_drafter(kind)
        small = Checkpoint(self._checkpoint.directory.parent / "small")
        self._middle = LanguageModel.load(small, self._head.vocab_size, torch.float32, kind.device)
        if kind.graphs:
            for block in (*self._blocks, self._middle.block):
                capture_decoding(block)

    def _bundled_drafter(self, kind: ResultKind) -> Drafter:
        head = LMHead.load(self._checkpoint, device=kind.device)
        target = TargetModel(self._checkpoint, head, self._tokenizer, torch.float32, kind.graphs)
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
            side_models=((self._middle,),) if strategy == "pipespec" else (),
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


def kinds_of(results: Sequence[dict[str, Any]]) -> list[ResultKind]:
    """Return the kinds of the results, in the order of PRECISIONS, plain before exact."""
    devices = sorted({(result.get("device", "cpu"), result.get("graphs", False)) for result in results})
    kinds = [
        ResultKind(precision, exact, device, graphs)
        for precision in PRECISIONS
        for exact in (False, True)
        for device, graphs in devices
    ]
    return [kind for kind in kinds if kind.of(results)]


def report(results: Sequence[dict[str, Any]]) -> str:
    """A table of compared tokens and differences by kind and temperature."""
    lines = []
    for kind in kinds_of(results):
        device = f"{kind.device}, graphs" if kind.graphs else kind.device
        line = [kind.precision, "exact" if kind.exact else "plain", device]
        for sampling in SAMPLINGS:
            at = [r for r in kind.of(results) if r["sampling"] == sampling]
            line += [str(sum(r["tokens"] for r in at)), str(sum(r["differences"] for r in at))]
        lines.append(line)
    columns = [f"{sampling} {what}" for sampling in SAMPLINGS for what in ("tokens", "differences")]
    return table(["precision", "attention", "device", *columns], lines)


def compare(kind: ResultKind, path: Path, *, tokens: int, answer: int, end: float) -> None:
    """Append runs of a kind to the results until there are `tokens` compared tokens.

    Args:
        answer: tokens of an answer.
        end: no case is begun after this time of the monotonic clock.
    """
    prompts = read_prompts()
    runs: ExactRuns | None = None
    for index, sampling in cases(len(prompts)):
        own = kind.of(read_results(path))
        if sum(result["tokens"] for result in own) >= tokens or time.monotonic() > end:
            break
        if (index, sampling, answer) in {(r["prompt"], r["sampling"], r["answer"]) for r in own}:
            continue
        runs = runs or ExactRuns(kind)
        common = {**asdict(kind), "prompt": index, "sampling": sampling, "answer": answer}
        found = list(run_case(runs, prompts[index], SAMPLINGS[sampling], answer))
        lines = [
            json.dumps({**common, "strategy": strategy, "tokens": count, "differences": differences})
            for strategy, count, differences in found
        ]
        with path.open("a") as file:
            file.write("".join(line + os.linesep for line in lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--precision", nargs="*", default=["bf16", "int8", "int4", "nf4"], choices=PRECISIONS)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N")
    parser.add_argument("--without-graphs", action="store_true", help="compute layer by layer on a GPU")
    parser.add_argument("--tokens", type=int, default=20_000, help="least compared tokens of each precision")
    parser.add_argument("--answer", type=int, default=96, help="tokens of an answer")
    parser.add_argument("--minutes", type=float, default=20.0, help="no case is begun after these minutes")
    parser.add_argument("--plain", action="store_true", help="run blocks that are not exact, to compare")
    parser.add_argument("--results", type=Path, default=Path("exact-runs.jsonl"))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    on_gpu = torch.device(arguments.device).type == "cuda"
    if on_gpu and not torch.cuda.is_available():
        parser.error(f"torch finds no GPU for --device {arguments.device}; give cpu")
    graphs, end = on_gpu and not arguments.without_graphs, time.monotonic() + 60 * arguments.minutes
    kinds = [
        ResultKind(precision, not arguments.plain, arguments.device, graphs)
        for precision in arguments.precision
    ]
    for kind in kinds:
        compare(kind, arguments.results, tokens=arguments.tokens, answer=arguments.answer, end=end)
    results = read_results(arguments.results)
    print(report(results))
    sys.exit(any(result["differences"] for kind in kinds if kind.exact for result in kind.of(results)))


if __name__ == "__main__":
    main()
