"""The lock-steps of the papers' systems: exact tokens, phases that do not overlap, PipeDec's schedule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flowedge.core.errors import BadRequestError
from flowedge.core.messages import Message, Segment
from flowedge.core.sampling import SamplingParams
from flowedge.engine.activity import TRANSFER
from flowedge.engine.jobs import DraftBatch, DraftJob, ForwardBatch, StageJob
from flowedge.planning.virtual_pipeline import DRAFT_NODE, VirtualObserver
from flowedge_testbed.emulation.lock_step import LOCK_STEPS, LockStepName, LockStepPipeline
from flowedge_testbed.emulation.system import OWN_SYSTEM, System
from flowedge_testbed.emulation.system_choice import SystemChoice
from flowedge_testbed.emulation.transmission import Transfer, at_once, central_schedule
from flowedge_testbed.emulation.unpruned_cache import UnprunedCacheCosts
from flowedge_testbed.model_set import ModelSet
from flowedge_testbed.run_backends import make_run_backend
from flowedge_testbed.runs import Run, Task
from testbed.tools.sample_runs import SampleRuns
from tests.engine import histories
from tests.engine.histories import RandomCosts, run_history
from tests.planning.test_profile_costs import BYTES_PER_S, FLOPS, KV, emulation, forward
from tests.support.session_jobs import batch_of
from tests.testbed.conftest import Bench, ScenarioFile, results

LATENCY = 0.5  # of each link; a second message leaves while the first is on its way
NAMES: list[LockStepName] = list(LOCK_STEPS)


class Times(VirtualObserver):
    """Remembers when devices computed and when messages travelled."""

    def __init__(self) -> None:
        self.jobs: list[tuple[int, StageJob | DraftJob, float, float]] = []
        self.messages: list[tuple[int, Message, float, float]] = []

    def computed(self, place: int, job: StageJob | DraftJob, start: float, end: float) -> None:
        self.jobs.append((place, job, start, end))

    def sent(self, sender: int, message: Message, start: float, left: float, arrives: float) -> None:
        self.messages.append((sender, message, start, arrives))


class SteadyCosts(RandomCosts):
    """Random costs of jobs; a message takes the same time on a link whenever it is asked for."""

    def transfer(self, sender: int, message: Message) -> float:
        return 1.0 + sender % 3 + isinstance(message, Segment)

    def latency(self, sender: int) -> float:
        return LATENCY

    def receive(self, place: int, message: Message) -> float:
        return 0.0


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", NAMES)
def test_a_lock_step_is_exact_and_its_phases_do_not_overlap(
    name: LockStepName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several sessions of any strategy, with express messages that are late or lost."""
    monkeypatch.setattr(histories, "RandomCosts", SteadyCosts)
    compared = 0
    for seed in range(8):
        times = Times()
        made: list[LockStepPipeline] = []

        def pipeline(*args: Any, times: Times = times, made: list[Any] = made, **options: Any) -> Any:
            made.append(LockStepPipeline(*args, **options, observer=times, lock_step=LOCK_STEPS[name]))
            return made[0]

        monkeypatch.setattr(histories, "VirtualPipeline", pipeline)
        compared += run_history(seed)
        check_apart([each[2:] for each in times.jobs], [each[2:] for each in times.messages])
        check_one_verifies([each for each in times.jobs if each[2] < each[3]])
        if name == "pipedec" and not made[0].side_stages:
            check_half_duplex(times.messages, len(made[0].stages))
    assert compared > 200


def check_apart(jobs: list[tuple[float, float]], messages: list[tuple[float, float]]) -> None:
    """Nothing is computed while a message travels."""
    busy = sorted([(*each, "job") for each in jobs] + [(*each, "message") for each in messages])
    ends = {"job": 0.0, "message": 0.0}
    for start, end, kind in busy:
        other = "message" if kind == "job" else "job"
        assert start >= ends[other] or start == end, (start, ends[other], kind)
        ends[kind] = max(ends[kind], end)


def check_one_verifies(jobs: list[Any]) -> None:
    """While the draft node verifies, no stage computes."""
    verifying = [(start, end) for _, job, start, end in jobs if isinstance(job, DraftBatch) and job.verifies]
    check_apart(verifying, [(start, end) for _, job, start, end in jobs if isinstance(job, ForwardBatch)])


def check_half_duplex(messages: list[tuple[int, Message, float, float]], stages: int) -> None:
    """A device sends or receives, with one other device at a time."""
    until: dict[int, float] = {}
    for sender, _, start, end in sorted(messages, key=lambda each: each[2]):
        receiver = sender + 1 if sender < stages - 1 else DRAFT_NODE
        for node in (sender, receiver):
            assert start >= until.get(node, 0.0) - LATENCY - 1e-6, (node, start, until)
        until.update({sender: end, receiver: end})


def test_a_group_computes_a_level_within_one_timestep(pair: ModelSet, tmp_path: Path) -> None:
    place = SampleRuns(pair, "none", tmp_path, 1, tmp_path).emulation("llama2-7b-fp16", "pipedec")
    speeds: dict[int, float] = {}
    for groups in (4, 2):
        run = Run("k", "pipedec", (("groups", groups),), place, 0, 128, system=System("pipedec"))
        task = Task(pair.encode("Count to ten."), SamplingParams(), 32, (run,))
        ((_, record, trace),) = make_run_backend("replay", pair, tmp_path).measure(task)
        begun = [
            {i.start for i in trace.intervals if i.place == stage and i.kind != TRANSFER} for stage in (0, 1)
        ]
        assert bool(begun[0] & begun[1]) == (groups == 4), "stages of one group never begin together"
        speeds[groups] = record.new_tokens / record.decode_s
    assert speeds[4] > 1.2 * speeds[2], "a timestep of two stages, one after the other"


def test_the_central_schedule_gives_a_device_one_transfer_at_a_time() -> None:
    """The chain of PipeDec's figure 2: the draft model S is 0, the nodes L1 to L3 are 1 to 3."""
    chain = [Transfer(0, 1, 1.0), Transfer(1, 2, 3.0), Transfer(2, 3, 2.0)]
    assert central_schedule(chain) == [0.0, 2.0, 0.0], (
        "L2 has both, so the middle transfer waits for the last"
    )
    assert central_schedule([*chain, Transfer(3, 4, 1.0)]) == [0.0, 2.0, 0.0, 2.0]
    assert central_schedule([Transfer(0, 1, 1.0), Transfer(0, 1, 1.0), Transfer(2, 3, 5.0)]) == [
        0.0,
        1.0,
        0.0,
    ]
    assert central_schedule([]) == []
    assert at_once([*chain, Transfer(0, 2, 1.0)]) == [0.0, 0.0, 0.0, 1.0], "a device sends in order"


def test_a_system_is_that_of_the_method_or_of_the_paper_named() -> None:
    scenario = SystemChoice(barrier=True)
    assert System.of(scenario, "flowspec_paper").lock_step == "flowspec"
    assert System.of(scenario, "specpipe").lock_step == "pipedec"
    assert System.of(scenario, "naive_pp") == OWN_SYSTEM, "the published Naive PP has no turns"
    variant = SystemChoice(barrier=False, kv_pruning=False).over(scenario)
    assert System.of(variant, "pipedec") == System(kv_pruning=False)
    assert System.of(SystemChoice(barrier="flowspec", express=False), "pipedec") == System("flowspec", False)


def test_a_cache_that_is_not_pruned_is_read_whole() -> None:
    costs = UnprunedCacheCosts(emulation(), 0, "flowspec_paper")
    pruned = [costs.stage_job(0, batch_of(forward(2, cached))) for cached in (10, 11)]
    row = 3 * (KV / BYTES_PER_S + 4 * 4 * 2 / FLOPS)  # of the three layers
    assert pruned[1] - pruned[0] == pytest.approx(2 * row), "12 rows were written, though 11 are left"
    whole = UnprunedCacheCosts(emulation(), 0, "flowspec_paper").stage_job(0, batch_of(forward(2, 10)))
    assert whole == pruned[0]


@pytest.mark.proof
def test_systems_are_lines_of_one_table(scenario_file: ScenarioFile, bench: Bench, tmp_path: Any) -> None:
    variants = {
        "barrier": {"barrier": True},
        "no express": {"express": False},
        "no kv_pruning": {"kv_pruning": False},
        "no early stop": {"options": {"early_stop": 0}},
    }
    scenario = scenario_file(
        strategies=["flowspec_paper", *variants],
        samples=2,
        max_new_tokens=40,
        variants={name: {"strategy": "flowspec_paper", **changes} for name, changes in variants.items()},
    )
    bench(scenario, tmp_path / "out")
    found = results(tmp_path / "out")
    assert found["outputs_differ"] == []
    speeds = {run["method"]: run["tokens_per_s"] for run in found["runs"]}
    own = speeds.pop("flowspec_paper")
    assert speeds.pop("no express") == pytest.approx(own, rel=0.02), "links of 1 ms carry prunes as fast"
    assert all(speed < own for speed in speeds.values()), (own, speeds)
    computed = {run["method"]: run["rows_computed"] for run in found["runs"]}
    assert computed["no early stop"] > 1.1 * computed["flowspec_paper"], "dead segments are computed"
    with pytest.raises(
        BadRequestError, match=r"barrier has another barrier.*paced.*--clock replay or virtual"
    ):
        bench(scenario, tmp_path / "paced", clock="paced")
