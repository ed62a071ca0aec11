"""Tests that are coroutine functions."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec

P = ParamSpec("P")


def in_loop(seconds: float) -> Callable[[Callable[P, Coroutine[Any, Any, None]]], Callable[P, None]]:
    """Run a test in an event loop of its own; it fails with TimeoutError after so many seconds."""

    def decorate(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
        @functools.wraps(test)
        def run(*arguments: P.args, **named: P.kwargs) -> None:
            asyncio.run(asyncio.wait_for(test(*arguments, **named), seconds))

        return run

    return decorate
