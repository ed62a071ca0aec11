"""Conversations in which the assistant calls tools, and some in which no tool helps."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from testbed.tools.models.texts.conversation import Conversation, written
from testbed.tools.models.texts.everyday import everyday, made_up_name

_IRRELEVANT = 0.25  # share of conversations whose tools do not help
_MADE_UP = 0.4  # share of tools of a verb and a noun, and of names that nobody has
_MOST_OTHERS = 2  # tools beside the one that helps
_NAMES = ("city", "person", "topic", "company", "song", "word")  # kinds that may be names that nobody has
_NUMBER, _PRODUCT = "number", "product"


@dataclass(frozen=True)
class _Tool:
    name: str
    says: str
    takes: Mapping[str, str]
    slots: Mapping[str, str]
    asks: tuple[str, ...]
    gives: tuple[str, ...]
    tells: str

    def described(self) -> dict[str, Any]:
        properties = {
            key: {"type": "integer" if self.slots[key] == _NUMBER else "string", "description": says}
            for key, says in self.takes.items()
        }
        parameters = {"type": "object", "properties": properties, "required": list(self.takes)}
        function = {"name": self.name, "description": self.says, "parameters": parameters}
        return {"type": "function", "function": function}


def tool_chats(count: int, seed: int, others: Sequence[Conversation]) -> list[Conversation]:
    """Draw conversations of tools.yaml.

    Args:
        others: conversations, beside those of everyday.yaml, that may stand beside tools that do not help.
    """
    generator = random.Random(seed)
    plain = everyday(count, seed + 1)
    return [_drawn(generator, generator.choice((each, generator.choice(others)))) for each in plain]


def _drawn(generator: random.Random, plain: Conversation) -> Conversation:
    tool, kind = _tool(generator), generator.random()
    others = [_tool(generator).described() for _ in range(generator.randint(0, _MOST_OTHERS))]
    if kind < _IRRELEVANT:
        return replace(plain, tools=(tool.described(), *others))
    messages = _called(generator, tool)
    if generator.random() < 0.15:
        messages = [
            {"role": "system", "content": generator.choice(written("everyday.yaml")["systems"])},
            *messages,
        ]
    tools = [tool.described(), *(other for other in others if other["function"]["name"] != tool.name)]
    generator.shuffle(tools)
    return Conversation(tuple(messages), tuple(tools))


def _called(generator: random.Random, tool: _Tool) -> list[dict[str, Any]]:
    values = _values(generator, tool)
    result = generator.choice(tool.gives).format(**_values(generator, tool, every=True))
    call = {
        "type": "function",
        "function": {"name": tool.name, "arguments": {key: values[key] for key in tool.takes}},
    }
    content = result if generator.random() < 0.5 else json.dumps({"result": result})
    return [
        {"role": "user", "content": generator.choice(tool.asks).format(**values)},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": content},
        {"role": "assistant", "content": tool.tells.format(**values, result=result)},
    ]


def _values(generator: random.Random, tool: _Tool, every: bool = False) -> dict[str, Any]:
    """A value for each argument of the tool, and for each kind of value if asked."""
    lists = written("tools.yaml")["values"]
    kinds = {**tool.slots, **({kind: kind for kind in (*lists, _NUMBER)} if every else {})}
    return {key: _value(generator, kind, lists) for key, kind in kinds.items()}


def _value(generator: random.Random, kind: str, lists: Mapping[str, list[str]]) -> Any:
    if kind == _NUMBER:
        return generator.randint(2, 99)
    if kind == _PRODUCT:
        return f"{generator.randint(11, 999)} * {generator.randint(11, 999)}"
    if kind in _NAMES and generator.random() < _MADE_UP:
        return made_up_name(generator)
    return generator.choice(lists[kind])


def _tool(generator: random.Random) -> _Tool:
    data = written("tools.yaml")
    if generator.random() < _MADE_UP:
        return _made_up(generator, data)
    chosen = generator.choice(data["tools"])
    slots = {key: chosen.get("slots", {}).get(key, key) for key in chosen["takes"]}
    return _Tool(
        chosen["name"], chosen["says"], chosen["takes"], slots, tuple(chosen["asks"]), tuple(chosen["gives"]),
        chosen["tells"],
    )  # fmt: skip


def _made_up(generator: random.Random, data: Mapping[str, Any]) -> _Tool:
    verb, noun = generator.choice(data["verbs"]), generator.choice(data["nouns"])
    key, kind = generator.choice(list(data["keys"].items()))
    wish = f"{verb} the {noun} for {{{key}}}"
    asks = (f"{wish.capitalize()}.", f"Please {wish}.", f"Can you {wish}?", f"I want to {wish}.")
    says = generator.choice([f"{verb.capitalize()} a {noun}.", f"{verb.capitalize()} the {noun} of a {key}."])
    return _Tool(
        f"{verb}_{noun}", says, {key: f"The {key}."}, {key: kind}, asks, tuple(data["results"]),
        f"The {noun} for {{{key}}}: {{result}}.",
    )  # fmt: skip
