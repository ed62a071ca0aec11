"""The making of a session for a request, before it is opened: how long its answer may be, and its routes."""

from __future__ import annotations

from dataclasses import replace

from flowedge.core.errors import BadRequestError
from flowedge.core.request import Request
from flowedge.engine.draft_node.cache_budget import AdmissionLimits, rows_alone
from flowedge.engine.draft_node.draft_node_spec import DraftNodeSpec
from flowedge.engine.draft_node.draft_session import DraftSession
from flowedge.engine.draft_node.session_answer import TextStream
from flowedge.strategies.base import HierarchicalStrategy, Strategy
from flowedge.strategies.row_bounds import most_sequence


def fitted_request(
    request: Request, strategy: Strategy, spec: DraftNodeSpec, limits: AdmissionLimits
) -> Request:
    """Return a request that asks to be fitted with as many new tokens as fit, 1 at least.

    The number is the largest that DraftNodeSpec.sequence_rows and `check_fits_alone` accept, and never above
    the number that the request has. They refuse a prompt that leaves no capacity for one new token.
    """
    if not request.fit_context or request.rows_only or request.max_new_tokens < 1:
        return request
    capacity = rows_alone(limits, drafts=strategy.needs_drafter)
    fitting = most_sequence(capacity, strategy.max_draft_rows, spec.max_positions) - len(request.prompt)
    return replace(request, max_new_tokens=max(min(request.max_new_tokens, fitting), 1))


def context_tokens(spec: DraftNodeSpec, limits: AdmissionLimits) -> int:
    """Return the most tokens of a prompt and its answer together, where no rows are drafted."""
    return most_sequence(rows_alone(limits, drafts=False), 0, spec.max_positions)


def prepared_session(
    request: Request, strategy: Strategy, text: TextStream, spec: DraftNodeSpec, limits: AdmissionLimits
) -> DraftSession:
    """Return a session that is not open yet; its `capacity` is the cache rows that it needs.

    limits: to which a request is fitted that asks for it (see `fitted_request`).

    Raises:
        BadRequestError: when the request cannot be served by this pipeline, or its answer has ended already.
        CapacityError: when its sequence is longer than the model takes.
    """
    if strategy.needs_drafter and not spec.has_drafter:
        raise BadRequestError(
            f"strategy {strategy.name} needs a drafter and none is loaded; load one or use autoregressive"
        )
    request = fitted_request(request, strategy, spec, limits)
    session = DraftSession(request, strategy, text, spec, _side_routes(strategy, spec.num_routes))
    if (reason := session.answer.finish_reason) is not None:
        raise BadRequestError(f"the answer has ended with its {len(request.answered)} tokens: {reason}")
    return session


def _side_routes(strategy: Strategy, routes: int) -> range:
    """Return the last routes, as many as the strategy uses beside the target's."""
    if not isinstance(strategy, HierarchicalStrategy):
        return range(0)
    return range(1, routes)[max(routes - 1 - strategy.max_side_routes, 0) :]
