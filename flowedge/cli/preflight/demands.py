"""Whether a model can do what is asked for, by the numbers of its header. Decisions without files."""

from __future__ import annotations

from collections.abc import Sequence

from flowedge.cli.preflight.model_header import ModelHeader
from flowedge.core.errors import BadRequestError, CapacityError
from flowedge.drafting.choice import RECALL, drafter_label
from flowedge.drafting.drafter_kind import DrafterKind
from flowedge.placement.split import check_split, even_split


def check_layers(counts: Sequence[int], stages: int | None, layers: int | None) -> None:
    """Check that a model's layers can be split as it is asked for.

    Args:
        counts: the layers of each stage; empty for as even as possible.
        stages: None if their number is not known yet.
        layers: of the model; None if they are not known.

    Raises:
        BadRequestError: when a stage would have no layer, or the counts do not add up to the layers.
    """
    if counts:
        check_split(list(counts), sum(counts) if layers is None else layers, stages or len(counts))
    elif layers is not None and stages is not None:
        even_split(layers, stages)


def check_room(header: ModelHeader, prompt_tokens: int, max_new_tokens: int, where: str = "") -> None:
    """Check that a prompt and its answer fit the model's positions.

    Args:
        prompt_tokens: at least so many tokens has the prompt.
        where: the prompt to name in the error, such as "prompt 3"; "" for the only one.

    Raises:
        CapacityError: when they do not fit.
    """
    wanted = prompt_tokens + max_new_tokens
    if header.positions is None or wanted <= header.positions:
        return
    prefix = f"{where}: " if where else ""
    if max_new_tokens >= header.positions:
        raise CapacityError(
            f"{prefix}--max-new-tokens {max_new_tokens} leaves no room for a prompt: {header.place} takes "
            f"{header.positions} tokens in all, the prompt included; lower it"
        )
    advice = "lower --max-new-tokens" if prompt_tokens < header.positions else "shorten the prompt"
    raise CapacityError(
        f"{prefix}{prompt_tokens} tokens of the prompt and {max_new_tokens} new ones make {wanted}, but "
        f"{header.place} takes {header.positions}; {advice}"
    )


def check_head(option: str, head: ModelHeader, target: ModelHeader) -> None:
    """Check that a draft head was made for a target of this size.

    Raises:
        BadRequestError: when hidden size or vocabulary differ.
    """
    pairs = [(head.hidden_size, target.hidden_size), (head.vocab_size, target.vocab_size)]
    if any(None not in pair and pair[0] != pair[1] for pair in pairs):
        raise BadRequestError(
            f"{option} is for a model of hidden size {head.hidden_size} and {head.vocab_size} tokens, but "
            f"{target.place} has {target.hidden_size} and {target.vocab_size}; leave --drafter out to "
            "draft by lookup (ngram), or train a head with flowedge train-drafter"
        )


def check_recall(names: Sequence[str], kinds: Sequence[DrafterKind | None]) -> None:
    """Check that `recall` stands beside an EAGLE head.

    Args:
        kinds: of the drafters of these names, in their order; None where only the agents know it.

    Raises:
        BadRequestError: when there is no head that it could correct.
    """
    others = {kind for name, kind in zip(names, kinds, strict=True) if name != RECALL}
    if RECALL in names and others.isdisjoint({"eagle", None}):
        raise BadRequestError(
            f"--drafter {drafter_label(names)}: {RECALL} corrects an EAGLE head, and there is none beside it"
        )
