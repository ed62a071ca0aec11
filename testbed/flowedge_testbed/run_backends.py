"""Where the time of a benchmark comes from, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from flowedge.core.errors import BadRequestError
from flowedge.core.request import Noise, Request, draft_noise
from flowedge.engine.draft_session import DraftNodeSpec
from flowedge.engine.executors import BlockExecutor
from flowedge.engine.jobs import StageExecutor
from flowedge.engine.stage import StageSpec
from flowedge.simulate.in_process import machine_pipeline, virtual_pipeline
from flowedge.simulate.virtual_pipeline import VirtualPipeline
from flowedge_testbed.costs.costs import ProfileCosts
from flowedge_testbed.emulation.emulation import even_split
from flowedge_testbed.live.real import RealBackend
from flowedge_testbed.model_set import ModelSet
from flowedge_testbed.paced.clock import PacedBackend
from flowedge_testbed.plan import Run, Task
from flowedge_testbed.record import RunRecord, record_of
from flowedge_testbed.replay.executors import WIDTH, ReplayDraft, ReplayStage
from flowedge_testbed.replay.path_drafter import PathDrafter
from flowedge_testbed.replay.true_path import PathStore
from flowedge_testbed.trace import Trace, TraceObserver


class RunBackend(Protocol):
    """Carries out the runs of tasks."""

    def measure(self, task: Task) -> Iterator[tuple[Run, RunRecord, Trace]]:
        """Every run of a task with what it took, as it ends."""

    def facts(self) -> dict[str, Any]:
        """What there is to say of everything measured so far, for run.json."""

    def close(self) -> None:
        """Give back what the clock has taken; it measures nothing any more."""


class NoText:
    """A TextStream for whoever wants no text."""

    def push(self, token: int) -> str:  # noqa: ARG002
        return ""

    def flush(self) -> str:
        return ""


class VirtualBackend:
    """Every forward is computed; time is what the profile says."""

    def __init__(self, pair: ModelSet, directory: Path) -> None:  # noqa: ARG002
        self._pair = pair

    def measure(self, task: Task) -> Iterator[tuple[Run, RunRecord, Trace]]:
        for run in task.runs:
            costs = ProfileCosts(run.emulation, run.link_seed)
            observer = TraceObserver(costs)
            yield (
                run,
                *_finish(task, run, self._pair.eos, self._pipeline(run, costs, observer), observer.trace),
            )

    def facts(self) -> dict[str, Any]:
        """See Clock."""
        return {}

    def close(self) -> None:
        """See Clock."""

    def _pipeline(self, run: Run, costs: ProfileCosts, observer: TraceObserver) -> VirtualPipeline:
        pair, stages = self._pair, len(run.emulation.stages)
        layers = pair.checkpoint.config.num_hidden_layers
        if stages > layers:
            raise BadRequestError(
                f"the model of {layers} layers cannot be computed on {stages} stages; use --clock replay"
            )
        split = even_split(layers, stages)
        return virtual_pipeline(
            pair.checkpoint,
            split,
            costs,
            drafter=pair.drafter,
            head=pair.head,
            make_text=NoText,
            prefill_rows=run.prefill_rows,
            observer=observer,
            blocks=pair.blocks(split),
            side_models=pair.middles,
        )


class ReplayBackend:
    """The true path of each prompt is computed once, and each draft; the rest is looked up.

    What middle models predict off the path decides what is drafted next, so they compute what they are sent.
    """

    def __init__(self, pair: ModelSet, directory: Path) -> None:
        self._pair = pair
        self._paths = PathStore(directory / "paths", pair.checkpoint, pair.head, pair.drafter.taps)

    def measure(self, task: Task) -> Iterator[tuple[Run, RunRecord, Trace]]:
        pair = self._pair
        path = self._paths.path(task.prompt, task.sampling, task.max_new_tokens, pair.eos)
        drafters: dict[Noise, PathDrafter] = {}
        try:
            for run in task.runs:
                if run.noise not in drafters:
                    noise = draft_noise(task.sampling, run.noise)
                    drafters[run.noise] = PathDrafter(pair.drafter, path, f"replay-{run.noise}", noise)
                costs = ProfileCosts(run.emulation, run.link_seed)
                observer = TraceObserver(costs)
                pipeline = self._pipeline(run, costs, observer, ReplayDraft(path, drafters[run.noise]))
                yield run, *_finish(task, run, pair.eos, pipeline, observer.trace)
        finally:
            for drafter in drafters.values():
                drafter.close()

    def facts(self) -> dict[str, Any]:
        """See Clock."""
        return {}

    def close(self) -> None:
        """See Clock."""

    def _pipeline(
        self, run: Run, costs: ProfileCosts, observer: TraceObserver, draft_executor: ReplayDraft
    ) -> VirtualPipeline:
        vocab_size = self._pair.head.vocab_size
        stages: list[tuple[StageSpec, StageExecutor]] = [
            (StageSpec(is_first=index == 0, width=WIDTH, vocab_size=vocab_size), ReplayStage())
            for index in range(len(run.emulation.stages))
        ]
        middles = [BlockExecutor(middle.block, model=middle) for middle in self._pair.middles]
        spec = DraftNodeSpec(
            width=WIDTH,
            max_positions=self._pair.max_positions,
            prefill_rows=run.prefill_rows,
            num_stages=len(stages),
            num_routes=1 + len(middles),
            vocab_size=vocab_size,
        )
        return machine_pipeline(
            spec,
            draft_executor,
            stages,
            costs,
            make_text=NoText,
            observer=observer,
            side_stages=[(middle.stage_spec(), middle) for middle in middles],
        )


CLOCKS: dict[str, Callable[[ModelSet, Path], RunBackend]] = {
    "virtual": VirtualBackend,
    "replay": ReplayBackend,
    "paced": PacedBackend,
    "real": RealBackend,
}
LIVE = ("paced", "real")  # clocks of agents at work: one run at a time, and none can be had a second time


def check_clock(name: str) -> None:
    """BadRequestError for a clock that is not there."""
    if name not in CLOCKS:
        raise BadRequestError(f"clock {name!r} is not available here; available are {', '.join(CLOCKS)}")


def make_run_backend(name: str, pair: ModelSet, directory: Path) -> RunBackend:
    """The clock of this name; `directory` is where it may keep things. BadRequestError for an unknown one."""
    check_clock(name)
    return CLOCKS[name](pair, directory)


def _finish(
    task: Task, run: Run, eos: frozenset[int], pipeline: VirtualPipeline, trace: Trace
) -> tuple[RunRecord, Trace]:
    request = Request(
        session=run.key,
        prompt=task.prompt,
        sampling=task.sampling,
        max_new_tokens=task.max_new_tokens,
        eos=eos,
        strategy=run.strategy,
        strategy_options=dict(run.options),
        noise=run.noise,
    )
    outputs = pipeline.generate(request)
    return record_of(request, outputs, trace, run.emulation.watts), trace
