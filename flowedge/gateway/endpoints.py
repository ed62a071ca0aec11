"""The names of endpoints, by which requests are logged and counted."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fastapi.routing import iter_route_contexts
from starlette.routing import BaseRoute, compile_path
from starlette.types import Scope


class EndpointNames:
    """The paths of all routes, which also name requests that are refused before they are led to one.

    Nobody can make further names by asking for other paths.
    """

    def __init__(self, routes: Iterable[BaseRoute]) -> None:
        """Take the routes of an application, those of its routers included."""
        paths = [context.path for context in iter_route_contexts(list(routes))]
        self._patterns: list[tuple[re.Pattern[str], str]] = [
            (compile_path(path)[0], path) for path in paths if path
        ]

    def of(self, scope: Scope) -> str:
        """Return the path of the first route for a request's path, whatever its method; "" for none."""
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        return next((name for pattern, name in self._patterns if pattern.match(path)), "")
