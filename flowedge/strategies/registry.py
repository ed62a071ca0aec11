"""The table of strategies by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flowedge.core.errors import BadRequestError
from flowedge.core.request import Request
from flowedge.strategies.auto.auto import Auto
from flowedge.strategies.auto.load import PRIORITY_WEIGHTS
from flowedge.strategies.auto.measured import MeasuredPipeline
from flowedge.strategies.autoregressive import Autoregressive
from flowedge.strategies.base import Strategy
from flowedge.strategies.choice import STRATEGIES, checked_strategy
from flowedge.strategies.flowspec import FlowSpec
from flowedge.strategies.published.flowspec_paper import FlowSpecNoSBD, FlowSpecPaper
from flowedge.strategies.published.naive_pp import NaivePP
from flowedge.strategies.published.pipeinfer import PipeInfer
from flowedge.strategies.published.pipespec import PipeSpec, PipeSpecSync
from flowedge.strategies.published.pruned_pp import PrunedPP
from flowedge.strategies.published.specpipe_db import SpecPipeDB
from flowedge.strategies.published.stepwise import LevelBatchSettings, PipeDec, SpecPipe, SpecPipeSettings
from flowedge.strategies.settings import (
    AutoSettings,
    HierarchySettings,
    LevelSettings,
    LookaheadSettings,
    MicroBatchSettings,
    TreeSettings,
)


def _autoregressive(options: Mapping[str, float]) -> Strategy:
    if options:
        raise BadRequestError(f"autoregressive has no options; leave out {', '.join(sorted(options))}")
    return Autoregressive()


_FACTORIES: dict[str, Callable[[Mapping[str, float]], Strategy]] = {
    Autoregressive.name: _autoregressive,
    NaivePP.name: lambda options: NaivePP(TreeSettings.from_options(options)),
    PrunedPP.name: lambda options: PrunedPP(TreeSettings.from_options(options)),
    FlowSpecNoSBD.name: lambda options: FlowSpecNoSBD(TreeSettings.from_options(options)),
    FlowSpecPaper.name: lambda options: FlowSpecPaper(TreeSettings.from_options(options)),
    FlowSpec.name: lambda options: FlowSpec(TreeSettings.from_options(options)),
    Auto.name: lambda options: Auto(AutoSettings.from_options(options)),
    PipeDec.name: lambda options: PipeDec(LevelSettings.from_options(options)),
    SpecPipe.name: lambda options: SpecPipe(SpecPipeSettings.from_options(options)),
    SpecPipeDB.name: lambda options: SpecPipeDB(LevelBatchSettings.from_options(options)),
    PipeInfer.name: lambda options: PipeInfer(MicroBatchSettings.from_options(options)),
    PipeSpec.name: lambda options: PipeSpec(HierarchySettings.from_options(options)),
    PipeSpecSync.name: lambda options: PipeSpecSync(LookaheadSettings.from_options(options)),
}
assert tuple(_FACTORIES) == STRATEGIES, "choice.py names each strategy"


def make_strategy(name: str, options: Mapping[str, float]) -> Strategy:
    """Return a new strategy for one session.

    Raises:
        BadRequestError: when the name or an option is unknown, or an option is out of range.
    """
    return _FACTORIES[checked_strategy(name)](options)


def session_strategy(request: Request, measured: MeasuredPipeline) -> Strategy:
    """Return a new strategy for a session of a pipeline, whose sessions share `measured`.

    Raises:
        BadRequestError: as make_strategy does.
    """
    options = request.strategy_options
    match request.strategy:
        case Auto.name:
            return Auto(
                AutoSettings.from_options(options),
                measured,
                greedy=request.sampling.temperature == 0,
                weight=PRIORITY_WEIGHTS[request.priority],
            )
        case SpecPipeDB.name:
            return SpecPipeDB(LevelBatchSettings.from_options(options), measured.steps)
        case name:
            return make_strategy(name, options)
