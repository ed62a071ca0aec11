"""What the sessions of a pipeline share: what they have measured, and the steps that they take together."""

from __future__ import annotations

from collections import defaultdict
from functools import partial

from flowedge.strategies.auto.load import PipelineLoad
from flowedge.strategies.auto.probation import DraftingProbation, Mode
from flowedge.strategies.auto.step_times import StepTimes
from flowedge.strategies.pipeline_steps import PipelineSteps


class MeasuredPipeline:
    """The times of one pipeline, and whether drafting pays there.

    Attributes:
        times: of the pipeline's steps, by mode. With one segment in flight devices that share a processor do
            not slow each other down, and lookup alone takes next to no time. Plain decoding measures nothing.
        load: the sessions that decode at present.
        steps: of the sessions that send together (auto and specpipe_db).
        trials: by whether tokens are drawn at temperature 0, where more proposals are accepted.
    """

    def __init__(self, *, one_host: bool = False, looks_up: bool = False) -> None:
        """The arguments are as in DraftNodeSpec."""
        self.times = {mode: StepTimes() for mode in Mode if mode is not Mode.PLAIN}
        self.load = PipelineLoad()
        self.steps = PipelineSteps()
        self.trials: defaultdict[bool, DraftingProbation] = defaultdict(
            partial(DraftingProbation, one_host=one_host, looks_up=looks_up)
        )
