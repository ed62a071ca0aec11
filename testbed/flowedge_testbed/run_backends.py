"""The backends that carry out runs, by the name of their clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from flowedge.core.errors import BadRequestError
from flowedge.core.pipeline_config import LAST_STAGE
from flowedge.core.request import Noise, Request, draft_noise
from flowedge.drafting.lookup.answer_store import OWN_TENANT, AnswerStore
from flowedge.engine.draft_node.draft_node_spec import DraftNodeSpec
from flowedge.engine.executors.block_executor import BlockExecutor
from flowedge.engine.jobs import DraftExecutor, StageExecutor
from flowedge.engine.stage.stage_spec import StageSpec
from flowedge.models.taps import retained_values, tapped_values
from flowedge.planning.in_process import machine_pipeline, virtual_pipeline
from flowedge.planning.split import even_split
from flowedge.planning.virtual_pipeline import DRAFT_NODE, Costs, VirtualPipeline
from flowedge_testbed.emulation.changing_costs import ChangingCosts
from flowedge_testbed.emulation.draft_share import DraftShare
from flowedge_testbed.live.real_backend import RealBackend
from flowedge_testbed.load.load_plan import LoadRun, LoadTask
from flowedge_testbed.load.load_record import LoadObserver, LoadRecord, load_record
from flowedge_testbed.load.virtual_load import VirtualLoad
from flowedge_testbed.model_set import ModelSet
from flowedge_testbed.paced.paced_backend import PacedBackend
from flowedge_testbed.record import RunRecord, record_of
from flowedge_testbed.replay.executors import WIDTH, ReplayDraft, ReplayDrafts, ReplayStage, ReplayStages
from flowedge_testbed.replay.path_drafter import KeptPaths, PathDrafter
from flowedge_testbed.runs import Run, Task
from flowedge_testbed.trace import Trace, TraceObserver


class RunBackend(Protocol):
    """Something that carries out the runs of tasks."""

    def measure(self, task: Task) -> Iterator[tuple[Run, RunRecord, Trace]]:
        """Carry out the runs of a task; yield each with its record and its trace when it has ended."""

    def measure_load(self, task: LoadTask) -> Iterator[tuple[LoadRun, LoadRecord, Trace]]:
        """Carry out the load points of a task; yield each as `measure` does its runs."""

    def facts(self) -> dict[str, Any]:
        """Return facts about everything measured so far, for run.json."""

    def close(self) -> None:
        """Release processes and pipelines. Nothing can be measured afterwards."""


class NoText:
    """A TextStream that gives no text."""

    def push(self, token: int) -> str:  # noqa: ARG002
        return ""

    def flush(self) -> str:
        return ""

    def show(self, tokens: frozenset[int]) -> None:
        pass


class VirtualBackend:
    """Runs of which every forward is computed. Time comes from the profile."""

    def __init__(self, models: ModelSet, directory: Path) -> None:  # noqa: ARG002
        self._models = models

    def measure(self, task: Task) -> Iterator[tuple[Run, RunRecord, Trace]]:
        for run in task.runs:
            costs = run.costs()
            observer = TraceObserver(costs)
            yield (
                run,
                *_finish(
                    task,
                    run,
                    self._models.eos,
                    self._pipeline(run, costs, observer, task.answers()),
                    observer.trace,
                ),
            )

    def measure_load(self, task: LoadTask) -> Iterator[tuple[LoadRun, LoadRecord, Trace]]:
        for load in task.runs:
            run = load.run
            costs = run.costs()
            observer = LoadObserver(costs)
            pipeline = self._pipeline(run, costs, observer)

            def opened(number: int, load: LoadRun = load, observer: LoadObserver = observer) -> Request:
                request = load.request(task.requests.request(number), self._models.eos)
                observer.know(request.session, number)
                return request

            yield load, *_finish_load(task, load, pipeline, observer.trace, opened)

    def facts(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        pass

    def _pipeline(
        self, run: Run, costs: Costs, observer: TraceObserver, answers: AnswerStore | None = None
    ) -> VirtualPipeline:
        models, stages = self._models, len(run.emulation.stages)
        layers = models.checkpoint.config.num_hidden_layers
        if stages > layers:
            raise BadRequestError(
                f"the model of {layers} layers cannot be computed on {stages} stages; use --clock replay"
            )
        split = tuple(even_split(layers, stages, larger_first=True))
        pipeline = virtual_pipeline(
            models.checkpoint,
            split,
            costs,
            drafter=models.drafter_for(DraftShare.of(run.emulation)),
            head=models.head,
            make_text=NoText,
            prefill_rows=run.prefill_rows,
            observer=observer,
            blocks=models.blocks(split),
            side_models=models.middle_parts(run.emulation.side_counts),
            verification=run.emulation.verification,
            express_fault=run.system.express_fault,
            driver=run.driver,
            answers=answers,
        )
        return _timed(pipeline, costs)


class ReplayBackend:
    """Runs that share what is computed: each true path and each draft layer once, everything else looked up.

    Middle models compute what they are sent: their predictions off the true path decide what is drafted next.
    """

    def __init__(self, models: ModelSet, directory: Path) -> None:
        self._models = models
        self._paths = models.path_source(directory)

    def measure(self, task: Task) -> Iterator[tuple[Run, RunRecord, Trace]]:
        models = self._models
        path = self._paths.path(task.prompt, task.sampling, task.max_new_tokens, models.eos)
        drafters: dict[tuple[Noise, DraftShare], PathDrafter] = {}
        answers = task.answers()
        earlier = None if answers is None else answers.of(OWN_TENANT)
        try:
            for run in task.runs:
                kind = (run.noise, DraftShare.of(run.emulation))
                if kind not in drafters:
                    noise, drafter = draft_noise(task.sampling, run.noise), models.drafter_for(kind[1])
                    drafters[kind] = PathDrafter(drafter, path, f"replay-{run.noise}", noise, earlier)
                costs = run.costs()
                observer = TraceObserver(costs)
                replayed = ReplayDraft(path, drafters[kind])
                pipeline = self._pipeline(run, costs, observer, partial(ReplayStage, path), replayed)
                yield run, *_finish(task, run, models.eos, pipeline, observer.trace)
        finally:
            for path_drafter in drafters.values():
                path_drafter.close()

    def measure_load(self, task: LoadTask) -> Iterator[tuple[LoadRun, LoadRecord, Trace]]:
        kept = KeptPaths(self._paths, self._models.drafter_for)
        try:
            for load in task.runs:
                yield load, *self._load(task, load, kept)
        finally:
            kept.close()

    def _load(self, task: LoadTask, load: LoadRun, kept: KeptPaths) -> tuple[LoadRecord, Trace]:
        run = load.run
        costs = run.costs()
        observer, drafts = LoadObserver(costs), ReplayDrafts()
        stages: list[ReplayStages] = []

        def make_stage(taps: int) -> ReplayStages:
            stages.append(ReplayStages(taps))
            return stages[-1]

        pipeline = self._pipeline(run, costs, observer, make_stage, drafts)

        def opened(number: int) -> Request:
            request = load.request(task.requests.request(number), self._models.eos)
            observer.know(request.session, number)
            path, drafter = kept.of(request, DraftShare.of(run.emulation))
            for stage in stages:
                stage.opened(request.session, path)
            drafts.opened(request.session, path, drafter)
            return request

        return _finish_load(task, load, pipeline, observer.trace, opened)

    def facts(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        pass

    def _pipeline(
        self,
        run: Run,
        costs: Costs,
        observer: TraceObserver,
        make_stage: Callable[[int], StageExecutor],
        draft: DraftExecutor,
    ) -> VirtualPipeline:
        """Return the pipeline of a run; `make_stage` makes a stage that taps so many values of a row."""
        vocab_size, emulation = self._models.facts.vocab_size, run.emulation
        taps = emulation.taps if emulation.keeps_taps else ()
        widths = [tapped_values(WIDTH, taps, *block) for block in emulation.blocks]
        specs = [
            StageSpec(
                is_first=index == 0,
                width=before,
                added_width=behind - before,
                tapped_before=before - WIDTH,
                vocab_size=vocab_size,
            )
            for index, (before, behind) in enumerate(widths)
        ]
        specs[-1] = replace(specs[-1], draws=emulation.verification == LAST_STAGE)
        stages: list[tuple[StageSpec, StageExecutor]] = [
            (spec, make_stage(spec.added_width)) for spec in specs
        ]
        middles = [
            [BlockExecutor(part.block, model=part) for part in model]
            for model in self._models.middle_parts(emulation.side_counts)
        ]
        spec = DraftNodeSpec(
            width=widths[-1][1],
            kept_taps=retained_values(WIDTH, taps, emulation.keeping_blocks),
            max_positions=self._models.facts.max_positions,
            prefill_rows=run.prefill_rows,
            num_stages=len(stages),
            num_routes=1 + len(middles),
            vocab_size=vocab_size,
            needs_features=emulation.needs_features,
            verification=emulation.verification,
            one_host=emulation.one_host,
            looks_up=emulation.looks_up,
        )
        pipeline = machine_pipeline(
            spec,
            draft,
            stages,
            costs,
            make_text=NoText,
            observer=observer,
            side_stages=[[(part.stage_spec(), part) for part in model] for model in middles],
            express_fault=run.system.express_fault,
            driver=run.driver,
        )
        return _timed(pipeline, costs)


BACKENDS: dict[str, Callable[[ModelSet, Path], RunBackend]] = {
    "virtual": VirtualBackend,
    "replay": ReplayBackend,
    "paced": PacedBackend,
    "real": RealBackend,
}
LIVE = ("paced", "real")  # clocks of real agents: one run at a time, which cannot be repeated exactly


def check_clock(name: str) -> None:
    """Check that there is a clock of this name.

    Raises:
        BadRequestError: when there is none.
    """
    if name not in BACKENDS:
        raise BadRequestError(f"there is no clock {name!r}; use {', '.join(BACKENDS)}")


def make_run_backend(name: str, models: ModelSet, directory: Path) -> RunBackend:
    """Return the backend of the clock `name`; `directory` is where it may store true paths.

    Raises:
        BadRequestError: when there is no clock of this name.
    """
    check_clock(name)
    return BACKENDS[name](models, directory)


def _timed(pipeline: VirtualPipeline, costs: Costs) -> VirtualPipeline:
    """Return a new pipeline, whose clock says when the events of its costs happen."""
    if isinstance(costs, ChangingCosts):
        costs.now = lambda: pipeline.now
    return pipeline


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
    emulation = run.emulation
    return record_of(request, outputs, trace, emulation.watts, emulation.side_counts), trace


def _finish_load(
    task: LoadTask,
    load: LoadRun,
    pipeline: VirtualPipeline,
    trace: Trace,
    opened: Callable[[int], Request],
) -> tuple[LoadRecord, Trace]:
    clients = VirtualLoad(pipeline, load.arrivals(task.requests), opened)
    clients.run(load.counted)
    places = range(DRAFT_NODE, load.run.setup.num_stages)
    return load_record(clients.answers, load.counted, trace, places), trace
