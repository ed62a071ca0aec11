"""The product's modules, with what each of them imports and defines."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PRODUCT = ROOT / "flowedge"
GENERATED = PRODUCT / "v1"


@dataclass(frozen=True)
class Module:
    """A Python module of the product.

    Attributes:
        name: dotted, such as "flowedge.core.tree".
        lines: number of lines of its file.
    """

    name: str
    path: Path
    lines: int
    tree: ast.Module

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    def imports(self) -> Iterator[tuple[str, str]]:
        """Yield (module, name) of each name that the module imports from another one."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                yield from ((node.module, alias.name) for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from ((alias.name, "") for alias in node.names)

    def classes(self) -> Iterator[str]:
        """Yield the name of each class of the module."""
        return (node.name for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef))

    def names(self) -> Iterator[str]:
        """Yield the names of the module itself, its classes and its functions."""
        yield self.path.parent.name if self.is_package else self.path.stem
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield node.name


def words(name: str) -> set[str]:
    """Return the words of a name in lower case: {"row", "plan"} of "RowPlan" and of "_row_plan"."""
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)}


@cache
def product() -> dict[str, Module]:
    """Return the product's modules by their names, without the generated ones."""
    modules = {}
    for path in sorted(PRODUCT.rglob("*.py")):
        if path.parent != GENERATED:
            text = path.read_text(encoding="utf-8")
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            modules[name] = Module(name, path, text.count("\n"), ast.parse(text))
    return modules


@cache
def users() -> Counter[str]:
    """Return how many modules of the product import each of its modules."""
    modules = product()
    counts: Counter[str] = Counter()
    for module in modules.values():
        counts.update(
            {full if (full := f"{source}.{name}") in modules else source for source, name in module.imports()}
        )
    return counts
