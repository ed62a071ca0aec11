"""The rules of CONTRIBUTING.md about packages hold, and tests mirror the packages."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_MODULES = 15
GENERATED = ROOT / "flowedge" / "v1"
PACKAGES = sorted(
    path.parent
    for top in (ROOT / "flowedge", ROOT / "testbed" / "flowedge_testbed")
    for path in top.rglob("__init__.py")
    if path.parent != GENERATED
)
# Tests of several packages together, or of what is no package.
NO_PACKAGE = {"device_agents", "docs", "equality", "fuzz", "support", "walk"}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_package_is_small_and_says_what_it_is_for(package: Path) -> None:
    modules = [path.name for path in package.glob("*.py") if path.name != "__init__.py"]
    assert len(modules) <= MAX_MODULES, modules
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8")))
    assert docstring, "__init__.py says what the package is for"


def test_every_folder_with_modules_is_a_package() -> None:
    modules = [*(ROOT / "flowedge").rglob("*.py"), *(ROOT / "testbed" / "flowedge_testbed").rglob("*.py")]
    folders = {path.parent for path in modules} - {GENERATED}
    assert folders == set(PACKAGES)


def test_tests_mirror_the_packages() -> None:
    for path in (ROOT / "tests").rglob("test_*.py"):
        folder = path.parent.relative_to(ROOT / "tests")
        if folder.parts[0] in NO_PACKAGE:
            continue
        tested = [ROOT / "flowedge" / folder]
        if folder.parts[0] == "testbed":
            inner = folder.relative_to("testbed")
            tested = [ROOT / "testbed" / "flowedge_testbed" / inner, ROOT / "testbed" / inner]
        assert any(package.is_dir() for package in tested), f"{path} tests no package of this name"
