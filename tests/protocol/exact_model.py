"""A model in exact integer arithmetic, to hold the protocol to account without rounding.

The KV of a row is a hash of what came into the row (and so of its ancestor path), and attention is a hash of
the set of visible KVs. Any row that is missing, stale, misplaced or wrongly visible changes every later
token.
"""

from __future__ import annotations

import numpy as np

from flowedge.drafting.drafter import NO_TOKEN, DraftLayer
from flowedge.messages import CONTEXT, Payload
from flowedge.runtime.jobs import (
    DraftJob,
    DraftResult,
    DropCache,
    ExtendDraft,
    Forward,
    GrowDraft,
    OpenCache,
    OpenDraft,
    StageJob,
    Verify,
)
from flowedge.sampling import walk

U64 = np.uint64
POISON = U64(0xDEADBEEFDEADBEEF)


def mix(x):
    """The splitmix64 finaliser of a uint64 array."""
    x = (x ^ (x >> U64(30))) * U64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> U64(27))) * U64(0x94D049BB133111EB)
    return x ^ (x >> U64(31))


def row_kv(stage: int, inputs, positions):
    return mix(mix(inputs + U64(stage + 1)) + positions.astype(U64) * U64(0x9E3779B97F4A7C15))


def attend(inputs, visible_sum):
    return mix(inputs ^ mix(visible_sum))


def token_of(hidden: int, position: int, vocab: int) -> int:
    return int(mix(np.array([hidden], dtype=U64) ^ U64(position))[0] % U64(vocab))


class PlainModel:
    """The same model run alone, one token at a time, with nothing but a growing list of KVs per stage."""

    def __init__(self, num_stages: int, vocab: int) -> None:
        self.num_stages = num_stages
        self.vocab = vocab

    def generate(self, prompt, max_new_tokens: int, eos=frozenset()) -> list[int]:
        sums = [np.zeros(1, dtype=U64) for _ in range(self.num_stages)]
        out: list[int] = []
        tokens = list(prompt)
        position = 0
        while True:
            hidden = np.array([tokens[position]], dtype=U64)
            for stage in range(self.num_stages):
                kv = row_kv(stage, hidden, np.array([position]))
                sums[stage] = sums[stage] + mix(kv)
                hidden = attend(hidden, sums[stage])
            position += 1
            if position == len(tokens):
                token = token_of(int(hidden[0]), position, self.vocab)
                tokens.append(token)
                out.append(token)
                if len(out) == max_new_tokens or token in eos:
                    return out


class ExactStage:
    """Executes a stage's jobs on hashes; asserts the invariants of the cache."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.caches: dict[str, np.ndarray] = {}

    def run(self, job: StageJob) -> Payload | None:
        match job:
            case OpenCache():
                assert job.session not in self.caches
                self.caches[job.session] = np.full(job.capacity, POISON, dtype=U64)
                return None
            case DropCache():
                del self.caches[job.session]
                return None
            case Forward():
                return self._forward(job)

    def _forward(self, job: Forward) -> Payload | None:
        cache = self.caches[job.session]
        assert job.settled + len(job.slots) == job.cached
        assert np.all(job.slots >= job.settled + np.arange(len(job.slots)))
        cache[job.settled : job.cached] = cache[job.slots]
        cache[job.cached :] = POISON
        if job.dead:
            return None
        inputs = job.payload.reshape(-1).astype(U64)
        n = len(inputs)
        kv = row_kv(self.index, inputs, job.positions)
        cache[job.cached : job.cached + n] = kv
        assert not np.any(cache[: job.cached + n] == POISON), "a row that is seen was never computed"
        mixed = mix(cache[: job.cached + n])
        path_sums = np.zeros((job.cached + n - job.context, 1), dtype=U64)
        context_sum = mixed[: job.context].sum(dtype=U64, keepdims=True)
        for offset, parent in enumerate(job.tail_parents):
            above = context_sum if parent == CONTEXT else path_sums[parent - job.context]
            path_sums[offset] = above + mixed[job.context + offset]
        path_sums = path_sums[:, 0]
        return attend(inputs, path_sums[job.cached - job.context :]).reshape(n, 1)


class ExactHead:
    """Executes a draft node's jobs: draws tokens from hashes, and drafts at random."""

    def __init__(self, vocab: int, rng: np.random.Generator) -> None:
        self.vocab = vocab
        self.rng = rng
        self.open: set[str] = set()
        self.fed: dict[str, int] = {}
        self.silence = float(rng.choice([0.0, 0.0, 0.3, 1.0]))  # how often it proposes less than it could

    def run(self, job: DraftJob) -> DraftResult:
        match job:
            case OpenDraft():
                self.open.add(job.session)
                self.fed[job.session] = 0
                return None
            case DropCache():
                self.open.remove(job.session)
                return None
            case Verify():
                hidden = job.hidden.reshape(-1)
                return walk(
                    job.tokens.tolist(),
                    job.parents.tolist(),
                    lambda row: token_of(int(hidden[row]), int(job.positions[row]) + 1, self.vocab),
                )
            case ExtendDraft():
                assert len(job.features) == len(job.next_tokens)
                self.fed[job.session] += len(job.features)
                return None
            case GrowDraft():
                assert job.session in self.open
                if job.features is not None:
                    self.fed[job.session] += len(job.features)
                return self._grow(job)

    def _grow(self, job: GrowDraft) -> DraftLayer:
        width = min(job.width, self.vocab)
        tokens = np.array([self.rng.permutation(self.vocab)[:width] for _ in job.nodes], dtype=np.int64)
        weights = np.sort(self.rng.choice([0.05, 0.25, 0.25, 0.5, 0.9], size=tokens.shape))[:, ::-1]
        return some_children(self.rng, tokens, np.log(weights), self.silence)


def some_children(rng: np.random.Generator, tokens, log_probs, silence: float) -> DraftLayer:
    """A layer without some of the children, as drafters that do not know any further have it."""
    nodes, width = tokens.shape
    counts = np.where(rng.random(nodes) < silence, rng.integers(0, width + 1, nodes), width)
    gone = np.arange(width) >= counts[:, None]
    longest = int(counts.max())
    tokens, log_probs = np.where(gone, NO_TOKEN, tokens), np.where(gone, -np.inf, log_probs)
    return DraftLayer(tokens[:, :longest], log_probs[:, :longest])
