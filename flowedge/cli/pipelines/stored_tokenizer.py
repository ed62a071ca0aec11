"""A tokenizer read from its files without transformers, to count the tokens of a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from flowedge.core.errors import CheckpointError
from flowedge.text.json_object import errors_of_file, read_json_object
from flowedge.text.tokenizer_bounds import check_tokenizer

TOKENIZER = "tokenizer.json"
_CONFIG, _TEMPLATE, _OLD_TEMPLATE = "tokenizer_config.json", "chat_template.jinja", "chat_template.json"
# transformers uses the tokenizer.json of these classes as it is, and makes some of its parts anew for others.
_AS_STORED = ("TokenizersBackend", "PreTrainedTokenizerFast")
_MARGIN, _MARGIN_SHARE = 8, 50  # a count of another class may be wrong by 8 tokens and one in 50
_MOST_BYTES = 1 << 20  # a longer text is not counted: a tokenizer takes a hundred times the memory
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class StoredTokenizer:
    """A directory's tokenizer.json, with what text/tokenizer.py asks of a tokenizer of transformers.

    The files are read when they are needed.

    Raises:
        CheckpointError: when a file cannot be read.
    """

    def __init__(self, directory: Path) -> None:
        self.name_or_path = str(directory)
        self._directory = directory

    @property
    def is_readable(self) -> bool:
        """Whether the directory holds a tokenizer that is read without transformers."""
        return (self._directory / TOKENIZER).is_file()

    def least_tokens(self, messages: Sequence[Mapping[str, str]], capacity: int) -> int:
        """Return a number of tokens that a conversation has at least, counted up to where the answer begins.

        It is 0 for a conversation whose bytes show that it fits `capacity` tokens, and for one that is too
        long to be counted here.

        Raises:
            BadRequestError: when the chat template refuses the messages.
        """
        size = sum(len(message["content"].encode()) for message in messages)
        # No token is shorter than a byte, and a template adds no more than a few times its own length.
        if size + len(messages) * 2 * len(self.chat_template.encode()) <= capacity or size > _MOST_BYTES:
            return 0
        from flowedge.text.tokenizer import encode_messages  # noqa: PLC0415 (jinja2)

        count = len(encode_messages(self, messages))
        if self._config.get("tokenizer_class") in _AS_STORED:
            return count
        return max(1, count - _MARGIN - count // _MARGIN_SHARE)

    @cached_property
    def chat_template(self) -> str:
        """The chat template that transformers takes; "" without one."""
        if (path := self._directory / _TEMPLATE).is_file():
            with errors_of_file(path, "is no text"):
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

    @property
    def special_tokens_map(self) -> dict[str, str]:
        """The texts of the special tokens by their names, such as "bos_token"."""
        texts: dict[str, str] = {}
        for name in _SPECIAL:
            found = self._config.get(name)
            text = found.get("content") if isinstance(found, dict) else found
            if isinstance(text, str) and text:
                texts[name] = text
        return texts

    def __call__(self, text: str, *, add_special_tokens: bool) -> dict[str, list[int]]:
        """Return the token ids of a text, as "input_ids"."""
        return {"input_ids": self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens).ids}

    @cached_property
    def backend_tokenizer(self) -> Any:
        """The tokenizer, of the `tokenizers` library."""
        from tokenizers import Tokenizer  # noqa: PLC0415 (most prompts are short enough by their bytes)

        tokenizer = Tokenizer.from_file(str(self._directory / TOKENIZER))
        check_tokenizer(tokenizer, str(self._directory))
        return tokenizer

    @cached_property
    def _config(self) -> dict[str, Any]:
        path = self._directory / _CONFIG
        return read_json_object(path) if path.is_file() else {}
