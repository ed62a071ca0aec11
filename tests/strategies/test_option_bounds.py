"""Options that requests set: no value makes a session large, or costs anything before it is refused."""

from __future__ import annotations

import itertools
import math
import re
import tracemalloc

import pytest

from flowedge.core.errors import BadRequestError, CapacityError
from flowedge.core.request import Request
from flowedge.core.sampling import SamplingParams
from flowedge.engine.draft_node.draft_node import DraftNode
from flowedge.engine.draft_node.draft_node_spec import DraftNodeSpec
from flowedge.engine.draft_node.session_answer import TextStream
from flowedge.strategies.registry import STRATEGIES, make_strategy
from flowedge.strategies.row_bounds import MAX_DRAFT_ROWS, most_capacity

MIB = 1 << 20
HOSTILE = (
    *(
        math.nan,
        math.inf,
        -math.inf,
        -1.0,
        -0.5,
        0.0,
        5e-324,
        0.5,
        1.0,
        2.0,
        255.0,
        256.0,
        257.0,
        4096.0,
        4097.0,
    ),
    *(1e6, 1e9, 2.0**31, 2.0**53, 2.0**63, 2.0**64, 1e300),
)


class NoText(TextStream):
    def push(self, token: int) -> str:
        return ""

    def flush(self) -> str:
        return ""

    def show(self, tokens: frozenset[int]) -> None:
        pass


def options_of(strategy: str) -> list[str]:
    with pytest.raises(BadRequestError) as caught:
        make_strategy(strategy, {"?": 1.0})
    known = re.search(r"known are (.+)$", str(caught.value))
    return known[1].split(", ") if known else []


def prepared_rows(strategy: str, options: dict[str, float], positions: int) -> int | None:
    """The cache rows of a session with these options; None if the request is refused."""
    spec = DraftNodeSpec(width=8, max_positions=positions, num_routes=4)
    node = DraftNode("d0", spec, lambda r: make_strategy(r.strategy, r.strategy_options), NoText)
    request = Request("s", (1, 2, 3), SamplingParams(), 5, strategy=strategy, strategy_options=options)
    tracemalloc.start()
    try:
        return node.prepare(request).capacity
    except (BadRequestError, CapacityError):
        return None
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < MIB, (strategy, options, peak)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_option_is_bounded(strategy: str) -> None:
    assert prepared_rows(strategy, {}, 2048)
    for positions, option in itertools.product((64, 2048, 1 << 20), options_of(strategy)):
        for value in HOSTILE:
            rows = prepared_rows(strategy, {option: value}, positions)
            assert rows is None or rows <= 8 + MAX_DRAFT_ROWS <= most_capacity(1 << 20)
            assert rows is None or rows <= most_capacity(positions), (option, value)
            if not 0 <= value <= 1e9:
                assert rows is None, (option, value)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_options_are_bounded_together(strategy: str) -> None:
    for pair in itertools.combinations(options_of(strategy), 2):
        for values in itertools.product((1.0, 256.0, 4096.0, 1e6), repeat=2):
            rows = prepared_rows(strategy, dict(zip(pair, values, strict=True)), 2048)
            assert rows is None or rows <= most_capacity(2048)


def test_a_model_of_few_positions_takes_the_defaults() -> None:
    for strategy in STRATEGIES:
        rows = prepared_rows(strategy, {}, 64)
        assert rows is not None and rows <= most_capacity(64)


def test_the_error_names_the_option_and_its_bounds() -> None:
    with pytest.raises(BadRequestError, match=r"lookahead is 1000000; it must be 1 or more, 256 at most"):
        make_strategy("pipespec_sync", {"lookahead": 1e6})
    with pytest.raises(BadRequestError, match="1638400 tokens would be proposed"):
        make_strategy("flowspec", {"top_k": 80.0, "depth": 256.0})
