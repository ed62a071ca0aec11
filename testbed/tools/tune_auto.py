"""Search for the parameters of `auto`, one after the other, on replayed prompts.

    python -m testbed.tools.tune_auto --data PROMPTS --samples 2 --out tuned.json
    python -m testbed.tools.tune_auto --data PROMPTS --parameters row_price=0.15,0.3,0.6 --out tuned.json

The search maximises the geometric mean of tokens/s over places and prompts, at temperature 0 and at 1 with
shared noise. The found values are compared with the defaults on as many other prompts, and the last line says
whether they are better there.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any, TypeAlias

import torch

from flowedge.core.errors import BadRequestError, FlowEdgeError
from flowedge.core.pipeline_config import drafter_names
from flowedge.drafting.choice import BUNDLED
from flowedge.strategies.auto.auto import Auto
from flowedge.strategies.settings import AutoSettings
from flowedge_testbed.model_set import ModelSet
from flowedge_testbed.provenance import code_digest
from flowedge_testbed.results import rounded, write_json
from flowedge_testbed.scenario import SHIPPED
from testbed.tools.sample_runs import SampleRuns

Values: TypeAlias = dict[str, float]  # of all parameters, by name
Score = Callable[[Sequence[Values]], list[float]]  # of each set of values; higher is better


@dataclass(frozen=True)
class Step:
    """One line of a search.

    Attributes:
        parameter: the parameter that was varied.
        scores: by its value.
        chosen: the value that was chosen.
    """

    parameter: str
    scores: dict[float, float]
    chosen: float

    @property
    def line(self) -> str:
        """The step for a person."""
        scores = "  ".join(f"{value:g}: {score:.3f}" for value, score in self.scores.items())
        return f"{self.parameter:14}{scores}  -> {self.chosen:g}"


def line_search(
    space: Mapping[str, Sequence[float]], start: Values, score: Score, rounds: int
) -> Iterator[Step]:
    """Set each parameter to its best value in turn, until a whole round changes nothing, and yield the steps.

    The present value of a parameter is tried too, and stays unless another value is better.

    Args:
        space: values to try, by parameter, in the order of the search.
        start: values of all parameters in `space`.
        rounds: most rounds.
    """
    values = dict(start)
    for _ in range(rounds):
        before = dict(values)
        for parameter, tried in space.items():
            line = list(dict.fromkeys([values[parameter], *tried]))
            found = score([{**values, parameter: value} for value in line])
            scores = dict(zip(line, found, strict=True))
            values[parameter] = max(line, key=lambda value: scores[value])
            yield Step(parameter, scores, values[parameter])
        if values == before:
            break


def outcome(start: Values, steps: Sequence[Step]) -> Values:
    """Return the values after a search."""
    return {**start, **{step.parameter: step.chosen for step in steps}}


# What may be tuned, in the order of the search; everything else of `auto` is a limit, not a choice.
TUNABLE: dict[str, tuple[float, ...]] = {
    "row_price": (0.5, 1.0, 1.5, 2.0, 3.0),
    "regrow_share": (1.5, 3.0, 6.0, 12.0),
    "segment_rows": (24, 32, 48, 64, 96),
    "draft_nodes": (8, 16, 32, 64),
    "candidates": (8, 12, 16, 24, 32),
    "prior": (5, 20, 80),
}
TEMPERATURES = (0.0, 1.0)
SCENARIO = SHIPPED / "regimes.yaml"
# Of this scenario: boards, CPUs and graphics cards, quick and slow links, even and uneven stages.
PLACES = (
    "1b-fp16-4nano-gigabit",
    "7b-fp16-4nano-lan150",
    "8b-int4-3nano-wifi5",
    "8b-int4-3n100-gigabit",
    "13b-int4-agx-nx-2nano-laptop-drafts",
    "8b-fp16-2rtx3060-gigabit",
    "70b-int4-8nx-20ms",
)


class Prompts:
    """The prompts of several datasets: `samples` of each to tune on, and as many to validate on."""

    def __init__(
        self,
        models: ModelSet,
        datasets: Sequence[str],
        data: Path,
        samples: int,
        directory: Path,
        places: Sequence[str],
    ) -> None:
        """Read the prompts, which are asked at each place of SCENARIO that is named.

        Raises:
            BadRequestError: when a dataset has too few prompts.
        """
        self._samples, self._places = samples, places
        self._runs = [SampleRuns(models, name, data, 2 * samples, directory, SCENARIO) for name in datasets]
        for name, runs in zip(datasets, self._runs, strict=True):
            if runs.num_prompts < 2 * samples:
                raise BadRequestError(
                    f"{name} has {runs.num_prompts} prompts that fit, and {2 * samples} are needed: half of "
                    "them to validate on; lower --samples"
                )

    def tuned_on(self, many: Sequence[Values]) -> list[float]:
        """Return the geometric mean of tokens/s with each set of values, on the first prompts."""
        return self._speeds(many, range(self._samples))

    def validated_on(self, many: Sequence[Values]) -> list[float]:
        """Return the geometric mean of tokens/s with each set of values, on the other prompts."""
        return self._speeds(many, range(self._samples, 2 * self._samples))

    def _speeds(self, many: Sequence[Values], prompts: range) -> list[float]:
        logs: list[list[float]] = [[] for _ in many]
        choices = [tuple(sorted(values.items())) for values in many]
        for runs, place in product(self._runs, self._places):
            emulation = runs.emulation(place, Auto.name)
            for temperature, index in product(TEMPERATURES, prompts):
                records = runs.compared(emulation, Auto.name, choices, index, temperature)
                for found, record in zip(logs, records, strict=True):
                    found.append(log((record.new_tokens - 1) / record.decode_s))
        return [exp(fmean(found)) for found in logs]


def parse_space(given: Sequence[str]) -> dict[str, tuple[float, ...]]:
    """Return the values to try by parameter, from texts such as name=1,2,3. No text means all parameters.

    Raises:
        BadRequestError: when a parameter is not tunable, or cannot have a value.
    """
    space: dict[str, tuple[float, ...]] = {}
    for text in given:
        name, _, values = text.partition("=")
        if name not in TUNABLE:
            raise BadRequestError(f"{name} is not to be tuned; {', '.join(TUNABLE)} are")
        try:
            space[name] = tuple(float(value) for value in values.split(",")) if values else TUNABLE[name]
        except ValueError as error:
            raise BadRequestError(f"--parameters {text}: values are numbers, separated by commas") from error
        for value in space[name]:
            AutoSettings.from_options({name: value})
    return space or TUNABLE


def tune(prompts: Prompts, space: Mapping[str, Sequence[float]], rounds: int) -> dict[str, Any]:
    """Search, showing each step, and validate; return the findings as they are written."""
    defaults = AutoSettings()
    start: Values = {name: float(getattr(defaults, name)) for name in space}
    steps = []
    for step in line_search(space, start, prompts.tuned_on, rounds):
        steps.append(step)
        print(step.line, flush=True)
    tuned = outcome(start, steps)
    before, after = prompts.validated_on([start, tuned])
    return {
        "steps": [_shown(step) for step in steps],
        "defaults": start,
        "tuned": tuned,
        "validation": {
            "defaults_tokens_per_s": before,
            "tuned_tokens_per_s": after,
            "gain": after / before - 1,
        },
    }


def _shown(step: Step) -> dict[str, Any]:
    scores = {f"{value:g}": score for value, score in step.scores.items()}
    return {**asdict(step), "scores": scores}


def lines(found: Mapping[str, Any]) -> list[str]:
    """Return what was found as lines for a person."""
    checked = found["validation"]
    kept = "better" if checked["gain"] > 0 else "no better: keep the defaults"
    return [
        "tuned: " + ", ".join(f"{name} {value:g}" for name, value in found["tuned"].items()),
        f"on other prompts: defaults {checked['defaults_tokens_per_s']:.3f}, tuned "
        f"{checked['tuned_tokens_per_s']:.3f} tokens/s, {100 * checked['gain']:+.1f} %, {kept}",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=Path(), help="directory of the datasets' files")
    parser.add_argument("--datasets", default="mt_bench,gsm8k", help="separated by commas")
    parser.add_argument("--samples", type=int, default=2, help="prompts of each dataset to tune on")
    parser.add_argument("--rounds", type=int, default=2, help="how often each parameter is searched at most")
    parser.add_argument("--parameters", action="append", default=[], help="name=value,...; all if not given")
    parser.add_argument("--places", default=",".join(PLACES), help="of scenarios/regimes.yaml")
    parser.add_argument("--model", default="bundled", help="bundled, a directory or a hub id")
    parser.add_argument("--drafter", action="append", help="as in flowedge generate; bundled if not given")
    parser.add_argument("--out", type=Path, required=True, help="a .json file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    try:
        space = parse_space(arguments.parameters)
        models = ModelSet.load(arguments.model, drafter_names(arguments.drafter or BUNDLED))
        with tempfile.TemporaryDirectory() as scratch:
            datasets, places = arguments.datasets.split(","), arguments.places.split(",")
            prompts = Prompts(models, datasets, arguments.data, arguments.samples, Path(scratch), places)
            found = tune(prompts, space, arguments.rounds)
    except FlowEdgeError as error:
        print(f"tune_auto: {error}", file=sys.stderr)
        return 2
    print("\n".join(lines(found)))
    settings = {
        "places": places,
        "datasets": datasets,
        "samples": arguments.samples,
        "model": models.facts.fingerprint,
        "drafter": models.drafter_fingerprint,
        "code": code_digest(),
    }
    write_json(arguments.out, {**settings, **rounded(found)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
