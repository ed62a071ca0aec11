"""Runs of one dataset outside a benchmark, from which profiles and options are measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from flowedge.core.errors import BadRequestError
from flowedge.core.request import Noise
from flowedge.core.sampling import SamplingParams
from flowedge.planning.profile.pipeline import PipelineProfile
from flowedge_testbed.model_set import ModelSet
from flowedge_testbed.plan import cases
from flowedge_testbed.prompts import PromptChoice, dataset_files, read_dataset
from flowedge_testbed.record import RunRecord
from flowedge_testbed.run_backends import make_run_backend
from flowedge_testbed.runs import Options, Run, Task
from flowedge_testbed.scenario import SHIPPED, read_scenario
from flowedge_testbed.scenario_parts import ModelSetNames
from flowedge_testbed.true_paths.true_path import TruePath

SCENARIO = SHIPPED / "flowspec-table1.yaml"


class SampleRuns:
    """Replayed prompts of one dataset, by any method on any pipeline of a scenario.

    Attributes:
        dataset: its name; that of the project's own prompts if the dataset's file does not exist.
    """

    def __init__(
        self,
        models: ModelSet,
        dataset: str,
        data: Path,
        samples: int,
        directory: Path,
        scenario: Path = SCENARIO,
    ) -> None:
        """Read the prompts.

        Args:
            data: directory of the dataset's file; directory: where true paths are stored.
            scenario: has the pipelines.
        """
        own = ModelSetNames(model=models.model, drafter=models.drafter_names)
        self._file = scenario
        self._scenario = read_scenario(scenario).model_copy(update={"pair": own})
        self._models = models
        self._directory = directory / "paths"
        self._backend = make_run_backend("replay", models, directory)
        files, _ = dataset_files({dataset: f"{dataset}.jsonl"}, data)
        self.dataset = next(iter(files))
        room = models.facts.max_positions - self._scenario.max_new_tokens
        self._prompts: Sequence[tuple[int, ...]] = read_dataset(
            self.dataset, files[self.dataset], PromptChoice(samples), room, models.encode
        ).prompts

    def emulation(self, profile: str, method: str) -> PipelineProfile:
        """Return the pipeline of this name, which draws tokens where the method does.

        Raises:
            BadRequestError: when the scenario has no such pipeline.
        """
        found = [case for case in cases(self._scenario, self._file.parent) if case.profile == profile]
        if not found:
            raise BadRequestError(f"{self._file}: no pipeline {profile}")
        return found[0].emulation_of(method)

    def records(self, emulation: PipelineProfile, strategy: str, options: Options = ()) -> list[RunRecord]:
        """Run a method on each prompt at temperature 0, and return the records."""
        scenario = self._scenario
        run = Run("sample", strategy, options, emulation, 0, scenario.prefill_rows)
        tasks = [
            Task(prompt, SamplingParams(seed=index), scenario.max_new_tokens, (run,))
            for index, prompt in enumerate(self._prompts)
        ]
        return [record for task in tasks for _, record, _ in self._backend.measure(task)]

    def paths(self) -> Iterator[TruePath]:
        """Yield the true path of each prompt at temperature 0."""
        models, longest = self._models, self._scenario.max_new_tokens
        source = models.path_source(self._directory)
        for index, prompt in enumerate(self._prompts):
            yield source.path(prompt, SamplingParams(seed=index), longest, models.eos)

    @property
    def num_prompts(self) -> int:
        return len(self._prompts)

    def compared(
        self,
        emulation: PipelineProfile,
        strategy: str,
        choices: Sequence[Options],
        index: int,
        temperature: float,
    ) -> list[RunRecord]:
        """Run a method with each choice of options on one prompt, with shared noise above temperature 0."""
        scenario = self._scenario
        noise: Noise = "shared" if temperature > 0 else "plain"
        runs = tuple(
            Run(f"sample{i}", strategy, options, emulation, 0, scenario.prefill_rows, noise)
            for i, options in enumerate(choices)
        )
        sampling = SamplingParams(temperature=temperature, seed=index)
        task = Task(self._prompts[index], sampling, scenario.max_new_tokens, runs)
        return [record for _, record, _ in self._backend.measure(task)]
