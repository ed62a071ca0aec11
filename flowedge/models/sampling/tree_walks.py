"""The walks of the target's draws through returned draft trees of several sessions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from flowedge.core.arrays import IntArray, Payload
from flowedge.core.errors import NonFiniteError
from flowedge.core.sampling import PathWalk, SamplingParams, Walk
from flowedge.models.copies import to_device
from flowedge.models.layers.head import LMHead
from flowedge.models.sampling.path_logits import PathLogits
from flowedge.models.sampling.token_sampler import TokenSampler

Drawn = Callable[[int], int]


@dataclass(frozen=True, eq=False)
class ReturnedTree:
    """The draft rows of a session that came back.

    Attributes:
        hidden: [n, hidden or more], the rows' final hidden states, then what was tapped; row 0 is the root.
        tokens, parents: as in `walk`; positions: int64 [n], of the token drawn after each row.
    """

    sampling: SamplingParams
    hidden: Payload
    tokens: Sequence[int]
    parents: Sequence[int]
    positions: IntArray


@torch.inference_mode()
def walk_together(head: LMHead, trees: Sequence[ReturnedTree]) -> list[Walk | NonFiniteError]:
    """Follow the target's draws through each tree.

    The logits of all trees' rows are one product. Where the head gives rows the same bits whatever their
    number, only rows that a walk may visit are computed: those of all walks together, a few rows ahead.

    Returns:
        For each tree its walk, or the error if logits on its path are no numbers.
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
    for index, tree in enumerate(trees):
        groups.setdefault(replace(tree.sampling, seed=0), []).append(index)
    order = [index for members in groups.values() for index in members]
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
    return [drawn[index] for index in range(len(trees))]


def _walk_ahead(
    head: LMHead,
    trees: Sequence[ReturnedTree],
    samplers: Sequence[TokenSampler],
    hidden: Sequence[torch.Tensor],
) -> list[Walk | NonFiniteError]:
    """Walk through all trees as far as logits are known, then compute those of the next rows of all."""
    walks = [PathWalk(tree.tokens, tree.parents) for tree in trees]
    logits = [PathLogits(head, rows, tree.parents) for rows, tree in zip(hidden, trees, strict=True)]
    errors: dict[int, NonFiniteError] = {}
    going = list(range(len(trees)))
    while going:
        PathLogits.compute([(logits[index], walks[index].row) for index in going])
        for index in list(going):
            own, walk = logits[index], walks[index]
            try:
                while own.knows(walk.row):
                    position = int(trees[index].positions[walk.row])
                    if not walk.follow(samplers[index].draw(own.of(walk.row), position)):
                        going.remove(index)
                        break
            except NonFiniteError as error:
                errors[index] = error
                going.remove(index)
    return [errors[index] if index in errors else walks[index].walked for index in range(len(trees))]


def _walked(tree: ReturnedTree, draw: Drawn) -> Walk | NonFiniteError:
    path = PathWalk(tree.tokens, tree.parents)
    try:
        while path.follow(draw(path.row)):
            pass
    except NonFiniteError as error:
        return error
    return path.walked
