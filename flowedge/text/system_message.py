"""System messages, and chat templates that take none."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from flowedge.core.errors import BadRequestError
from flowedge.text.template_renderer import RENDERER

SYSTEM, USER = "system", "user"
_INSTRUCTION, _QUESTION = "be-brief", "what-is-it"


@functools.lru_cache(maxsize=8)
def takes_system(template: str, place: str) -> bool:
    """Return whether a chat template neither loses a system message nor takes it for the user's.

    Args:
        template: "" for a model without a chat template, which takes none.
        place: the directory of the tokenizer, to name in errors.

    Raises:
        CheckpointError: when the template is no program, or exceeds a limit.
    """
    if not template:
        return False
    try:
        text = _rendered(template, place, SYSTEM)
    except BadRequestError:
        return False
    if _INSTRUCTION not in text:
        return False
    try:
        return text != _rendered(template, place, USER)
    except BadRequestError:
        return True  # two messages of the user, and so another conversation


def folded_system(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a conversation whose system messages are the beginning of the user's message that follows.

    Without such a message, they are the end of the user's message before them, or a message of the user.
    """
    found: list[dict[str, Any]] = []
    texts: list[str] = []  # of system messages that wait for a message of the user
    for message in messages:
        if message["role"] == SYSTEM:
            texts.append(message["content"])
        elif message["role"] == USER and texts:
            found.append({**message, "content": "\n\n".join([*texts, message["content"]])})
            texts = []
        else:
            found.append(dict(message))
    if texts and found and found[-1]["role"] == USER:
        texts.insert(0, found.pop()["content"])
    return [*found, {"role": USER, "content": "\n\n".join(texts)}] if texts else found


def _rendered(template: str, place: str, role: str) -> str:
    messages = [{"role": role, "content": _INSTRUCTION}, {"role": USER, "content": _QUESTION}]
    return RENDERER.render(template, place, messages, {}, add_generation_prompt=True)
