"""Whether a chat template takes a system message."""

from __future__ import annotations

import functools

from flowedge.core.errors import BadRequestError
from flowedge.text.template_renderer import RENDERER

SYSTEM = "system"
_INSTRUCTION, _QUESTION = "be-brief", "what-is-it"


def check_takes_system(template: str, place: str) -> None:
    """Check that a system message is not lost, and not taken for a message of the user.

    Args:
        template: "" for a model without a chat template.
        place: the directory of the tokenizer, to name in errors.

    Raises:
        BadRequestError: when the template takes no system message.
        CheckpointError: when the template is no program, or exceeds a limit.
    """
    if not template:
        raise BadRequestError(
            "the model has no chat template, so it takes no system message; put it in the prompt"
        )
    reason = _refusal(template, place)
    if reason:
        raise BadRequestError(
            f"the model's chat template takes no system message ({reason}); put the text in the prompt"
        )


@functools.lru_cache(maxsize=8)
def _refusal(template: str, place: str) -> str:
    """Return why a template takes no system message; "" if it takes one."""
    try:
        text = _rendered(template, place, SYSTEM)
    except BadRequestError as error:
        return str(error)
    if _INSTRUCTION not in text:
        return "it leaves the message out"
    try:
        as_user = _rendered(template, place, "user")
    except BadRequestError:
        return ""  # two messages of the user, and so another conversation
    return "it takes the message for the user's" if text == as_user else ""


def _rendered(template: str, place: str, role: str) -> str:
    messages = [{"role": role, "content": _INSTRUCTION}, {"role": "user", "content": _QUESTION}]
    return RENDERER.render(template, place, messages, {}, add_generation_prompt=True)
