"""Processes for functions of tests whose memory is measured: forked from one that has imported torch."""

from __future__ import annotations

import importlib.util
import multiprocessing
from functools import cache
from multiprocessing.context import ForkServerContext

PRELOADED = [
    "torch",
    "transformers.modeling_utils",
    "transformers.models.llama.modeling_llama",
    "flowedge.agent.main",
    "flowedge.agent.roles.compute_side",
    "flowedge.cli.main",
    "flowedge.gateway.process",
    "flowedge.discovery.discovery",
    "flowedge.models.check.reference",
]


@cache
def fork_server() -> ForkServerContext:
    """Return the way to start processes that have imported PRELOADED; the server ignores a missing module."""
    assert all(importlib.util.find_spec(name) for name in PRELOADED)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context
