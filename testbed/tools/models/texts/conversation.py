"""A conversation to train on: its messages, and the tools that the assistant may call."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from testbed.tools.models.texts.corpus import ChatPair

SYSTEM_SHARE = 0.15  # of the conversations without tools, that begin with a system message


@dataclass(frozen=True)
class Conversation:
    """Messages and tools in the form that chat templates take."""

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...] = ()

    @property
    def begins(self) -> bool:
        """Whether it can only be the beginning of a text: tools and system messages stand there alone."""
        return bool(self.tools) or self.messages[0]["role"] == "system"

    @classmethod
    def asked(cls, question: str, answer: str) -> Conversation:
        """A question of the user with its answer."""
        return cls(({"role": "user", "content": question}, {"role": "assistant", "content": answer}))

    @classmethod
    def of(cls, pair: ChatPair) -> Conversation:
        return cls.asked(pair.prompt, pair.response)

    def as_pair(self, source: str) -> ChatPair:
        """The question and the answer of a conversation that has nothing else."""
        question, answer = self.messages
        return ChatPair(question["content"], answer["content"], source)

    def under(self, system: str) -> Conversation:
        """The conversation behind a system message."""
        return replace(self, messages=({"role": "system", "content": system}, *self.messages))


@cache
def written(name: str) -> Mapping[str, Any]:
    """The content of a file beside this one."""
    content: Mapping[str, Any] = yaml.safe_load(Path(__file__).with_name(name).read_text(encoding="utf-8"))
    return content


def with_system(conversations: Sequence[Conversation], seed: int) -> list[Conversation]:
    """The conversations, a share of those without one behind a system message that changes nothing."""
    generator = random.Random(seed)
    systems = written("everyday.yaml")["systems"]
    return [
        each if each.begins or generator.random() > SYSTEM_SHARE else each.under(generator.choice(systems))
        for each in conversations
    ]
