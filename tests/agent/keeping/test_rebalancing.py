"""Layers that are moved while a pipeline answers, because a stage has slowed down."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flowedge.agent.agent_config import AgentConfig, DeadlineSettings, PipelineSettings
from flowedge.agent.keeping import rebalancing
from flowedge.agent.keeping.rebalancing import Rebalancing
from flowedge.client import Client
from flowedge.client.assembly import PipelineSpec, assemble
from flowedge.core.pipeline_config import DRAFT_NODE, PipelineConfig
from flowedge.planning.placement.drift import move_for
from flowedge.planning.placement.live_division import divide
from tests.planning.placement.test_drift import FLEET, STAGES, work
from tests.planning.placement.test_live_division import GOAL
from tests.support.background import meanwhile
from tests.support.processes import AgentProcess, running
from tests.support.smollm2 import make_smollm2
from tests.support.waiting import await_that


@pytest.mark.parametrize(("of_agent", "of_pipeline"), [("idle", "idle"), ("auto", "idle"), ("idle", "auto")])
def test_a_better_division_must_be_better_for_a_while(
    of_agent: Any, of_pipeline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = divide(GOAL, FLEET, "d0", STAGES)
    now = 100.0
    monkeypatch.setattr(rebalancing, "time", SimpleNamespace(monotonic=lambda: now))
    config = AgentConfig(
        pipeline=PipelineSettings(rebalance=of_agent), deadlines=DeadlineSettings(rebalance_s=60.0)
    )

    async def compute_side() -> Any:
        return SimpleNamespace(move_for=move_for)

    agent: Any = SimpleNamespace(config=config, division=found, last_set_up_s=5.0, compute_side=compute_side)
    load = SimpleNamespace(sessions=1, waiting=0)
    role: Any = SimpleNamespace(
        stage_work=work(found, b=3.0),
        stage_layers=found.split,
        met={stage: (f"board {stage}", "") for stage in STAGES},
        load=lambda: load,
        config=PipelineConfig(rebalance=of_pipeline),
        label="p",
        verification=DRAFT_NODE,
        plan="layers by what the devices measured",
        proposal="",
    )
    keeper = Rebalancing(agent)
    assert asyncio.run(keeper.look(role)) is None and not role.proposal
    now += 59.0
    assert asyncio.run(keeper.look(role)) is None and not role.proposal
    now += 2.0
    move = asyncio.run(keeper.look(role))
    assert role.proposal.startswith("board b takes 3.0 times as long as expected")
    assert (move is None) == ("auto" not in (of_agent, of_pipeline)), "an answer runs"
    load.sessions = 0
    assert asyncio.run(keeper.look(role)) is not None
    role.stage_work = work(found)
    assert asyncio.run(keeper.look(role)) is None and not role.proposal, "it was hot for a while"
    role.stage_work, role.stage_layers = work(found, b=3.0), (1, 1, 14)
    now += 100.0
    assert asyncio.run(keeper.look(role)) is None, "somebody else has divided the layers"
    role.stage_layers, role.plan = found.split, ""
    assert asyncio.run(keeper.look(role)) is None, "somebody has asked for this division"


@contextmanager
def throttled(agent: AgentProcess) -> Iterator[None]:
    """Let a process run for a fifth of the time."""

    def pulse(ended: threading.Event) -> None:
        while not ended.is_set():
            agent.signal(signal.SIGSTOP)
            time.sleep(0.02)
            agent.signal(signal.SIGCONT)
            time.sleep(0.005)

    with meanwhile(pulse):
        yield


@pytest.mark.proof
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", ["v1", "d0"])
def test_an_answer_goes_on_while_the_layers_of_a_slow_stage_are_moved(first: str, tmp_path: Path) -> None:
    """Also where the draft node is the first stage as well, which it stays."""
    (tmp_path / "model").mkdir()
    model = make_smollm2(tmp_path / "model", "360M", layers=12)
    state = {"FLOWEDGE_STATE_DIR": str(tmp_path / "state")}
    settings = {
        "pipeline": {"look_s": 0.2, "rebalance": "auto"},
        "deadlines": {"rebalance_s": 2.0, "silence_s": 20.0},
    }
    d0 = AgentProcess("move-d0", "--no-advertise", settings=settings, environment=state, fresh=True)
    v1, v2 = (AgentProcess(f"move-{name}", "--no-advertise", environment=state) for name in ("v1", "v2"))
    with running(d0, v1, v2), Client(d0.address) as client:
        stages = ((d0 if first == "d0" else v1).address, v2.address)
        assemble(
            PipelineSpec(model=str(model), drafter="ngram", draft_node=d0.address, stages=stages),
            lambda *_: None,
        )
        before = client.describe()
        assert before.plan.startswith(f"layers by what the devices measured: move-{first}")
        asked: dict[str, Any] = {"max_new_tokens": 800, "ignore_eos": True, "temperature": 1.0, "seed": 7}
        answer = client.generate("Hello", **asked)
        tokens = iter(answer)
        next(tokens)

        def moved_away() -> bool:
            layers = client.describe().stage_layers  # none while the pipeline is set up again
            return bool(layers) and layers[1] < before.stage_layers[1]

        with throttled(v2):
            await_that(moved_away, "nothing is moved")
        assert client.describe().stage_addresses == stages
        rest = [*tokens]
        assert rest and answer.finish_reason == "length"
        d0.line("move-v2 takes ")
        moved = client.generate("Hello", **asked).result().token_ids
        assert moved == answer.result().token_ids, "the same tokens, over both divisions"
