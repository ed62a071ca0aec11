"""The walks of the target's draws through returned draft trees of several sessions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch

from flowedge.core.arrays import IntArray, Payload
from flowedge.core.errors import BadRequestError, NonFiniteError
from flowedge.core.sampling import PathWalk, SamplingParams, Walk
from flowedge.models.host.copies import to_device
from flowedge.models.lm_head import LMHead
from flowedge.models.sampling.path_logits import PathLogits
from flowedge.models.sampling.ruled_draws import RuledDraws
from flowedge.models.sampling.token_sampler import TokenSampler

Drawn = Callable[[int], int]


@dataclass(frozen=True, eq=False)
class ReturnedTree:
    """The draft rows of a session that came back.

    Attributes:
        hidden: [n, hidden or more], the rows' final hidden states, then what was tapped; row 0 is the root.
        tokens, parents: as in `walk`; positions: int64 [n], of the token drawn after each row.
        ruled: draws by the session's rules, at the root; None without rules.
    """

    sampling: SamplingParams
    hidden: Payload
    tokens: Sequence[int]
    parents: Sequence[int]
    positions: IntArray
    ruled: RuledDraws | None = None


WalkError: TypeAlias = NonFiniteError | BadRequestError


@torch.inference_mode()
def walk_together(head: LMHead, trees: Sequence[ReturnedTree]) -> list[Walk | WalkError]:
    """Follow the target's draws through each tree.

    The logits of all trees' rows are one product. Where the head gives rows the same bits whatever their
    number, only rows that a walk may visit are computed: those of all walks together, a few rows ahead.

    Returns:
        For each tree its walk, or the error if logits on its path are no numbers, or its grammar cannot be
        followed at the root. Where it cannot be followed below the root, the walk has the error.
    """
    samplers = [TokenSampler(tree.sampling, head.vocab_size) for tree in trees]
    hidden = [tree.hidden[:, : head.hidden_size] for tree in trees]
    streams = [sampler.streams(tree.positions) for sampler, tree in zip(samplers, trees, strict=True)]
    copied = to_device(head.device, *hidden, *streams)
    rows, on_device = copied[: len(trees)], copied[len(trees) :]
    if head.rows_are_apart:
        return _walk_ahead(head, trees, samplers, rows)
    drawn = _drawn_of_all(head, trees, samplers, rows, on_device)
    return [_walked(tree, draw) for tree, draw in zip(trees, drawn, strict=True)]


def _drawn_of_all(
    head: LMHead,
    trees: Sequence[ReturnedTree],
    samplers: Sequence[TokenSampler],
    hidden: Sequence[torch.Tensor],
    streams: Sequence[torch.Tensor],
) -> list[Drawn]:
    """The draws after each tree's rows. Trees with the same filters are drawn from together."""
    groups: dict[SamplingParams, list[int]] = {}
    ruled: list[int] = []
    for index, tree in enumerate(trees):
        group = groups.setdefault(replace(tree.sampling, seed=0), []) if tree.ruled is None else ruled
        group.append(index)
    order = [index for members in [*groups.values(), ruled] for index in members]
    logits = head.logits(torch.cat([hidden[index] for index in order]))
    drawn: dict[int, Drawn] = {}
    first = 0
    for members in groups.values():
        counts = [len(hidden[index]) for index in members]
        own = logits[first : first + sum(counts)]
        first += sum(counts)
        draws = TokenSampler.draws_of(
            [samplers[index] for index in members],
            own,
            [trees[index].positions for index in members],
            torch.cat([streams[index] for index in members]),
        )
        drawn.update(zip(members, draws, strict=True))
    for index in ruled:
        drawn[index] = _ruled_draw(trees[index], logits[first : first + len(hidden[index])])
        first += len(hidden[index])
    return [drawn[index] for index in range(len(trees))]


def _walk_ahead(
    head: LMHead,
    trees: Sequence[ReturnedTree],
    samplers: Sequence[TokenSampler],
    hidden: Sequence[torch.Tensor],
) -> list[Walk | WalkError]:
    """Walk through all trees as far as logits are known, then compute those of the next rows of all."""
    walks = [PathWalk(tree.tokens, tree.parents) for tree in trees]
    logits = [PathLogits(head, rows, tree.parents) for rows, tree in zip(hidden, trees, strict=True)]
    broken: dict[int, Walk | WalkError] = {}
    going = list(range(len(trees)))
    while going:
        PathLogits.compute([(logits[index], walks[index].row) for index in going])
        for index in list(going):
            own, walk, ruled = logits[index], walks[index], trees[index].ruled
            draw = samplers[index].draw if ruled is None else ruled.draw
            try:
                while own.knows(walk.row):
                    position = int(trees[index].positions[walk.row])
                    if not walk.follow(draw(own.of(walk.row), position)):
                        going.remove(index)
                        break
            except (NonFiniteError, BadRequestError) as error:
                broken[index] = _broken_off(trees[index], walk, error)
                going.remove(index)
    return [
        broken[index] if index in broken else _with_likelihoods(tree, walks[index].walked)
        for index, tree in enumerate(trees)
    ]


def _walked(tree: ReturnedTree, draw: Drawn) -> Walk | WalkError:
    path = PathWalk(tree.tokens, tree.parents)
    try:
        while path.follow(draw(path.row)):
            pass
    except (NonFiniteError, BadRequestError) as error:
        return _broken_off(tree, path, error)
    return _with_likelihoods(tree, path.walked)


def _broken_off(tree: ReturnedTree, path: PathWalk, error: WalkError) -> Walk | WalkError:
    # Rules are broken at a row below the root only if the answer goes on there, which is not known here.
    if isinstance(error, NonFiniteError) or path.row == 0:
        return error
    return _with_likelihoods(tree, path.broken_off(error))


def _ruled_draw(tree: ReturnedTree, logits: torch.Tensor) -> Drawn:
    """The draws after the rows of a path, by the rules of its session."""
    ruled = tree.ruled
    assert ruled is not None
    return lambda row: ruled.draw(logits[row], int(tree.positions[row]))


def _with_likelihoods(tree: ReturnedTree, walk: Walk) -> Walk:
    if tree.ruled is None or not tree.ruled.likelihoods:
        return walk
    return replace(walk, likelihoods=tuple(tree.ruled.likelihoods))
