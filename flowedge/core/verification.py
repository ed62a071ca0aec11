"""Where the target's tokens are drawn: on the draft node, or on the last stage."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from flowedge.core.errors import BadRequestError

VerificationPlace: TypeAlias = Literal["draft-node", "last-stage"]
VerificationChoice: TypeAlias = Literal["auto", "draft-node", "last-stage"]
DRAFT_NODE: VerificationPlace = "draft-node"
LAST_STAGE: VerificationPlace = "last-stage"
VERIFICATIONS: tuple[VerificationChoice, ...] = get_args(VerificationChoice)


def parse_verification(text: str) -> VerificationChoice:
    """Return the choice that a text names; "" stands for auto.

    Raises:
        BadRequestError: when the text names none.
    """
    for choice in VERIFICATIONS:
        if choice == (text or "auto"):
            return choice
    raise BadRequestError(f"verification is {text!r}; it must be {', '.join(VERIFICATIONS)}")


DRAFTING_WAITS = 1.5  # a second of verification on the draft node counts so much: drafting waits for it
LINK_BYTES_PER_S = 125e6  # of a gigabit, which the last link is taken for where it was not measured


def cheaper_place(draft_node_s: float, last_stage_s: float, saved_link_s: float) -> VerificationPlace:
    """Return where a verification costs the least time.

    Args:
        draft_node_s: seconds of the LM head over a segment's rows on the draft node.
        last_stage_s: the same on the last stage.
        saved_link_s: seconds by which the last link is shorter occupied if only the rows on the target's path
            cross it.
    """
    return LAST_STAGE if last_stage_s < DRAFTING_WAITS * draft_node_s + saved_link_s else DRAFT_NODE
