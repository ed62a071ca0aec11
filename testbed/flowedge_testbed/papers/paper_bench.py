"""All experiments of a paper, and the report that has their figures above the paper's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from flowedge_testbed.bench.benchmark import run_bench
from flowedge_testbed.bench.options import BenchOptions, overridden
from flowedge_testbed.bench.progress import BenchProgress
from flowedge_testbed.bench.workers import load_pair
from flowedge_testbed.model_set import ModelSet
from flowedge_testbed.papers.comparison import ComparedSeries, columns, compare, comparison_table, entries_of
from flowedge_testbed.papers.declaration import Experiment, read_paper
from flowedge_testbed.report.entries import Entry
from flowedge_testbed.scenario import Scenario, shipped_scenarios


@dataclass(frozen=True)
class MeasuredScenario:
    """A benchmark that was run for one experiment or several.

    Attributes:
        report: its path within the directory of the paper; command: the command that gives it again.
    """

    entries: list[Entry]
    report: Path
    command: str


@dataclass(frozen=True)
class PaperBench:
    """Runs the experiments of a paper.

    Attributes:
        options: of every scenario; its file and its directory are replaced. Scenarios have folders in the
            directory of these options, which has the runs and the true paths of all of them.
        loaded: models by the pair that a scenario names, as JSON.
    """

    options: BenchOptions
    progress: BenchProgress
    loaded: dict[str, ModelSet] = field(default_factory=dict)

    def run(self, named: str) -> tuple[Path, str]:
        """Run the experiments of a paper; return the path of the report, and its text.

        Experiments of the same scenario are measured once. The report is written anew after each experiment.
        Runs that are finished are used again.

        Args:
            named: a paper, or an experiment of it, such as flowspec/table1.

        Raises:
            BadRequestError: when there is no such paper or experiment, or an option is wrong.
        """
        name, _, only = named.partition("/")
        paper = read_paper(name)
        experiments = paper.chosen(only)
        self.options.out.mkdir(parents=True, exist_ok=True)
        report, text, parts = self.options.out / "report.md", "", [f"# {paper.title}", self._introduction]
        measured: dict[str, MeasuredScenario] = {}
        for each, experiment in experiments.items():
            scenario = experiment.scenario
            if scenario is not None and scenario not in measured:
                alike = [other for other in experiments.values() if other.scenario == scenario]
                measured[scenario] = self._measure(scenario, alike)
            parts += self._part(each, experiment, None if scenario is None else measured[scenario])
            text = "\n\n".join(parts) + "\n"
            report.write_text(text, encoding="utf-8")
        return report, text

    @property
    def _introduction(self) -> str:
        said = (
            "Each experiment of the paper: the figures of this run, and beneath them the paper's in italics. "
            "Here devices are emulated; the report of a scenario names its devices and the models that "
            "supplied the tokens."
        )
        if not self.options.quick:
            return said
        return (
            f"{said} With --quick, datasets are single prompts and answers are short: these are no results."
        )

    def _measure(self, named: str, experiments: Sequence[Experiment]) -> MeasuredScenario:
        """Run a scenario for the experiments that it measures."""
        scenario, out = experiments[0].read_scenario(), self.options.out / named
        self.progress.say(f"{named}: {scenario.title}")
        options = replace(
            smaller(self.options, scenario, experiments),
            scenario=shipped_scenarios()[named],
            out=out,
            run_directory=self.options.out,
        )
        report = run_bench(options, self.progress, self._models(overridden(scenario, options)))
        results = json.loads((out / "results.json").read_text(encoding="utf-8"))
        return MeasuredScenario(entries_of(results), report.relative_to(self.options.out), options.command)

    def _models(self, scenario: Scenario) -> ModelSet:
        pair = scenario.pair.model_dump_json()
        if pair not in self.loaded:
            self.loaded[pair] = load_pair(scenario.pair)
        return self.loaded[pair]

    def _part(self, name: str, experiment: Experiment, measured: MeasuredScenario | None) -> list[str]:
        """Return the paragraphs of the report about an experiment."""
        compared = compare(experiment, [] if measured is None else measured.entries)
        parts = [f"## {name}: {experiment.shows}"]
        if measured is None:
            return [*parts, f"Not run. {experiment.reason}", *_table(experiment, compared)]
        return [
            *parts,
            *([experiment.remark] if experiment.remark else []),
            *_table(experiment, compared),
            *self._picture(name, experiment, compared),
            f"[The whole report]({measured.report}): `{measured.command}`",
        ]

    def _picture(self, name: str, experiment: Experiment, compared: Sequence[ComparedSeries]) -> list[str]:
        """Draw the comparison; return the picture for the report, or nothing if there is no value to draw."""
        # matplotlib takes a second to import.
        from flowedge_testbed.papers.comparison_plot import draw_comparison  # noqa: PLC0415
        from flowedge_testbed.report.plots.style import Heading, save  # noqa: PLC0415

        if not columns(compared):
            return []
        heading = Heading(f"{name}: {experiment.shows}", ("filled: here; hollow: in the paper",))
        save(draw_comparison(experiment, compared, heading), self.options.out / f"{name}.png")
        return [f"![{experiment.shows}: here and in the paper]({name}.png)"]


def _table(experiment: Experiment, compared: Sequence[ComparedSeries]) -> list[str]:
    return [comparison_table(experiment, compared)] * bool(compared)


def smaller(options: BenchOptions, scenario: Scenario, experiments: Sequence[Experiment]) -> BenchOptions:
    """Return the options of a quick run: one prompt of a dataset, and only the methods that are compared.

    What was asked for stays. A load keeps its number of prompts, of which each client needs one.
    """
    if not options.quick:
        return options
    series = [series for experiment in experiments for series in experiment.series.values()]
    plain = all(
        fields.get("noise", "plain") == "plain" for each in series for fields in (each.ours, each.over)
    )
    compared = {method for experiment in experiments for method in experiment.methods}
    return replace(
        options,
        strategies=options.strategies or tuple(name for name in scenario.strategies if name in compared),
        noise=options.noise or (("plain",) if plain else None),
        samples=options.samples or (1 if scenario.load is None else None),
    )
