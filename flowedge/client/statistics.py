"""Statistics of a request, read with their types from what a draft node sent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from flowedge.core.errors import ProtocolError
from flowedge.engine.statistics import RequestStatistics


def typed_statistics(content: Mapping[str, Any]) -> RequestStatistics:
    """Read what `Generation.statistics` holds.

    Raises:
        ProtocolError: when a value is missing, has the wrong type or cannot be true.
    """
    try:
        statistics = _adapter().validate_python(content)
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(map(str, problem["loc"]))
        raise ProtocolError(f"the draft node sent statistics with a bad {key}: {problem['msg']}") from error
    times = {
        "queue_s": statistics.queue_s,
        "ttft_s": statistics.ttft_s,
        "decode_s": statistics.decode_s,
        "total_s": statistics.total_s,
        **{f"itl_s.{place}": gap for place, gap in enumerate(statistics.itl_s)},
    }
    for name, seconds in times.items():
        if not (math.isfinite(seconds) and seconds >= 0):
            raise ProtocolError(f"the draft node sent statistics with a {name} of {seconds}")
    if len(statistics.itl_s) != max(statistics.new_tokens - 1, 0):
        raise ProtocolError(
            f"the draft node sent {len(statistics.itl_s)} times between {statistics.new_tokens} tokens"
        )
    return statistics


@cache
def _adapter() -> TypeAdapter[RequestStatistics]:
    return TypeAdapter(RequestStatistics)
