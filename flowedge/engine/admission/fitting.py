"""How long an answer may be: what the model's positions and the caches have room for."""

from __future__ import annotations

from dataclasses import replace

from flowedge.core.request import Request
from flowedge.engine.admission.cache_budget import AdmissionLimits, rows_alone
from flowedge.engine.sessions.draft_node_spec import DraftNodeSpec
from flowedge.strategies.base import Strategy
from flowedge.strategies.row_bounds import most_sequence


def fitted_request(
    request: Request, strategy: Strategy, spec: DraftNodeSpec, limits: AdmissionLimits
) -> Request:
    """Return a request that asks to be fitted with as many new tokens as there is room for, 1 at least.

    The number is the largest that DraftNodeSpec.sequence_rows and `check_fits_alone` accept, and never above
    the number that the request has. They refuse a prompt without room for one new token.
    """
    if not request.fit_context or request.rows_only or request.max_new_tokens < 1:
        return request
    capacity = rows_alone(limits, drafts=strategy.needs_drafter)
    room = most_sequence(capacity, strategy.max_draft_rows, spec.max_positions) - len(request.prompt)
    return replace(request, max_new_tokens=max(min(request.max_new_tokens, room), 1))


def context_tokens(spec: DraftNodeSpec, limits: AdmissionLimits) -> int:
    """Return the most tokens of a prompt and its answer together, where no rows are drafted."""
    return most_sequence(rows_alone(limits, drafts=False), 0, spec.max_positions)
