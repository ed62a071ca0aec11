"""A model in exact integer arithmetic, to hold the protocol to account without rounding.

The KV of a row is a hash of what came into the row (and so of its ancestor path), and attention is a hash of
the set of visible KVs. Any row that is missing, stale, misplaced or wrongly visible changes every later
token. A recurrent stage has a state instead, which depends on the order of its rows: it is held behind the
committed rows alone, and the rows that it has taken in are gone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from flowedge.core.arrays import NO_TOKEN, Payload
from flowedge.core.errors import PrefixLostError
from flowedge.core.messages import CONTEXT
from flowedge.core.sampling import TokenLikelihood, Walk, walk
from flowedge.drafting.drafter import DraftLayer
from flowedge.engine.draw import DrawnRows
from flowedge.engine.executors.one_by_one import OneByOneExecutor
from flowedge.engine.jobs import (
    CacheJob,
    DraftOutcome,
    DropCache,
    ExtendDraft,
    Forward,
    ForwardBatch,
    ForwardOutcome,
    GrowDraft,
    KeepDraft,
    ModelJob,
    OpenCache,
    OpenDraft,
    StageJob,
    StageResult,
    Verify,
)

MASK = (1 << 64) - 1
POISON = 0xDEADBEEFDEADBEEF
TAKEN = -1  # a row that a state has taken in, in the place of its KV


def mix(x: int) -> int:
    """The splitmix64 finaliser of a 64-bit integer."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def row_kv(stage: int, value: int, position: int) -> int:
    return mix(mix(mix(value + stage + 1 & MASK) + position * 0x9E3779B97F4A7C15 & MASK))


def updated(state: int, kv: int) -> int:
    return mix((state * 3 & MASK) ^ kv)


def attend(value: int, visible_sum: int) -> int:
    return mix(value ^ mix(visible_sum & MASK))


def token_of(hidden: int, position: int, vocab: int) -> int:
    return mix(hidden ^ position) % vocab


def said(answer: Sequence[int]) -> int:
    """A hash of the tokens of an answer, by which its next token depends on all of them if it has rules."""
    state = 0
    for token in answer:
        state = mix(state + token + 1 & MASK)
    return state


class PlainModel:
    """The same model run alone, one token at a time, with nothing but a growing sum of KVs per stage."""

    def __init__(
        self, num_stages: int, vocab: int, taps: Sequence[int] = (), recurrent: Collection[int] = ()
    ) -> None:
        """taps: the stages that tap what comes in; recurrent: those with a state."""
        self.recurrent = recurrent
        self.num_stages = num_stages
        self.vocab = vocab
        self.taps = taps
        # Of each row that the last answer needed: what leaves the last stage, then what was tapped.
        self.features: list[list[int]] = []

    def generate(self, prompt, max_new_tokens: int, eos=frozenset(), rules=None) -> list[int]:
        sums = [0] * self.num_stages
        self.features = []
        out: list[int] = []
        tokens = list(prompt)
        position = 0
        while True:
            hidden = tokens[position]
            tapped = []
            for stage in range(self.num_stages):
                if stage in self.taps:
                    tapped.append(hidden)
                kv = row_kv(stage, hidden, position)
                sums[stage] = updated(sums[stage], kv) if stage in self.recurrent else sums[stage] + kv
                hidden = attend(hidden, sums[stage])
            self.features.append([hidden, *tapped])
            position += 1
            if position == len(tokens):
                token = token_of(hidden ^ said(out) if rules else hidden, position, self.vocab)
                tokens.append(token)
                out.append(token)
                if len(out) == max_new_tokens or token in eos:
                    return out


class ExactStage:
    """Executes a stage's jobs on hashes; asserts the invariants of the cache."""

    def __init__(self, index: int, vocab: int = 1, *, taps: bool = False, recurrent: bool = False) -> None:
        """vocab: of the tokens that it draws, if it is asked to; taps: whether it taps what comes in.

        recurrent: whether it has a state.
        """
        self.recurrent = recurrent
        self.states: dict[str, tuple[int, int]] = {}  # rows that a state has taken in, and the state
        self.index = index
        self.vocab = vocab
        self.taps = taps
        self.caches: dict[str, list[int]] = {}
        self.refused: set[str] = set()  # sessions whose cache was not opened; a stage drops them like others

    def run(self, job: StageJob) -> StageResult:
        match job:
            case OpenCache():
                assert job.session not in self.caches
                self.refused.add(job.session)
                copied: list[int] = []
                if job.copied is not None:
                    if job.copied.session not in self.caches:
                        raise PrefixLostError(f"no rows of {job.copied.session} are here")
                    copied = [self.caches[job.copied.session][slot] for slot in job.copied.slots]
                    assert POISON not in copied, "a row that is copied was never computed"
                    if self.recurrent and len(copied) < self.states[job.copied.session][0]:
                        raise PrefixLostError(f"the state of {job.copied.session} is behind more rows")
                self.states[job.session] = (0, 0) if not copied else self.states[job.copied.session]
                self.caches[job.session] = copied + [POISON] * (job.capacity - len(copied))
                self.refused.remove(job.session)
                return None
            case DropCache() if job.session in self.refused:
                self.refused.remove(job.session)
                return None
            case DropCache():
                del self.caches[job.session], self.states[job.session]
                return None
            case ForwardBatch():
                sessions = [forward.session for forward in job.forwards]
                assert 1 <= len(sessions) == len(set(sessions))
                return [self._run_forward(forward) for forward in job.forwards]

    def _run_forward(self, job: Forward) -> ForwardOutcome:
        output = self._forward(job)
        return output if output is None or job.draw is None else self._draw(job, output)

    def _draw(self, job: Forward, output: Payload) -> DrawnRows:
        draw, positions = job.draw, job.positions.tolist()
        assert draw is not None
        visitable = draw.visitable.tolist()
        hidden = [int(output[row, 0]) for row in visitable]
        rows, tokens = draw.follow(
            lambda place: token_of(hidden[place], positions[visitable[place]] + 1, self.vocab)
        )
        kept = output if job.committed else output[rows]
        return DrawnRows(rows, tokens, kept if draw.features else kept[:, :0])

    def _forward(self, job: Forward) -> Payload | None:
        cache, slots, cached = self.caches[job.session], job.slots.tolist(), job.cached
        capacity = len(cache)
        assert job.gathered_until + len(slots) == cached
        assert all(slot >= row for row, slot in enumerate(slots, start=job.gathered_until))
        cache[job.gathered_until :] = [cache[slot] for slot in slots] + [POISON] * (capacity - cached)
        if job.dead:
            return None
        payload = job.payload.astype(np.uint64).reshape(job.num_rows, -1)
        inputs, positions = payload[:, 0].tolist(), job.positions.tolist()
        rows = cached + len(inputs)
        cache[cached:rows] = [row_kv(self.index, *row) for row in zip(inputs, positions, strict=True)]
        assert len(cache) == capacity, "more rows than the cache has room for"
        assert POISON not in cache[:rows], "a row that is seen was never computed"
        context_sum = self._take_in(job) if self.recurrent else sum(cache[: job.context])
        path_sums: list[int] = []
        for kv, parent in zip(cache[job.context : rows], job.tail_parents.tolist(), strict=True):
            before = context_sum if parent == CONTEXT else path_sums[parent - job.context]
            path_sums.append(updated(before, kv) if self.recurrent else before + kv)
        outputs = map(attend, inputs, path_sums[cached - job.context :])
        hidden = np.array(list(outputs), dtype=np.uint64).reshape(-1, 1)
        return np.concatenate([hidden, payload[:, 1:], payload[:, : int(self.taps)]], axis=1)

    def _take_in(self, job: Forward) -> int:
        """Take the committed rows into the state of a session, and return it."""
        cache, (taken, state) = self.caches[job.session], self.states[job.session]
        assert taken <= job.context, "a state cannot go back"
        for row in range(taken, job.context):
            state, cache[row] = updated(state, cache[row]), TAKEN
        self.states[job.session] = job.context, state
        return state


class ExactHead(OneByOneExecutor):
    """Executes a draft node's jobs: draws tokens from hashes, and drafts at random."""

    def __init__(self, vocab: int, rng: np.random.Generator) -> None:
        self.vocab = vocab
        self.rng = rng
        self.open: set[str] = set()
        self.kept: set[str] = set()
        self.fed: dict[str, list[list[int]]] = {}  # features of true rows, by session
        self.told: dict[str, list[int]] = {}  # tokens of true rows, by session
        self.silence = float(rng.choice([0.0, 0.0, 0.3, 1.0]))  # how often it proposes less than it could

    def _run(self, job: CacheJob | ModelJob) -> DraftOutcome:
        match job:
            case OpenDraft():
                assert job.session not in self.open | self.kept
                self.open.add(job.session)
                self.fed[job.session], self.told[job.session] = [], []
                if job.prefix is not None:
                    source, rows = job.prefix.session, job.prefix.rows
                    assert source in self.open | self.kept
                    assert rows <= len(self.told[source])
                    self.fed[job.session] += self.fed[source][:rows]
                    self.told[job.session] += self.told[source][:rows]
                return None
            case KeepDraft():
                self.open.remove(job.session)
                self.kept.add(job.session)
                return None
            case DropCache():
                # Sessions with rules have a state here without a drafter as well.
                assert job.session in self.open | self.kept or job.session not in self.fed
                self.open.discard(job.session)
                self.kept.discard(job.session)
                return None
            case Verify():
                return self._verify(job)
            case ExtendDraft():
                self._feed(job)
                return None
            case GrowDraft():
                assert job.session in self.open
                self._feed(job)
                if job.path is not None:
                    answer = list(job.path.tokens)
                    assert self.told[job.session][-len(answer) :] == answer, "another answer than the root's"
                return self._grow(job)

    def _verify(self, job: Verify) -> Walk:
        hidden, positions = job.hidden[:, 0].tolist(), job.positions.tolist()
        drawn: list[int] = []  # along the path

        def draw(row: int) -> int:
            value = hidden[row] ^ said([*job.path.tokens, *drawn]) if job.path is not None else hidden[row]
            drawn.append(token_of(value, positions[row] + 1, self.vocab))
            return drawn[-1]

        walked = walk(job.tokens.tolist(), job.parents.tolist(), draw)
        if job.path is None or job.path.rules.logprobs is None:
            return walked
        return replace(walked, likelihoods=tuple(TokenLikelihood(token, 0.0) for token in drawn))

    def _feed(self, job: ExtendDraft | GrowDraft) -> None:
        if job.features is not None:
            assert job.next_tokens is not None
            assert len(job.features) == len(job.next_tokens)
            self.fed[job.session] += job.features.tolist()
        if job.next_tokens is not None:
            self.told[job.session] += job.next_tokens.tolist()

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
