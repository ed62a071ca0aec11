"""The names of the strategies, and what is to be known of one before it is made. Imports no numpy."""

from __future__ import annotations

from flowedge.core.errors import BadRequestError

AUTOREGRESSIVE = "autoregressive"
STRATEGIES = (
    AUTOREGRESSIVE,
    "naive_pp",
    "pruned_pp",
    "flowspec_no_sbd",
    "flowspec_paper",
    "flowspec",
    "auto",
    "pipedec",
    "specpipe",
    "specpipe_db",
    "pipeinfer",
    "pipespec",
    "pipespec_sync",
)
WITHOUT_DRAFTER = (AUTOREGRESSIVE,)
OF_A_FIRST_LOOK = (AUTOREGRESSIVE, "naive_pp", "flowspec")  # no drafts; one tree a round; trees all the time
WITH_MIDDLE_MODELS = ("pipespec", "pipespec_sync")


def checked_strategy(name: str) -> str:
    """Return the name of a strategy.

    Raises:
        BadRequestError: when there is no strategy of this name.
    """
    if name not in STRATEGIES:
        raise BadRequestError(f"unknown strategy {name!r}; known are {', '.join(STRATEGIES)}")
    return name
