"""Training data on disk: a file of JSON lines."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from flowedge.core.errors import BadRequestError
from flowedge.device.disk_cache.digest import hash_range
from flowedge.device.files import read_json_lines

ROLES = ("system", "user", "assistant")


class Message(NamedTuple):
    """A message of a conversation, with a role of ROLES."""

    role: str
    content: str


@dataclass(frozen=True)
class Example:
    """The content of a line: either a conversation or a plain text."""

    messages: tuple[Message, ...] = ()
    text: str = ""

    @property
    def opening(self) -> tuple[Message, ...]:
        """The messages before the assistant's first message."""
        roles = [message.role for message in self.messages]
        end = roles.index("assistant") if "assistant" in roles else len(roles)
        return self.messages[:end]

    @property
    def has_answer(self) -> bool:
        """Whether there is a text of the assistant, or a plain text, to learn from."""
        return bool(self.text) or len(self.opening) < len(self.messages)

    @property
    def key(self) -> str:
        """A hex digest of the prompt, or of a whole plain text."""
        asked = json.dumps([[message.role, message.content] for message in self.opening]) + self.text
        return hashlib.sha256(asked.encode()).hexdigest()


def read_examples(file: Path) -> list[Example]:
    """Read the examples of a JSON-lines file, in order, without empty lines.

    A line is an object with `messages` (role and content of each), with `prompt` and maybe `response`, with
    `turns` (user messages without answers, of which the first is used), or with `text`.

    Raises:
        BadRequestError: when a line has none of these contents, or the file has no line.
    """
    examples = [_example(entry, where) for where, entry in read_json_lines(file)]
    if not examples:
        raise BadRequestError(f"{file}: the file has no example")
    return examples


def data_digest(file: Path) -> str:
    try:
        with file.open("rb") as data:
            return hash_range(data.fileno(), 0, file.stat().st_size).hexdigest()
    except OSError as error:
        raise BadRequestError(f"{file}: cannot be read: {error}") from error


def split_held_out(examples: Sequence[Example], count: int) -> tuple[list[Example], list[Example]]:
    """Split examples into those to train on, and those of up to `count` prompts to evaluate on.

    The prompts with the lowest digests are held out with all their answers, at most half of all prompts. So
    the choice does not depend on the order of the prompts.
    """
    keys = sorted({example.key for example in examples})
    chosen = set(keys[: min(count, len(keys) // 2)])
    training = [example for example in examples if example.key not in chosen]
    held_out = {example.key: example for example in examples if example.key in chosen}
    return training, [held_out[key] for key in sorted(held_out)]


def _example(entry: dict[str, Any], where: str) -> Example:
    if "messages" in entry:
        return Example(messages=_messages(entry["messages"], where))
    if "prompt" in entry:
        user = Message("user", _text(entry["prompt"], "prompt", where))
        if "response" not in entry:
            return Example(messages=(user,))
        return Example(messages=(user, Message("assistant", _text(entry["response"], "response", where))))
    if "turns" in entry:
        turns = entry["turns"]
        if not isinstance(turns, list) or not turns:
            raise BadRequestError(f'{where}: "turns" is not a list of messages')
        return Example(messages=(Message("user", _text(turns[0], "turns", where)),))
    if "text" in entry:
        return Example(text=_text(entry["text"], "text", where))
    raise BadRequestError(f'{where}: the object has none of "messages", "prompt", "turns" and "text"')


def _messages(entries: Any, where: str) -> tuple[Message, ...]:
    if not isinstance(entries, list) or not entries:
        raise BadRequestError(f'{where}: "messages" is not a list of messages')
    messages: list[Message] = []
    for entry in entries:
        if not isinstance(entry, dict) or entry.get("role") not in ROLES:
            raise BadRequestError(f"{where}: a message needs a role, one of {', '.join(ROLES)}")
        messages.append(Message(entry["role"], _text(entry.get("content"), "content", where)))
    if messages[0].role == "assistant":
        raise BadRequestError(f"{where}: the conversation begins with the assistant")
    return tuple(messages)


def _text(value: Any, name: str, where: str) -> str:
    if not isinstance(value, str):
        raise BadRequestError(f'{where}: "{name}" is not text')
    if not value.strip():
        raise BadRequestError(f'{where}: "{name}" is empty')
    return value
