"""Private state of the product that tests read or replace, and why public behaviour does not do."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest

from flowedge.agent.roles.coordinator import StageReady
from flowedge.agent.roles.draft_node_role import DraftNodeRole
from flowedge.cluster import process
from flowedge.cluster.process import Security
from flowedge.core.messages import Forget, Segment
from flowedge.core.tree import DraftTree
from flowedge.drafting.joined import JoinedDrafter
from flowedge.engine.draft_node.draft_node import DraftNode
from flowedge.engine.draft_node.draft_session import DraftSession
from flowedge.engine.executors.block_executor import BlockExecutor
from flowedge.engine.pages import SharedPages
from flowedge.engine.stage.computing_segments import ComputingSegment
from flowedge.engine.stage.stage import Stage
from flowedge.engine.stage.stage_session import StageSession
from flowedge.live.live_draft_node import LiveDraftNode
from flowedge.live.live_stage import LiveStage
from flowedge.models.attention.kv_cache import KVCache
from flowedge.planning.virtual_pipeline import VirtualPipeline
from flowedge.protocol.link_kind import LinkKind
from flowedge.strategies.auto.auto import Auto
from flowedge.strategies.auto.measured import MeasuredPipeline
from flowedge.strategies.auto.step_times import StepTimes
from flowedge.strategies.base import Strategy
from flowedge.strategies.published.pipespec import PipeSpec
from flowedge.strategies.registry import session_strategy
from flowedge.text.template_renderer import TemplateRenderer
from flowedge.v1 import agent_pb2 as pb


def stage_sessions(stage: Stage) -> dict[str, StageSession]:
    """Return the sessions of a stage: the protocol's invariants are about epochs that no message shows."""
    return stage._table.open


def kept_by(stage: Stage) -> list[str]:
    """Return the ended sessions of which a stage keeps caches; see `stage_sessions`."""
    return list(stage._table.retained._caches)


def begins_again(node: DraftNode, session: str) -> bool:
    """Return whether a session was opened a second time; see `stage_sessions`."""
    return session in node.target._begun_again


def lose_kept(stage: LiveStage, session: str) -> None:
    """Have a live stage lose what it keeps of a session: no message of a draft node has this effect."""
    with stage._lock:
        stage._machine.receive(Forget(session), LinkKind.IN_BAND)


def draft_sessions(node: DraftNode) -> dict[str, DraftSession]:
    """Return the sessions of a draft node; see `stage_sessions`."""
    return node._sessions


def inbox(stage: Stage) -> Iterable[Segment]:
    """Return the segments that wait in a stage: rows trimmed here are never computed, nor seen outside."""
    return stage._batching.waiting


def being_computed(stage: Stage) -> list[ComputingSegment]:
    """Return the segments that a stage computes: that a prune reaches them shows in no message."""
    return stage._batching.computing._segments


def has_tombstones(stage: Stage) -> bool:
    """Return whether the stage remembers ended sessions: a tombstone that stays shows in memory only."""
    return bool(stage._table.ended)


def is_empty(machine: Stage | DraftNode) -> bool:
    """Return whether nothing of any session is left; see `has_tombstones`."""
    if isinstance(machine, Stage):
        load = machine.load()
        return load.drained and not load.queued and not load.retained
    return not (machine._sessions or machine._closing)


def forget_kept(node: LiveDraftNode, rows: int) -> int:
    """Have a draft node forget ended sessions, as it does by itself when a request needs their room."""
    with node._lock:
        forgotten = node._machine.target.forget_oldest(rows)
    node._changed()
    return forgotten


def waits_for_thread(session: DraftSession) -> tuple[bool, bool]:
    """Return whether a verification waits, and whether drafting does: the order of jobs depends on both."""
    return bool(session._results), session._growth is not None


def draft_tree(strategy: Strategy) -> DraftTree:
    """Return the tree of a strategy: the papers' properties hold of the tree, commands show parts of it."""
    private: Any = strategy
    tree: DraftTree = private._candidates.tree if isinstance(strategy, Auto) else private._tree
    return tree


def planned_segments(strategy: Auto) -> int:
    """Return how many segments `auto` plans to have in flight: more than one a stage over slow links."""
    return strategy._next.plan.rows.segments


def base_growth(strategy: Strategy) -> Any:
    """Return the growth of the tree of a round; see `draft_tree`."""
    private: Any = strategy
    return private._growth


def draft_chain(strategy: PipeSpec) -> Any:
    """Return the tokens that PipeSpec has drafted, behind those that it has sent; see `draft_tree`."""
    return strategy.chain


def times_of(strategy: Auto) -> StepTimes:
    """Return the times that `auto` has measured: tests begin where a request already knows them."""
    return strategy._times


def give_ready_stages(role: DraftNodeRole, *rooms: pb.StageRoom) -> None:
    """Have a draft node know what further stages have room for, without devices."""
    role._stages_ready += [StageReady(room=room) for room in rooms]


def set_own_security(patch: pytest.MonkeyPatch, security: Security | None) -> None:
    """Set what this process uses towards other devices, until the test ends; `process.use` is for good."""
    patch.setattr(process, "_current", security)


def template_worker(renderer: TemplateRenderer) -> subprocess.Popen[bytes]:
    assert renderer._process is not None
    return renderer._process


def use_template_worker(
    renderer: TemplateRenderer, worker: subprocess.Popen[bytes], link: socket.socket
) -> None:
    """Have a renderer take a process for its worker, behind a socket."""
    renderer.close()
    renderer._process, renderer._link, renderer._owner = worker, link, os.getpid()


def close_template_link(renderer: TemplateRenderer) -> None:
    assert renderer._link is not None
    renderer._link.close()
    renderer._link = None


def learnt_log_odds(drafter: JoinedDrafter, session: str) -> list[float]:
    """Return what is added to the log-odds of lookup's matches, after each token that could teach it."""
    return drafter._sessions[session].odds


def share_measurements(node: DraftNode, measured: MeasuredPipeline) -> None:
    """Have sessions use what others have measured, as a live draft node does; virtual pipelines do not."""
    node._make_strategy = partial(session_strategy, measured=measured)


def stage_executors(pipeline: VirtualPipeline) -> list[BlockExecutor]:
    """Return the executors of the stages: what they hold shows in no message, nor how they come to fail."""
    executors: Any = pipeline._stage_executors.values()
    return list(executors)


def caches_of(executor: BlockExecutor) -> dict[str, KVCache]:
    """Return the caches of a stage by session; see `stage_executors`."""
    return executor._caches


def open_drafts(pipeline: VirtualPipeline) -> list[str]:
    """Return the sessions that the drafter of a pipeline has open: its caches show in no counter."""
    executor: Any = pipeline._draft_executor
    return list(executor.drafter._sessions)


def held_rows(stage: Stage) -> int:
    """Return the cache rows by which the sessions of a stage count; messages show what is refused alone."""
    return stage._table.held_rows


def shared_pages(machine: Stage | DraftNode) -> SharedPages:
    """Return the pages that sessions of a stage or of a pipeline share; they show in no message."""
    return machine._table.shared if isinstance(machine, Stage) else machine.admission._budget.shared
