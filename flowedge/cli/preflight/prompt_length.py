"""The number of tokens of a prompt, from the files of a tokenizer. Imports neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from flowedge.core.errors import CheckpointError
from flowedge.text.json_object import read_json_object, reading

TOKENIZER = "tokenizer.json"
_CONFIG, _TEMPLATE, _OLD_TEMPLATE = "tokenizer_config.json", "chat_template.jinja", "chat_template.json"
# transformers uses the tokenizer.json of these classes as it is, and makes some of its parts anew for others.
_AS_STORED = ("TokenizersBackend", "PreTrainedTokenizerFast")
_MARGIN, _MARGIN_SHARE = 8, 50  # a count of another class may be wrong by 8 tokens and one in 50
_MOST_BYTES = 1 << 20  # a longer text is left to the agents: a tokenizer takes a hundred times the memory
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


@dataclass(frozen=True)
class PromptLength:
    """The tokens of a prompt.

    Attributes:
        least: the model's own tokenizer makes at least this many.
    """

    tokens: int
    least: int


class PromptCounter:
    """Counts the tokens of conversations as the draft node does. Its files are read when they are needed.

    Raises:
        CheckpointError: when a file of the tokenizer cannot be read.
        BadRequestError: when the chat template refuses the messages.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @property
    def is_possible(self) -> bool:
        """Whether the directory holds a tokenizer that is read without transformers."""
        return (self._directory / TOKENIZER).is_file()

    def fits(self, messages: Sequence[Mapping[str, str]], room: int) -> bool:
        """Return whether a conversation has at most `room` tokens by its bytes alone.

        No token is shorter than a byte, and a template adds no more than a few times its own length.
        """
        content = sum(len(message["content"].encode()) for message in messages)
        return content + len(messages) * 2 * len(self._template.encode()) <= room

    def check_takes_system(self) -> None:
        """Raise BadRequestError if the chat template takes no system message."""
        from flowedge.text.system_message import check_takes_system  # noqa: PLC0415 (jinja2)

        check_takes_system(self._template, str(self._directory))

    def is_countable(self, messages: Sequence[Mapping[str, str]]) -> bool:
        return sum(len(message["content"].encode()) for message in messages) <= _MOST_BYTES

    def count(self, messages: Sequence[Mapping[str, str]]) -> PromptLength:
        """Count the tokens up to where the answer begins."""
        from flowedge.text.template_renderer import RENDERER  # noqa: PLC0415 (jinja2)

        place, template = str(self._directory), self._template
        if template:
            special = {name: self._special(name) for name in _SPECIAL if self._special(name)}
            text = RENDERER.render(template, place, messages, special, add_generation_prompt=True)
        else:
            text = "\n".join(message["content"] for message in messages)
        with reading(self._directory / TOKENIZER, "is no usable tokenizer"):
            found = len(self._tokenizer.encode(text, add_special_tokens=not template))
        if self._config.get("tokenizer_class") in _AS_STORED:
            return PromptLength(found, found)
        return PromptLength(found, max(1, found - _MARGIN - found // _MARGIN_SHARE))

    @cached_property
    def _config(self) -> dict[str, Any]:
        path = self._directory / _CONFIG
        return read_json_object(path) if path.is_file() else {}

    @cached_property
    def _template(self) -> str:
        """The chat template that transformers takes; "" without one."""
        if (path := self._directory / _TEMPLATE).is_file():
            with reading(path, "is no text"):
                return path.read_text(encoding="utf-8")
        found: Any = self._config.get("chat_template")
        if (path := self._directory / _OLD_TEMPLATE).is_file():
            found = read_json_object(path).get("chat_template")
        if isinstance(found, list):
            named = {entry.get("name"): entry.get("template") for entry in found if isinstance(entry, dict)}
            found = named.get("default")
        if found is not None and not isinstance(found, str):
            raise CheckpointError(f"{self._directory}: its chat template is no text")
        return found or ""

    @cached_property
    def _tokenizer(self) -> Any:
        from tokenizers import Tokenizer  # noqa: PLC0415 (most prompts are short enough by their bytes)

        return Tokenizer.from_file(str(self._directory / TOKENIZER))

    def _special(self, name: str) -> str:
        found = self._config.get(name)
        text = found.get("content") if isinstance(found, dict) else found
        return text if isinstance(text, str) else ""
