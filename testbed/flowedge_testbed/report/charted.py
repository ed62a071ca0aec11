"""The choice of runs that a report draws a Gantt chart of."""

from __future__ import annotations

from dataclasses import replace

from flowedge_testbed.plan import Plan, Run, Task
from flowedge_testbed.scenario import Plot, Scenario

DEFAULT_PLOTS: tuple[Plot, ...] = ("bars", "gantt")
GANTT_METHODS = ("naive_pp", "flowspec_paper", "flowspec", "auto")


def plots_of(scenario: Scenario) -> tuple[Plot, ...]:
    """Return the plots of a scenario's report."""
    return tuple(scenario.report.plots) or DEFAULT_PLOTS


def charted(scenario: Scenario, plan: Plan) -> Task:
    """Return the first task with its first run by each method that has a chart, maybe none."""
    methods = [name for name in GANTT_METHODS if name in scenario.strategies] or scenario.strategies[-1:]
    task = plan.tasks[0]
    runs: dict[str, Run] = {}
    for run in task.runs:
        if run.strategy in methods and "gantt" in plots_of(scenario):
            runs.setdefault(run.strategy, run)
    return replace(task, runs=tuple(runs.values()))
