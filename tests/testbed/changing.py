"""A request at a place that changes, and the same request at the place as it is after its events."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from flowedge.core.request import Noise
from flowedge.core.sampling import SamplingParams
from flowedge_testbed.emulation.place import from_the_start
from flowedge_testbed.model_set import ModelSet
from flowedge_testbed.plan import cases
from flowedge_testbed.record import RunRecord
from flowedge_testbed.run_backends import make_run_backend
from flowedge_testbed.runs import Case, Run, Task
from flowedge_testbed.scenario import SHIPPED, read_scenario

# At temperature 0 the bundled model answers this prompt with more than 192 tokens, which do not loop.
QUESTION = "You are a lighthouse keeper on a stormy night. Describe what you see from the top of the tower."


@dataclass(frozen=True)
class ChangedAnswer:
    """The records of one request by one method.

    Attributes:
        changed: at the place with its events.
        knowing: with the effect of all events from the start.
        token: the index of the first token of `changed` that came out after the last event.
    """

    changed: RunRecord
    knowing: RunRecord
    token: int

    @property
    def share(self) -> float:
        """Tokens/s after the last event over those of `knowing`, each of the tokens behind `token`."""
        return self.changed.speed_from(self.token) / self.knowing.speed_from(self.token)


def place_of(name: str, scenario: Path = SHIPPED / "changing.yaml") -> Case:
    """Return the place of a scenario that has this name."""
    (found,) = (case for case in cases(read_scenario(scenario), scenario.parent) if case.profile == name)
    return found


def both_answers(
    pair: ModelSet,
    directory: Path,
    place: Case,
    method: str,
    tokens: int,
    *,
    question: str = QUESTION,
    sampling: SamplingParams = SamplingParams(),  # noqa: B008 (frozen)
    noise: Noise = "plain",
    clock: str = "replay",
) -> ChangedAnswer:
    """Ask a question of a place that changes, by a strategy with its default options.

    Args:
        directory: where true paths are stored.
        tokens: max_new_tokens; the last event must come before the last of them.
    """
    run = Run("changed", method, (), place.setup_of(method), 0, 128, noise, events=place.events)
    knowing = replace(run, key="knowing", events=from_the_start(place.events))
    backend = make_run_backend(clock, pair, directory)
    try:
        task = Task(pair.encode(question), sampling, tokens, (run, knowing))
        changed, known = (record for _, record, _ in backend.measure(task))
    finally:
        backend.close()
    last = max((event.at_s for event in place.events), default=0.0)
    return ChangedAnswer(changed, known, changed.tokens_before(last))
