"""The true paths of a plan's runs, written to a file that later benchmarks read in place of the target."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from flowedge.core.errors import BadRequestError
from flowedge.core.sampling import SamplingParams
from flowedge_testbed.model_set import ModelSet
from flowedge_testbed.provenance import versions
from flowedge_testbed.runs import RunPlan
from flowedge_testbed.scenario import Scenario
from flowedge_testbed.true_paths.path_file import write_path_file
from flowedge_testbed.true_paths.true_path import TruePath


def check_can_save(scenario: Scenario) -> None:
    """Check that a scenario's true paths can be saved.

    Raises:
        BadRequestError: when nothing computes them.
    """
    if scenario.clock != "replay" or scenario.load is not None or scenario.pair.paths is not None:
        raise BadRequestError(
            f"--save-paths: scenario {scenario.name} computes no true paths; it takes the replay clock, no "
            "load, and a model in place of a file of true paths"
        )


def save_paths(file: Path, plan: RunPlan, models: ModelSet, directory: Path) -> None:
    """Write the paths of all tasks to a file.

    The hidden states are left out if the drafter reads none.

    Args:
        directory: where the tasks' paths were stored.
    """
    source = models.path_source(directory)

    def paths() -> Iterator[tuple[tuple[str, ...], SamplingParams, TruePath]]:
        for task in plan.tasks:
            path = source.path(task.prompt, task.sampling, task.max_new_tokens, models.eos)
            yield models.turns[task.prompt], task.sampling, path

    drafter = models.drafter
    write_path_file(
        file,
        models.facts,
        paths(),
        max_new_tokens=max(task.max_new_tokens for task in plan.tasks),
        versions=versions(),
        taps=drafter.taps if drafter.needs_features else None,
    )
