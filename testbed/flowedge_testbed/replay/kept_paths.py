"""True paths and their drafters, each made once for all the requests of a task."""

from __future__ import annotations

from collections.abc import Callable

from flowedge.core.request import Request
from flowedge.drafting.drafter import Drafter
from flowedge_testbed.emulation.draft_share import DraftShare
from flowedge_testbed.replay.path_drafter import PathDrafter
from flowedge_testbed.replay.true_path import PathStore, TruePath


class KeptPaths:
    """The paths and drafters of requests, kept for further requests of the same prompt and sampling."""

    def __init__(self, store: PathStore, drafter_for: Callable[[DraftShare], Drafter]) -> None:
        self._store = store
        self._drafter_for = drafter_for
        self._paths: dict[str, TruePath] = {}
        self._drafters: dict[tuple[str, bool, DraftShare], PathDrafter] = {}

    def of(self, request: Request, share: DraftShare) -> tuple[TruePath, PathDrafter]:
        """Return the true path of a request, and the drafter along it; `share` as in ModelSet.drafter_for."""
        asked = (request.prompt, request.sampling, request.max_new_tokens, request.eos)
        key = self._store.key(*asked)
        if key not in self._paths:
            self._paths[key] = self._store.path(*asked)
        noise = request.draft_noise
        kind = (key, noise is not None, share)
        if kind not in self._drafters:
            name = f"replay-{len(self._drafters)}"
            self._drafters[kind] = PathDrafter(self._drafter_for(share), self._paths[key], name, noise)
        return self._paths[key], self._drafters[kind]

    def close(self) -> None:
        """Free the drafters' caches."""
        for drafter in self._drafters.values():
            drafter.close()
