"""The making of a session for a request, before it is opened."""

from __future__ import annotations

from flowedge.core.errors import BadRequestError
from flowedge.core.request import Request
from flowedge.engine.admission.cache_budget import AdmissionLimits
from flowedge.engine.admission.fitting import fitted_request
from flowedge.engine.draft_session import DraftSession
from flowedge.engine.sessions.draft_node_spec import DraftNodeSpec
from flowedge.engine.stopping import TextStream
from flowedge.strategies.base import HierarchicalStrategy, Strategy


def prepared_session(
    request: Request, strategy: Strategy, text: TextStream, spec: DraftNodeSpec, limits: AdmissionLimits
) -> DraftSession:
    """Return a session that is not open yet; its `capacity` is the cache rows that it needs.

    limits: to which a request is fitted that asks for it (see `fitted_request`).

    Raises:
        BadRequestError: when the request cannot be served by this pipeline.
        CapacityError: when its sequence is longer than the model takes.
    """
    if strategy.needs_drafter and not spec.has_drafter:
        raise BadRequestError(
            f"strategy {strategy.name} needs a drafter and none is loaded; load one or use autoregressive"
        )
    request = fitted_request(request, strategy, spec, limits)
    return DraftSession(request, strategy, text, spec, _side_routes(strategy, spec.num_routes))


def _side_routes(strategy: Strategy, routes: int) -> range:
    """Return the last routes, as many as the strategy uses beside the target's."""
    if not isinstance(strategy, HierarchicalStrategy):
        return range(0)
    return range(1, routes)[max(routes - 1 - strategy.max_side_routes, 0) :]
