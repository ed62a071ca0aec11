"""All experiments of a paper, and the report that has their figures above the paper's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from flowedge_testbed.bench import BenchOptions, BenchProgress, load_models, overridden, run_bench
from flowedge_testbed.model_set import ModelSet
from flowedge_testbed.papers.comparison import (
    Compared,
    columns,
    compare,
    comparison_table,
    entries_of,
)
from flowedge_testbed.papers.declaration import Experiment, read_paper
from flowedge_testbed.scenario import Scenario, read_scenario, shipped_scenarios

PICTURE = "comparison.png"


@dataclass(frozen=True)
class PaperBench:
    """What the experiments of a paper have in common.

    Attributes:
        options: of every experiment; the scenario and the directory are replaced. Experiments are in folders
            of its directory, which has the runs and the true paths of all of them.
        loaded: models by the pair that a scenario names, as JSON.
    """

    options: BenchOptions
    progress: BenchProgress
    loaded: dict[str, ModelSet] = field(default_factory=dict)

    def run(self, named: str) -> tuple[Path, str]:
        """Run the experiments of a paper; return the path of the report, and its text.

        The report is written anew after each experiment. Runs that are finished are used again.

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
        for each, experiment in experiments.items():
            parts.append(self._part(each, experiment))
            text = "\n\n".join(parts) + "\n"
            report.write_text(text, encoding="utf-8")
        return report, text

    @property
    def _introduction(self) -> str:
        said = (
            "Each experiment of the paper: the figures of this run, and beneath them the paper's in italics. "
            "Here devices are emulated; the report of an experiment names its devices and the models that "
            "supplied the tokens."
        )
        if not self.options.quick:
            return said
        return (
            f"{said} With --quick, datasets are single prompts and answers are short: these are no results."
        )

    def _part(self, name: str, experiment: Experiment) -> str:
        """Run an experiment, and return the part of the report about it."""
        title = f"## {name}: {experiment.shows}"
        if experiment.scenario is None:
            published = [comparison_table(experiment, compare(experiment, []))] * bool(experiment.series)
            return "\n\n".join([title, f"Not run. {experiment.reason}", *published])
        out, file = self.options.out / name, shipped_scenarios()[experiment.scenario]
        self.progress.say(f"{name}: {experiment.shows}")
        options = replace(
            smaller(self.options, read_scenario(file), experiment),
            scenario=file,
            out=out,
            run_directory=self.options.out,
        )
        report = run_bench(options, self.progress, self._models(overridden(read_scenario(file), options)))
        results = json.loads((out / "results.json").read_text(encoding="utf-8"))
        compared = compare(experiment, entries_of(results))
        picture = self._draw(name, experiment, compared)
        return "\n\n".join(
            [
                title,
                *([experiment.remark] if experiment.remark else []),
                comparison_table(experiment, compared),
                *picture,
                f"[The whole report]({name}/{report.name}): `{options.command}`",
            ]
        )

    def _models(self, scenario: Scenario) -> ModelSet:
        pair = scenario.pair.model_dump_json()
        if pair not in self.loaded:
            self.loaded[pair] = load_models(scenario)
        return self.loaded[pair]

    def _draw(self, name: str, experiment: Experiment, compared: Sequence[Compared]) -> list[str]:
        """Draw the comparison; return the picture for the report, or nothing if there is no value to draw."""
        # matplotlib takes a second to import.
        from flowedge_testbed.papers.comparison_plot import draw_comparison  # noqa: PLC0415
        from flowedge_testbed.report.plots.style import Heading, save  # noqa: PLC0415

        if not columns(compared):
            return []
        heading = Heading(f"{name}: {experiment.shows}", ("filled: here; hollow: in the paper",))
        save(draw_comparison(experiment, compared, heading), self.options.out / name / PICTURE)
        return [f"![{experiment.shows}: here and in the paper]({name}/{PICTURE})"]


def smaller(options: BenchOptions, scenario: Scenario, experiment: Experiment) -> BenchOptions:
    """Return the options of a quick run: one prompt of a dataset, and only the methods that are compared.

    What was asked for stays. A load keeps its number of prompts, of which each client needs one.
    """
    if not options.quick:
        return options
    fields = [named for series in experiment.series.values() for named in (series.ours, series.over)]
    plain = all(named.get("noise", "plain") == "plain" for named in fields)
    methods = tuple(name for name in scenario.strategies if name in experiment.methods)
    return replace(
        options,
        strategies=options.strategies or methods,
        noise=options.noise or (("plain",) if plain else None),
        samples=options.samples or (1 if scenario.load is None else None),
    )
