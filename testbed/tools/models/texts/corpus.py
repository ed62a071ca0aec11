"""Training text: chat pairs from JSON lines files and Python's own standard library."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import sysconfig
import textwrap
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HELD_OUT_PER_MILLE = 30
SKIPPED_FOLDERS = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings", "lib2to3"}
)


@dataclass(frozen=True)
class ChatPair:
    """One user message and the assistant's answer to it."""

    prompt: str
    response: str
    source: str  # name of the JSON lines file, or of the kind of standard-library pair

    @property
    def held_out(self) -> bool:
        """Whether the pair is reserved for evaluation, which depends on the prompt's text alone."""
        digest = hashlib.sha256(self.prompt.encode()).digest()
        return int.from_bytes(digest[:4], "big") % 1000 < HELD_OUT_PER_MILLE


@dataclass(frozen=True)
class Corpus:
    """Chat pairs and plain text documents."""

    pairs: list[ChatPair]
    texts: list[str]

    @property
    def training_pairs(self) -> list[ChatPair]:
        return [pair for pair in self.pairs if not pair.held_out]

    @property
    def held_out_pairs(self) -> list[ChatPair]:
        return [pair for pair in self.pairs if pair.held_out]


def load_corpus(data: Path) -> Corpus:
    """Return all pairs of `data`/*.jsonl and of the standard library, and the library's source as text."""
    sources = list(standard_library_sources())
    pairs = [*jsonl_pairs(data)]
    for module, source in sources:
        pairs.extend(function_pairs(module, source))
    unique = {(pair.prompt, pair.response): pair for pair in pairs if not is_repetitive(pair.response)}
    texts = [chunk for _, source in sources for chunk in text_chunks(source) if not is_repetitive(chunk)]
    return Corpus(list(unique.values()), texts)


def jsonl_pairs(data: Path) -> Iterator[ChatPair]:
    """Return the pairs of every *.jsonl file of a folder: objects with strings `prompt` and `response`."""
    for path in sorted(data.glob("*.jsonl")):
        yield from jsonl_file_pairs(path)


def jsonl_file_pairs(path: Path) -> Iterator[ChatPair]:
    """Return the pairs of one JSON-lines file."""
    with path.open(encoding="utf-8") as lines:
        for record in map(json.loads, lines):
            yield ChatPair(record["prompt"].strip(), record["response"].strip(), path.stem)


def standard_library_sources() -> Iterator[tuple[str, str]]:
    """Yield (dotted module name, source) of the running Python's library, without its tests."""
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if SKIPPED_FOLDERS.isdisjoint(relative.parts):
            parts = [part for part in relative.with_suffix("").parts if part != "__init__"]
            yield ".".join(parts), path.read_text(encoding="utf-8", errors="replace")


def function_pairs(module: str, source: str) -> Iterator[ChatPair]:
    """Return the documented functions of a module as requests to complete and to explain the code."""
    lines = [f"{line}\n" for line in source.split("\n")]
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef) or len(node.body) < 2:
            continue
        documentation = ast.get_docstring(node)
        first = node.body[0]
        if documentation is None or not 30 <= len(documentation) <= 1500 or first.end_lineno is None:
            continue
        signature = "".join(lines[node.lineno - 1 : first.lineno - 1])
        given = textwrap.dedent("".join(lines[node.lineno - 1 : first.end_lineno]))
        completed = textwrap.dedent(signature + "".join(lines[first.end_lineno : node.end_lineno]))
        if signature and len(completed) <= 1800:
            yield ChatPair(f"Complete the code I provided.\n\n{given}", completed.rstrip(), "stdlib_complete")
        if not node.name.startswith("_"):
            question = f"What does the Python function {module}.{node.name} do?"
            yield ChatPair(question, inspect.cleandoc(documentation), "stdlib_explain")


def text_chunks(source: str, characters: int = 5000) -> Iterator[str]:
    """Split the source into pieces of whole lines, each of about `characters`."""
    piece: list[str] = []
    size = 0
    for line in source.splitlines(keepends=True):
        piece.append(line)
        size += len(line)
        if size >= characters:
            yield "".join(piece)
            piece, size = [], 0
    if size > 200:
        yield "".join(piece)


def is_repetitive(text: str, ratio: float = 6.0) -> bool:
    """Return whether zlib shrinks the text by more than `ratio`, which prose and code never do."""
    encoded = text.encode()
    return len(encoded) > 200 and len(encoded) / len(zlib.compress(encoded)) > ratio
