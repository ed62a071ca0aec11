"""Draw SpecPipe's lossy verification: `python -m flowedge_testbed.lossy SCENARIO --out DIR [--data PROMPTS]`.

For each width of the scenario's sweep and each rule it prints the share of tokens that are the target's own,
and the time between tokens (specpipe, section 3.4). The paper measures neither. Everything is computed on the
virtual clock, because the answer of a lossy rule is not the target's, which replay looks up.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from flowedge_testbed.bench.benchmark import Benchmark
from flowedge_testbed.bench.options import BenchOptions, overridden
from flowedge_testbed.lossy.lossy_specpipe import lossy_run
from flowedge_testbed.lossy.rules import Rule, lossless, relaxed, strict
from flowedge_testbed.plan import cases
from flowedge_testbed.report.markdown import number, percent, table
from flowedge_testbed.report.plots.style import Heading, new_figure, tidy
from flowedge_testbed.runs import RunPlan
from flowedge_testbed.scenario import find_scenario, read_scenario

RULES: dict[str, Rule] = {
    "lossless": lossless,
    "strict, top-p 0.5 (lossy)": strict(0.5),
    "strict, top-p 0.8 (lossy)": strict(0.8),
    "strict, top-p 0.95 (lossy)": strict(0.95),
    "relaxed (lossy)": relaxed,
}
TITLE = "SpecPipe's lossy verification: answers are not the target's own"


@dataclass
class Sums:
    """Sums over the requests of a rule at a width.

    Attributes:
        taken, own: as in LossyDraws; kept: requests whose whole answer is the lossless one.
    """

    tokens: int = 0
    seconds: float = 0.0
    taken: int = 0
    own: int = 0
    misses: int = 0
    requests: int = 0
    kept: int = 0

    @property
    def ms_per_token(self) -> float:
        return 1e3 * self.seconds / self.tokens

    @property
    def accuracy(self) -> float:
        """The share of tokens that are the target's likeliest after the text before them."""
        return self.own / self.taken if self.taken else 1.0


def measured(benchmark: Benchmark) -> dict[tuple[str, float], Sums]:
    """Compute all requests by every rule; returns the sums by rule and width."""
    assert isinstance(benchmark.plan, RunPlan)
    sums: dict[tuple[str, float], Sums] = defaultdict(Sums)
    for task in benchmark.plan.tasks:
        for run in task.runs:
            width, whole = dict(run.options)["width"], ""
            for name, rule in RULES.items():
                record, draws = lossy_run(benchmark.models, task, run, rule)
                whole = whole or record.output
                own = sums[name, width]
                own.tokens += record.new_tokens - 1
                own.seconds += record.decode_s
                own.taken += draws.taken
                own.own += draws.own
                own.misses += len(record.accepted_per_round) - 1
                own.requests += 1
                own.kept += record.output == whole
    return sums


def lines(sums: Mapping[tuple[str, float], Sums]) -> Iterator[list[str]]:
    """Yield the rows of the table."""
    for (name, width), own in sums.items():
        hits = 1 - own.misses / own.tokens
        speed, answers = number(own.ms_per_token, 1), f"{own.kept} of {own.requests}"
        yield [name, f"{width:g}", speed, percent(own.accuracy), percent(hits), answers]


def drawn(sums: Mapping[tuple[str, float], Sums], note: str) -> Figure:
    """Return the picture: a line for each rule through its widths, own tokens against time between tokens."""
    figure, axes = new_figure(6.0, 4.0, Heading(TITLE, (note,)))
    panel = axes[0][0]
    for name in RULES:
        own = [each for (rule, _), each in sums.items() if rule == name]
        panel.plot([100 * e.accuracy for e in own], [e.ms_per_token for e in own], "o-", label=name)
    panel.set_xlabel("percent of the tokens that are the target's own")
    panel.set_ylabel("ms between tokens")
    panel.legend(frameon=False)
    tidy(panel)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenario", nargs="?", default="specpipe-lossy", help="as for flowedge bench")
    parser.add_argument("--out", type=Path, required=True, help="a directory for lossy.md and lossy.png")
    parser.add_argument("--data", type=Path, help="the directory of the datasets' files")
    parser.add_argument("--samples", type=int, help="prompts of each dataset")
    parser.add_argument("--quick", action="store_true", help="as for flowedge bench")
    given = parser.parse_args()
    options = BenchOptions(
        find_scenario(given.scenario), given.out, data=given.data, samples=given.samples, quick=given.quick
    )
    scenario = overridden(read_scenario(options.scenario), options)
    benchmark = Benchmark.prepare(options, scenario, cases(scenario, options.scenario.parent), print)
    sums = measured(benchmark)
    header = ["Verification", "Width", "ms between tokens", "target's own tokens", "hit rate", "answers kept"]
    text = f"# {TITLE}\n\n{scenario.title}\n\n{table(header, list(lines(sums)))}\n"
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "lossy.md").write_text(text, encoding="utf-8")
    drawn(sums, scenario.title).savefig(given.out / "lossy.png", dpi=150)
    print(text)


if __name__ == "__main__":
    main()
