"""How many rows a session may ask for: what its strategy drafts, and what a stage has room for."""

from __future__ import annotations

from flowedge.core.errors import BadRequestError, CapacityError

MAX_DRAFT_ROWS = 4096  # of any strategy
_DEFAULTS = 512  # every strategy has no more with its default options


def check_draft_rows(strategy: str, rows: int) -> int:
    """Return the most draft rows of a strategy; raise BadRequestError if they are too many."""
    if not 0 <= rows <= MAX_DRAFT_ROWS:
        raise BadRequestError(
            f"strategy {strategy} would have {rows} draft rows in flight with these options; at most "
            f"{MAX_DRAFT_ROWS} are allowed"
        )
    return rows


def most_draft_rows(max_positions: int) -> int:
    """Return the most draft rows of a session, by the longest sequence that the model is made for."""
    return min(MAX_DRAFT_ROWS, max(max_positions, _DEFAULTS))


def most_capacity(max_positions: int) -> int:
    """Return the most cache rows of a session: the longest sequence, and the draft rows beyond it."""
    return max_positions + most_draft_rows(max_positions)


def session_capacity(wanted: int, draft_rows: int, max_positions: int) -> int:
    """Return the cache rows of a session with a sequence of `wanted` rows.

    Raises:
        CapacityError: when the strategy drafts more rows than a model of this size has sessions for.
    """
    most = most_draft_rows(max_positions)
    if draft_rows > most:
        raise CapacityError(
            f"the strategy would have {draft_rows} draft rows in flight; the model, which takes "
            f"{max_positions} positions, allows {most}: lower the strategy's options"
        )
    return wanted + draft_rows


def most_sequence(capacity: int, draft_rows: int, max_positions: int) -> int:
    """Return the most rows of a sequence whose session has `capacity` cache rows (see `session_capacity`).

    The result is negative where the draft rows alone are too many.
    """
    return min(capacity - draft_rows, max_positions)
