"""Writes the tables of experiments in docs/papers.md from their declarations (reference/PAPER.yaml).

python -m testbed.tools.documents.papers          # at the root of a checkout
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from flowedge_testbed.papers.comparison import columns, compare
from flowedge_testbed.papers.declaration import PAPERS, Experiment, Paper, read_paper
from flowedge_testbed.report.markdown import table

DOCUMENT = Path("docs") / "papers.md"
BEGIN = (
    "<!-- Made by python -m testbed.tools.documents.papers from the declarations in reference/PAPER.yaml -->"
)
MOST_VALUES = 7  # of an experiment that are listed
END = "<!-- End of the part that is made. -->"


def papers_document(written: str) -> str:
    """Return the text of docs/papers.md, of which `written` is the text as it stands.

    Raises:
        ValueError: when the text lacks the marks between which the made part is.
    """
    before, begins, rest = written.partition(BEGIN)
    _, ends, after = rest.partition(END)
    if not begins or not ends:
        raise ValueError(f"{DOCUMENT} lacks the lines {BEGIN!r} and {END!r}")
    return f"{before}{BEGIN}\n\n{experiments_part()}\n{END}{after}"


def experiments_part() -> str:
    """Return the tables of all papers' experiments."""
    return "\n".join(line for name in PAPERS for line in _paper(name, read_paper(name)))


def _paper(name: str, paper: Paper) -> Iterator[str]:
    rows = [
        [f"`{name}/{each}`", experiment.shows, _how(experiment), _published(experiment)]
        for each, experiment in paper.experiments.items()
    ]
    yield f"### {paper.title}: `flowedge bench papers --paper {name}`\n"
    yield (
        table(["Experiment", "Shows", "Scenario, or why there is none", "In the paper"], rows, left=4) + "\n"
    )


def _how(experiment: Experiment) -> str:
    if experiment.scenario is None:
        return str(experiment.reason)
    return f"`{experiment.scenario}`. {experiment.remark}".strip()


def _published(experiment: Experiment) -> str:
    """Return the paper's values of the last column, or the range of many."""
    compared = [each for each in compare(experiment, []) if each.published]
    if not compared:
        return "no values in the text"
    last = columns(compared)[-1]
    values = [value for each in compared for value in each.published.values()]
    numbers = [value for value in values if isinstance(value, int | float)]
    if len(values) > MOST_VALUES and numbers:
        return f"{len(values)} values, {min(numbers):g} to {max(numbers):g}"
    shown = [f"{each.label} {each.published[last]}" for each in compared if last in each.published]
    return "; ".join(shown)


if __name__ == "__main__":
    DOCUMENT.write_text(papers_document(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
