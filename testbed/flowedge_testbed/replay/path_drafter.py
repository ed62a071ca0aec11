"""Drafting along one true path, where each layer of each tree is computed once, and the paths of a task."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from flowedge.core.request import Request
from flowedge.core.sampling import SamplingParams
from flowedge.drafting.drafter import ROOT, Drafter, DraftLayer, Frontier, GrowRequest
from flowedge.drafting.suffix_index import SuffixIndex
from flowedge.engine.jobs import GrowDraft
from flowedge_testbed.emulation.draft_share import DraftShare
from flowedge_testbed.true_paths.true_path import PathSource, TruePath


@dataclass(eq=False)
class History:
    """The layers of one growth so far.

    Attributes:
        rows: true rows before the growth's root.
        layers: the jobs that asked for its layers.
        paths: the number of the token path from the root to each expanded node, by node.
    """

    rows: int
    layers: list[GrowDraft] = field(default_factory=list)
    paths: dict[int, int] = field(default_factory=dict)


class PathDrafter:
    """A drafter along a true path, whose draft layers are computed once.

    A layer depends on the true rows before the root and on the tokens from the root to each frontier node.
    So strategies and emulated models share the layers.
    """

    def __init__(
        self,
        drafter: Drafter,
        path: TruePath,
        name: str,
        noise: SamplingParams | None = None,
        earlier: SuffixIndex | None = None,
    ) -> None:
        """Open a session of the drafter; `noise` and `earlier` as in Drafter.open."""
        self._drafter = drafter
        self._path = path
        self._name = name
        self._rows = 0  # true rows in the drafter's cache
        self._live: History | None = None  # the growth whose scratch the drafter holds
        self._live_layers = 0
        self._growth = 0
        self._paths: dict[tuple[int, int, int], int] = {}
        self._layers: dict[tuple[int, int, bool, tuple[int, ...]], DraftLayer] = {}
        drafter.open(name, len(path.tokens), int(path.tokens[0]), noise, None, earlier)

    def close(self) -> None:
        """Free the drafter's cache of this path."""
        self._drafter.close(self._name)

    def layer(self, history: History, job: GrowDraft) -> DraftLayer:
        """Return the layer that a job asks for, which is the next of its growth."""
        history.layers.append(job)
        key = (history.rows, job.width, job.lookup_alone, self._frontier(history, job))
        known = self._layers.get(key)
        if known is None:
            known = self._layers[key] = self._draft(history)
        return known

    def _frontier(self, history: History, job: GrowDraft) -> tuple[int, ...]:
        """Return the numbers of the token paths to the frontier's nodes."""
        numbers: list[int] = []
        for node, parent, token in zip(
            job.nodes.tolist(), job.parents.tolist(), job.tokens.tolist(), strict=True
        ):
            step = (history.rows, -1 if node == ROOT else history.paths[parent], token)
            number = self._paths.setdefault(step, len(self._paths))
            history.paths[node] = number
            numbers.append(number)
        return tuple(numbers)

    def _draft(self, history: History) -> DraftLayer:
        """Compute the last layer of a growth, and before it the layers whose scratch is gone."""
        if self._live is not history:
            self._set_rows(history.rows)
            self._live, self._live_layers = history, 0
            self._growth += 1
        layer: DraftLayer | None = None
        for job in history.layers[self._live_layers :]:
            frontier = Frontier(job.nodes.tolist(), job.parents.tolist(), job.tokens.tolist())
            asked = GrowRequest(self._name, self._growth, frontier, job.width, lookup_alone=job.lookup_alone)
            (layer,) = self._drafter.grow([asked])
        self._live_layers = len(history.layers)
        assert layer is not None
        return layer

    def _set_rows(self, rows: int) -> None:
        """Rewind or extend the drafter's cache to `rows` true rows; the last row is always computed anew."""
        start = min(self._rows, rows - 1)
        self._drafter.rewind(self._name, start)
        features, tokens = self._path.features[start:rows], self._path.tokens[start + 1 : rows + 1]
        self._drafter.grow([GrowRequest.extension(self._name, features, tokens)])
        self._rows = rows


class KeptPaths:
    """The paths and drafters of requests, kept for further requests of the same prompt and sampling."""

    def __init__(self, source: PathSource, drafter_for: Callable[[DraftShare], Drafter]) -> None:
        self._source = source
        self._drafter_for = drafter_for
        self._paths: dict[str, TruePath] = {}
        self._drafters: dict[tuple[str, bool, DraftShare], PathDrafter] = {}

    def of(self, request: Request, share: DraftShare) -> tuple[TruePath, PathDrafter]:
        """Return the true path of a request, and the drafter along it; `share` as in ModelSet.drafter_for."""
        asked = (request.prompt, request.sampling, request.max_new_tokens, request.eos)
        key = self._source.key(*asked)
        if key not in self._paths:
            self._paths[key] = self._source.path(*asked)
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
