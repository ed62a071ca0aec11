"""The target's draws as they come back from the last stage, held against what was sent."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flowedge.core.arrays import NO_TOKEN, IntArray
from flowedge.core.errors import ProtocolError
from flowedge.core.messages import CONTEXT, Drawing, Segment
from flowedge.core.pipeline_config import LAST_STAGE, VerificationPlace
from flowedge.core.request import Request
from flowedge.core.sampling import Walk


def drawing_of(request: Request, drawn_at: VerificationPlace, features: bool) -> Drawing | None:
    """Return what the last stage needs to draw the tokens of a request; None if it has none to draw.

    Tokens are drawn by rules on the draft node alone.

    features: whether hidden states come back.
    """
    if drawn_at != LAST_STAGE or request.rows_only or request.rules is not None:
        return None
    room = request.max_new_tokens - len(request.answered)
    return Drawing(request.sampling, len(request.given), features, room, request.eos)


def may_keep_taps(request: Request, drawn_at: VerificationPlace) -> bool:
    """Return whether stages may keep what they tap of a request's draft rows.

    A last stage that could draw, and does not for this request, would keep what it taps as well.
    """
    return not request.rows_only and (request.rules is None or drawn_at != LAST_STAGE)


def parents_under_root(segment: Segment, context: int) -> IntArray:
    """Return the offset of the parent of each row of a segment, -1 for the root: int64 [n].

    context: number of committed rows, which the root follows.

    Raises:
        ProtocolError: when the segment is not a tree under the root.
    """
    parents = np.where(segment.parents == CONTEXT, -1, segment.parents - segment.first_row)
    if segment.first_row != context or parents[0] != -1 or bool(np.any(parents[1:] < 0)):
        raise ProtocolError(f"segment {segment.number} is not a tree under the root")
    return parents


def with_draws(segment: Segment, vocab_size: int) -> Segment:
    """Return a segment that came back from a last stage that draws, with `drawn`.

    Raises:
        ProtocolError: when it has none, or a token id is out of bounds.
    """
    drawn = segment.drawn
    if drawn is None:
        if segment.num_rows:
            raise ProtocolError(f"segment {segment.number} came back without the tokens drawn after its rows")
        drawn = np.zeros(0, dtype=np.int64)
    if len(drawn) and drawn.max() >= vocab_size:
        raise ProtocolError(
            f"segment {segment.number} came back with token {drawn.max()}; there are {vocab_size}"
        )
    return replace(segment, drawn=drawn)


def returned_walk(segment: Segment, tokens: IntArray, parents: IntArray) -> Walk:
    """Return the path along the rows of a segment after which tokens were drawn.

    Args:
        segment: live draft rows under the root, with `drawn`; tokens: int64 [n], of the rows.
        parents: int64 [n] offsets into these rows, -1 for the root.

    Raises:
        ProtocolError: when the rows are not a path from the root along the tokens drawn.
    """
    assert segment.drawn is not None
    path = segment.carried
    after = segment.drawn[path]
    is_path = (
        len(path) > 0
        and path[0] == 0
        and np.array_equal(parents[path[1:]], path[:-1])
        and np.array_equal(tokens[path[1:]], after[:-1])
    )
    if not is_path:
        raise ProtocolError(f"segment {segment.number} came back with draws that are no path from its root")
    return Walk(tuple(path.tolist()), int(after[-1]))


def last_draw(segment: Segment) -> int:
    """Return the token drawn after the last row of a segment of committed rows.

    Raises:
        ProtocolError: when there is none.
    """
    assert segment.drawn is not None
    token = int(segment.drawn[-1])
    if token == NO_TOKEN:
        raise ProtocolError(f"segment {segment.number} came back without the token after its last row")
    return token
