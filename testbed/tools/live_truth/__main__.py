"""Compare live runs of a model on this machine with the simulation of it.

Agents of this machine answer prompts by each method. In each round the machine is measured anew, each method
answers the prompts live, and the same requests are replayed on the measured times. The table has tokens/s of
both and their ratio, each the median of the rounds: a machine that is busy with other things differs from
minute to minute.

Run: python -m testbed.tools.live_truth [--stages 1,2,4] [--out DIR]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from flowedge.cli.options import BUNDLED
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
from flowedge_testbed.record import RunRecord
from flowedge_testbed.report.markdown import table
from flowedge_testbed.run_backends import ReplayBackend
from flowedge_testbed.runs import Run, Task
from testbed.tools.live_truth.live_pipeline import LivePipeline, live_pipeline
from testbed.tools.live_truth.machine_profile import LOOPBACK, machine_profile

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

    methods: Sequence[str]
    max_new_tokens: int
    temperature: float
    noise: Noise

    def tasks(self, models: ModelSet, emulation: PipelineProfile) -> list[Task]:
        """Return a task for each prompt, with a run of each method."""
        runs = tuple(Run(name, name, (), emulation, 0, PREFILL_ROWS, self.noise) for name in self.methods)
        sampling = SamplingParams(temperature=self.temperature, seed=1)
        return [Task(models.encode(prompt), sampling, self.max_new_tokens, runs) for prompt in PROMPTS]


@dataclass(frozen=True)
class Measured:
    """One method in one round: tokens/s after the first token of each answer.

    Attributes:
        same_tokens: whether both gave the same answers.
    """

    stages: int
    method: str
    live: float
    simulated: float
    same_tokens: bool

    @property
    def ratio(self) -> float:
        return self.live / self.simulated


def emulate(device: DeviceProfile, model: ModelProfile, drafter: str, stages: int) -> PipelineProfile:
    """Return the pipeline of `live_pipeline` as the profile describes it."""
    return PipelineProfile(
        model=model,
        quant="none",
        drafter=model.drafters["eagle"],
        drafting=(NGramSize(kind="ngram"),) if drafter == NGRAM else (),
        draft_node=device,
        stages=(device,) * stages,
        links=(LOOPBACK,) * (stages + 1),
        split=tuple(even_split(model.layers, stages, larger_first=True)),
    )


def tokens_per_s(records: Sequence[RunRecord]) -> float:
    """Return the tokens a second after the first tokens of several answers."""
    return sum(each.new_tokens - 1 for each in records) / sum(each.decode_s for each in records)


def measure_round(
    pipeline: LivePipeline, replay: ReplayBackend, tasks: Sequence[Task], stages: int
) -> Iterator[Measured]:
    """Carry out the tasks by agents and by replay; yield what each method gave."""
    replayed = [[record for _, record, _ in replay.measure(task)] for task in tasks]
    for place, run in enumerate(tasks[0].runs):
        live = [pipeline.run(task, task.runs[place]) for task in tasks]
        simulated = [records[place] for records in replayed]
        same = [each.output for each in live] == [each.output for each in simulated]
        yield Measured(stages, run.strategy, tokens_per_s(live), tokens_per_s(simulated), same)


def report(found: Sequence[Measured]) -> str:
    """Return a Markdown table with a line for each number of stages and method."""
    lines = []
    for stages, method in dict.fromkeys((each.stages, each.method) for each in found):
        rounds = [each for each in found if (each.stages, each.method) == (stages, method)]
        ratios = [each.ratio for each in rounds]
        lines.append(
            [
                str(stages),
                method if all(each.same_tokens for each in rounds) else f"{method} (other tokens)",
                f"{statistics.median(each.live for each in rounds):.0f}",
                f"{statistics.median(each.simulated for each in rounds):.0f}",
                f"{statistics.median(ratios):.2f}",
                f"{min(ratios):.2f} to {max(ratios):.2f}",
            ]
        )
    return table(["stages", "method", "live, tokens/s", "simulated", "ratio", "of the rounds"], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default=BUNDLED)
    parser.add_argument("--drafter", choices=[BUNDLED, NGRAM], default=BUNDLED, help="ngram for other models")
    parser.add_argument("--stages", default="1,2,4", help="numbers of stages, separated by commas")
    parser.add_argument("--methods", default=",".join(METHODS), help="separated by commas")
    parser.add_argument("--tokens", type=int, default=128, help="most tokens of an answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--noise", choices=NOISES, default="shared")
    parser.add_argument("--out", type=Path, help="directory for the last profile and the results")
    arguments = parser.parse_args()
    requests = Requests(
        arguments.methods.split(","), arguments.tokens, arguments.temperature, arguments.noise
    )
    dtype = negotiate_dtype({CPU: find_compute(CPU).choose("none").dtypes})
    model_name, drafter = arguments.model, arguments.drafter
    models = ModelSet.load(model_name, (drafter,), dtype=torch_dtype(dtype))
    timed = () if drafter == NGRAM else (drafter,)
    options = MeasureOptions.model_validate({"model": model_name, "drafters": timed, "dtype": dtype})
    found: list[Measured] = []
    with tempfile.TemporaryDirectory() as directory:
        replay = ReplayBackend(models, Path(directory))
        for stages in map(int, arguments.stages.split(",")):
            with live_pipeline(model_name, drafter, stages, dtype) as pipeline:
                for number in range(arguments.rounds):
                    device, model = machine_profile(options)
                    tasks = requests.tasks(models, emulate(device, model, drafter, stages))
                    if number == 0:
                        list(measure_round(pipeline, replay, tasks, stages))  # the first answers take longer
                    found += measure_round(pipeline, replay, tasks, stages)
    title = f"{model_name} drafted by {drafter} in {dtype} on {os.cpu_count()} cores"
    print(f"{title}, medians of {arguments.rounds} rounds")
    print(report(found))
    if arguments.out is not None:
        write_documents(arguments.out, {"device.yaml": device.model_dump(exclude_none=True)})
        results = json.dumps([asdict(each) for each in found], indent=1)
        (arguments.out / "results.json").write_text(results, encoding="utf-8")


if __name__ == "__main__":
    main()
