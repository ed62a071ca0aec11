"""The coverage of a true path by a drafter's trees, grown at places spread over the answer."""

from __future__ import annotations

import hashlib
import json
import math
import os
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from flowedge.core.arrays import NO_TOKEN, FloatArray
from flowedge.core.request import Noise, draft_noise
from flowedge.core.sampling import SamplingParams
from flowedge.drafting.drafter import ROOT, Drafter, DraftLayer
from flowedge.engine.jobs import GrowDraft
from flowedge_testbed.emulation.draft_share import WHOLE, DraftShare
from flowedge_testbed.model_set import ModelSet
from flowedge_testbed.replay.path_drafter import History, PathDrafter
from flowedge_testbed.true_paths.true_path import TruePath


@dataclass(frozen=True)
class TreeCoverage:
    """The coverage of a true path by trees that are drafted at several places of it.

    Attributes:
        sizes: for each node on the true path, except roots, the rows of the smallest best-first part of its
            tree that holds the node, the root's row included. All trees together, ascending.
        trees: number of trees.
    """

    sizes: tuple[int, ...]
    trees: int

    @classmethod
    def of(cls, trees: Sequence[Sequence[int]]) -> TreeCoverage:
        """Return the coverage by trees, each given by its own sizes."""
        return cls(tuple(sorted(size for tree in trees for size in tree)), len(trees))

    def depth(self, rows: float) -> float:
        """Return C(M): the expected depth of the true path inside the best `rows` rows of a tree.

        The depth is 0 for one row or less, and is interpolated between whole numbers.
        """
        if not self.trees:
            return 0.0
        whole = math.floor(rows)
        below, above = (bisect_right(self.sizes, count) / self.trees for count in (whole, whole + 1))
        return below + (rows - whole) * (above - below)


UNDRAFTED = TreeCoverage((), 0)  # of a method that drafts nothing


FORMAT = 1
BEAM = 16  # nodes of a layer that are expanded
CHILDREN = 16  # of each
DEPTH = 9
TREES = 32  # of one path, at most


class LayerSource(Protocol):
    """A source of draft layers, such as a PathDrafter."""

    def layer(self, history: History, job: GrowDraft) -> DraftLayer:
        """Return the layer that a job asks for, which is the next of its growth."""


def path_coverage(drafter: Drafter, path: TruePath, noise: SamplingParams | None) -> TreeCoverage:
    """Return the coverage by trees at up to TREES places of a path; `noise` as in Drafter.open.

    Places near the end are left out, unless there is no other: too little of the path follows them.
    """
    drafting = PathDrafter(drafter, path, "trees", noise)
    try:
        return TreeCoverage.of([tree_sizes(drafting, path, root) for root in roots(path)])
    finally:
        drafting.close()


def roots(path: TruePath) -> range:
    """Return the positions of the drawn tokens that trees are grown below, evenly spread."""
    first = path.prompt_tokens
    stop = max(len(path.tokens) - DEPTH, first + 1)
    return range(first, stop, -(-(stop - first) // TREES))


def tree_sizes(drafting: LayerSource, path: TruePath, root: int) -> list[int]:
    """Return the sizes of the smallest best-first parts of a tree that hold the path to depth 1, 2, ..."""
    history = History(root)
    nodes, parents, tokens = np.array([ROOT]), np.array([-1]), path.tokens[root : root + 1]
    above: FloatArray = np.zeros(1)  # scores of `nodes`
    layers: list[FloatArray] = [above]
    known = 1  # nodes of the tree so far
    on_path = [ROOT]
    lowest = 0.0  # score of the deepest node on the path
    for depth in range(1, DEPTH + 1):
        found = drafting.layer(history, GrowDraft("trees", 1, nodes, parents, tokens, CHILDREN, None, None))
        real = found.tokens != NO_TOKEN
        # A child never comes before its parent.
        scores = np.minimum(above[:, None] + found.log_probs, above[:, None])[real]
        layers.append(scores)
        own_parents, own_tokens = np.repeat(nodes, real.sum(axis=1)), found.tokens[real]
        hits = np.flatnonzero((own_parents == on_path[-1]) & (own_tokens == path.draw(root + depth)))
        if len(hits):
            on_path.append(known + int(hits[0]))
            lowest = float(scores[hits[0]])
        best = np.sort(np.argsort(-scores, kind="stable")[:BEAM])
        nodes, parents, tokens, above = known + best, own_parents[best], own_tokens[best], scores[best]
        known += len(scores)
        followed = bool(len(hits)) and on_path[-1] in nodes
        if not len(nodes) or (not followed and float(above.max()) <= lowest):
            break  # deeper nodes rank behind every node on the path
    ranking = np.argsort(-np.concatenate(layers), kind="stable")
    places = np.empty(len(ranking), dtype=np.int64)
    places[ranking] = np.arange(1, len(ranking) + 1)
    return [int(places[node]) for node in on_path[1:]]


class CoverageStore:
    """Tree coverages on disk, by a digest of everything that determines them."""

    def __init__(self, models: ModelSet, directory: Path) -> None:
        """`directory` is that of a ReplayBackend, whose true paths are used."""
        self._models = models
        self._directory = directory / "coverage"
        self._paths = models.path_source(directory)

    def coverage(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams,
        max_new_tokens: int,
        noise: Noise,
        share: DraftShare = WHOLE,
    ) -> TreeCoverage:
        """Return the coverage of a request's true path by a kind of drafting; compute it if not stored."""
        models, ranked_by = self._models, draft_noise(sampling, noise)
        drafter = models.drafter_for(share)
        path_key = self._paths.key(prompt, sampling, max_new_tokens, models.eos)
        key = self._key(path_key, drafter.fingerprint, ranked_by)
        file = self._directory / f"{key}.json"
        if file.is_file():
            content = json.loads(file.read_text(encoding="utf-8"))
            return TreeCoverage(tuple(content["sizes"]), content["trees"])
        path = self._paths.path(prompt, sampling, max_new_tokens, models.eos)
        coverage = path_coverage(drafter, path, ranked_by)
        self._directory.mkdir(parents=True, exist_ok=True)
        part = file.with_name(f"{file.name}.{os.getpid()}.part")
        part.write_text(json.dumps(asdict(coverage)), encoding="utf-8")
        part.replace(file)
        return coverage

    @staticmethod
    def _key(path: str, drafter: str, noise: SamplingParams | None) -> str:
        content = {
            "format": FORMAT,
            "path": path,
            "drafter": drafter,
            "noise": None if noise is None else asdict(noise),
            "tree": [BEAM, CHILDREN, DEPTH, TREES],
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]
