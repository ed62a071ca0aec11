"""Compare live runs of a model on this machine with the simulation of it.

Agents of this machine answer prompts by each method. In each round the machine is measured anew, each method
answers the prompts live, and the same requests are replayed on the measured times. The table has tokens/s of
both and their ratio, each the median of the rounds: a machine that is busy with other things differs from
minute to minute.

With --llamacpp, llama.cpp's server answers the same prompts in each round, by each way to look drafts up
that it has, in one process with all cores.

Run: python -m testbed.tools.live_truth [--stages 1,2,4] [--out DIR]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from flowedge.cli.options import BUNDLED
from flowedge.cli.prompts import read_message_lines
from flowedge.core.request import NOISES, Noise
from flowedge.core.sampling import SamplingParams
from flowedge.device.compute import CPU, find_compute, negotiate_dtype
from flowedge.drafting.choice import NGRAM
from flowedge.models.host.payloads import torch_dtype
from flowedge.planning.profile.device import DeviceProfile
from flowedge.planning.profile.measurement import MeasureOptions
from flowedge.planning.profile.model import ModelProfile, NGramSize
from flowedge.planning.profile.pipeline import PipelineProfile
from flowedge.planning.profile.profile_files import write_documents
from flowedge.planning.split import even_split
from flowedge.strategies.base import HierarchicalStrategy
from flowedge.strategies.choice import STRATEGIES
from flowedge.strategies.registry import make_strategy
from flowedge_testbed.model_set import ModelSet
from flowedge_testbed.profiles import library
from flowedge_testbed.record import RunRecord
from flowedge_testbed.report.markdown import table
from flowedge_testbed.run_backends import ReplayBackend
from flowedge_testbed.runs import Run, Task
from testbed.tools.live_truth.live_pipeline import LivePipeline, live_pipeline
from testbed.tools.live_truth.llama_server import LlamaServer, llama_servers
from testbed.tools.live_truth.machine_profile import BASE, LOOPBACK, machine_profile

PROMPTS = (
    "Write a Python function that counts the vowels in a text.",
    "Write a JavaScript function that reverses a string.",
    "Write a function in Python that returns the largest number of a list.",
)
METHODS = [name for name in STRATEGIES if not isinstance(make_strategy(name, {}), HierarchicalStrategy)]
PREFILL_ROWS = 128


@dataclass(frozen=True)
class Requests:
    """What every method is asked for."""

    prompts: Sequence[str]
    methods: Sequence[str]
    max_new_tokens: int
    temperature: float
    noise: Noise

    def tasks(self, models: ModelSet, emulation: PipelineProfile) -> list[Task]:
        """Return a task for each prompt, with a run of each method."""
        runs = tuple(Run(name, name, (), emulation, 0, PREFILL_ROWS, self.noise) for name in self.methods)
        sampling = SamplingParams(temperature=self.temperature, seed=1)
        return [Task(models.encode(prompt), sampling, self.max_new_tokens, runs) for prompt in self.prompts]


@dataclass(frozen=True)
class Measured:
    """One method in one round: tokens/s after the first token of each answer.

    Attributes:
        stages: 0 for llama.cpp.
        simulated: no number where nothing is simulated; same_tokens: whether both gave the same answers.
    """

    stages: int
    method: str
    live: float
    simulated: float = math.nan
    same_tokens: bool = True

    @property
    def ratio(self) -> float:
        return self.live / self.simulated


def emulate(
    device: DeviceProfile, model: ModelProfile, drafters: Sequence[str], stages: int
) -> PipelineProfile:
    """Return the pipeline of `live_pipeline` as the profile describes it."""
    head = model.drafters["eagle"]
    joined = tuple(NGramSize(kind="ngram") if name == NGRAM else head for name in drafters)
    return PipelineProfile(
        model=model,
        quant="none",
        drafter=head,
        drafting=() if joined == (head,) else joined,
        draft_node=device,
        stages=(device,) * stages,
        links=(LOOPBACK,) * (stages + 1),
        split=tuple(even_split(model.layers, stages, larger_first=True)),
    )


def tokens_per_s(records: Sequence[RunRecord]) -> float:
    """Return the tokens a second after the first tokens of several answers."""
    return sum(each.new_tokens - 1 for each in records) / sum(each.decode_s for each in records)


def measure_round(
    pipeline: LivePipeline, replay: ReplayBackend | None, tasks: Sequence[Task], stages: int
) -> Iterator[Measured]:
    """Carry out the tasks by agents, and by replay if it is given; yield what each method gave."""
    replayed = [[record for _, record, _ in replay.measure(task)] for task in tasks] if replay else []
    for place, run in enumerate(tasks[0].runs):
        live = [pipeline.run(task, task.runs[place]) for task in tasks]
        if not replayed:
            yield Measured(stages, run.strategy, tokens_per_s(live))
            continue
        simulated = [records[place] for records in replayed]
        same = [each.output for each in live] == [each.output for each in simulated]
        yield Measured(stages, run.strategy, tokens_per_s(live), tokens_per_s(simulated), same)


def report(found: Sequence[Measured]) -> str:
    """Return a Markdown table with a line for each number of stages and method."""
    lines = []
    for stages, method in dict.fromkeys((each.stages, each.method) for each in found):
        rounds = [each for each in found if (each.stages, each.method) == (stages, method)]
        ratios = [each.ratio for each in rounds]
        live = f"{statistics.median(each.live for each in rounds):.0f}"
        if math.isnan(rounds[0].simulated):
            lines.append([str(stages or ""), method, live, "", "", ""])
            continue
        lines.append(
            [
                str(stages),
                method if all(each.same_tokens for each in rounds) else f"{method} (other tokens)",
                live,
                f"{statistics.median(each.simulated for each in rounds):.0f}",
                f"{statistics.median(ratios):.2f}",
                f"{min(ratios):.2f} to {max(ratios):.2f}",
            ]
        )
    return table(["stages", "method", "live, tokens/s", "simulated", "ratio", "of the rounds"], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default=BUNDLED)
    parser.add_argument(
        "--drafter", nargs="+", default=[BUNDLED], help=f"{NGRAM}, an EAGLE-1/2 head, or both, the head first"
    )
    parser.add_argument(
        "--data", type=Path, nargs="*", default=[], help="files of prompts, in place of three"
    )
    parser.add_argument("--samples", type=int, default=3, help="prompts of each file")
    parser.add_argument("--llamacpp", type=Path, help="llama-server, to compare with")
    parser.add_argument("--stages", default="1,2,4", help="numbers of stages, separated by commas")
    parser.add_argument("--methods", default=",".join(METHODS), help="separated by commas")
    parser.add_argument("--tokens", type=int, default=128, help="most tokens of an answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--live-only", action="store_true", help="simulate nothing")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--noise", choices=NOISES, default="shared")
    parser.add_argument("--out", type=Path, help="directory for the last profile and the results")
    arguments = parser.parse_args()
    prompts = [
        line for file in arguments.data for (line,) in read_message_lines(file, 1)[: arguments.samples]
    ]
    requests = Requests(
        prompts or PROMPTS,
        arguments.methods.split(","),
        arguments.tokens,
        arguments.temperature,
        arguments.noise,
    )
    dtype = negotiate_dtype({CPU: find_compute(CPU).choose("none").dtypes})
    model_name, drafters = arguments.model, tuple(arguments.drafter)
    models = ModelSet.load(model_name, drafters, dtype=torch_dtype(dtype))
    timed = tuple(name for name in drafters if name != NGRAM)
    options = MeasureOptions.model_validate({"model": model_name, "drafters": timed, "dtype": dtype})
    found: list[Measured] = []
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        replay = None if arguments.live_only else ReplayBackend(models, Path(directory))
        device, model = library.device(BASE), library.model(BUNDLED)
        servers: list[LlamaServer] = []
        if arguments.llamacpp is not None:
            cores = len(os.sched_getaffinity(0))
            servers = stack.enter_context(llama_servers(arguments.llamacpp, model_name, cores))
        for stages in map(int, arguments.stages.split(",")):
            with live_pipeline(model_name, drafters, stages, dtype) as pipeline:
                for number in range(arguments.rounds):
                    if replay is not None:
                        device, model = machine_profile(options)
                    tasks = requests.tasks(models, emulate(device, model, drafters, stages))
                    if number == 0:  # the first answers take longer
                        list(measure_round(pipeline, replay, tasks[:1], stages))
                    found += measure_round(pipeline, replay, tasks, stages)
                    found += (Measured(0, each.method, each.tokens_per_s(tasks)) for each in servers)
                    print(f"{stages} stages, round {number + 1} of {arguments.rounds}", file=sys.stderr)
    title = f"{model_name} drafted by {' and '.join(drafters)} in {dtype} on {os.cpu_count()} cores"
    print(f"{title}, medians of {arguments.rounds} rounds")
    print(report(found))
    if arguments.out is not None:
        write_documents(arguments.out, {"device.yaml": device.model_dump(exclude_none=True)})
        results = json.dumps([asdict(each) for each in found], indent=1)
        (arguments.out / "results.json").write_text(results, encoding="utf-8")


if __name__ == "__main__":
    main()
