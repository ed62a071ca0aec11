"""The experiments of a paper, as a YAML file declares them (reference/PAPER.yaml)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, field_validator, model_validator

from flowedge.core.errors import BadRequestError
from flowedge.planning.profile.model import YamlDocument
from flowedge.planning.profile.profile_files import read_document
from flowedge_testbed.report.paper import REFERENCE, lookup
from flowedge_testbed.scenario import Scenario, read_scenario, shipped_scenarios

PAPERS = ("flowspec", "pipedec", "specpipe", "pipespec", "pipeinfer")
MEAN = "mean"  # of the columns of a comparison; of an experiment without an axis, the only column

Published = dict[str, float | str]  # value by column; a text is a range or a bound, such as "4.46 to 7.79"


class Series(YamlDocument):
    """A line or a row of bars of a figure: what is measured here, and the values of the paper.

    Attributes:
        ours: fields of the entries of results.json that belong to it: method, profile, dataset, temperature,
            noise (plain if not given), load, or the name of a sweep axis; none if nothing here is comparable.
        over: fields in place of those of `ours`; the figure is divided by the figure of these entries.
        figure: the figure of the entries; that of the experiment if not given.
        published: the paper's values by column. In the file also a path of keys in paper_results.json, such
            as table1_main/T=0/llama2-7b/flowspec/tokens_per_s.
    """

    ours: dict[str, Any] = Field(default_factory=dict)
    over: dict[str, Any] = Field(default_factory=dict)
    figure: str | None = None
    published: Published = Field(default_factory=dict)

    @field_validator("published", mode="before")
    @classmethod
    def _read_published(cls, given: Any) -> Any:
        found = lookup(*given.split("/")) if isinstance(given, str) else given
        if found is None:
            raise ValueError(f"paper_results.json has nothing under {given}")
        if not isinstance(found, dict):
            return {MEAN: found}
        return {column(key): value for key, value in found.items()}

    @property
    def methods(self) -> list[str]:
        """The methods that the series needs, by their names in the scenario."""
        return [fields["method"] for fields in (self.ours, self.over) if "method" in fields]


class Experiment(YamlDocument):
    """A table, a figure or a claim of a paper.

    Attributes:
        shows: what it shows, in the paper's terms.
        scenario: the name of the shipped scenario that measures it here.
        reason: a sentence that says why nothing here measures it.
        remark: sentences on what differs from the paper besides models and devices, and on values that it
            draws but does not print.
        axis: the columns: dataset, profile, temperature, at (of a load) or a sweep axis; none for one column.
        figure: the figure of the entries, as `mean_figure` of comparison.py takes it.
        unit: of the figure, for the axis of the plot.
        series: by their labels.
    """

    shows: str
    scenario: str | None = None
    reason: str | None = None
    remark: str = ""
    axis: str | None = None
    figure: str = "tokens_per_s"
    unit: str = "tokens/s"
    series: dict[str, Series] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _is_run_or_says_why_not(self) -> Experiment:
        if (self.scenario is None) == (self.reason is None):
            raise ValueError("give the scenario that measures the experiment, or the reason why none does")
        if self.scenario is not None and not any(series.ours for series in self.series.values()):
            raise ValueError(f"scenario {self.scenario} is run, but no series says what of it is compared")
        return self

    @property
    def methods(self) -> list[str]:
        """The methods that the series need, by their names in the scenario, each once."""
        return list(dict.fromkeys(name for series in self.series.values() for name in series.methods))

    def read_scenario(self) -> Scenario:
        """Read the scenario of the experiment.

        Raises:
            BadRequestError: when the experiment has none, or no scenario of that name is shipped.
        """
        if self.scenario not in shipped_scenarios():
            raise BadRequestError(f"no scenario {self.scenario!r} is shipped")
        return read_scenario(shipped_scenarios()[self.scenario])


class Paper(YamlDocument):
    """A paper and its experiments by name, in the paper's order."""

    title: str
    experiments: dict[str, Experiment] = Field(min_length=1)

    def chosen(self, name: str) -> dict[str, Experiment]:
        """Return the experiment of this name alone; all of them for an empty name.

        Raises:
            BadRequestError: when the paper has no experiment of this name; it lists those that there are.
        """
        if name and name not in self.experiments:
            raise BadRequestError(f"there is no experiment {name!r}; known are {', '.join(self.experiments)}")
        return {name: self.experiments[name]} if name else self.experiments


def read_paper(name: str) -> Paper:
    """Return the experiments of a paper.

    Raises:
        BadRequestError: when it is none of PAPERS, or its file is wrong.
    """
    if name not in PAPERS:
        raise BadRequestError(f"there is no paper {name!r}; known are {', '.join(PAPERS)}")
    return read_document(paper_file(name), Paper)


def paper_file(name: str) -> Path:
    return REFERENCE.with_name(f"{name}.yaml")


def column(value: Any) -> str:
    """Return the name of a column: a number without needless digits, or the text itself."""
    return f"{value:g}" if isinstance(value, int | float) else str(value)
