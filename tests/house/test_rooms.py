"""The rules of CONTRIBUTING.md about rooms, which are packages, and about names; tests mirror the rooms."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

from tests.house.product import GENERATED, PRODUCT, ROOT, product, users, words

FEWEST_MODULES, MOST_MODULES = 4, 15
MOST_FOLDERS = 2  # below flowedge/
SMALL = 60  # lines
ROOMS = sorted({module.path.parent for module in product().values() if not module.is_package} - {PRODUCT})
TESTBED = sorted(path.parent for path in (ROOT / "testbed" / "flowedge_testbed").rglob("__init__.py"))

# Modules below SMALL lines with one user, and why each is a module of its own.
OF_THEIR_OWN = {
    "flowedge.agent.keeping.rebalancing": "when layers move is decided, and tested, without a pipeline",
    "flowedge.doctor.hardware": "install.sh examines a device by it, without a network",
    "flowedge.protocol.send_window": "how many segments are under way is decided without a session",
    "flowedge.agent.services.prompt_encoding": "an agent imports the tokenizer's side with the first request",
}
MOST_OF_THEIR_OWN = 10

# Tests of several packages together, or of what is no package.
NO_PACKAGE = {"clients", "device_agents", "docs", "equality", "fuzz", "house", "support", "walk"}


def _in_project(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("room", ROOMS, ids=_in_project)
def test_a_room_has_4_to_15_modules(room: Path) -> None:
    modules = [path.name for path in room.glob("*.py") if path.name != "__init__.py"]
    assert FEWEST_MODULES <= len(modules) <= MOST_MODULES, modules
    assert len(room.relative_to(PRODUCT).parts) <= MOST_FOLDERS


@pytest.mark.parametrize("package", TESTBED, ids=_in_project)
def test_a_package_of_the_testbed_is_small(package: Path) -> None:
    assert len([path for path in package.glob("*.py") if path.name != "__init__.py"]) <= MOST_MODULES


@pytest.mark.parametrize("package", [PRODUCT, *ROOMS, *TESTBED], ids=_in_project)
def test_a_package_says_what_it_is_for(package: Path) -> None:
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8")))
    assert docstring, "__init__.py says what the package is for"


def test_a_module_with_one_user_is_worth_a_file() -> None:
    small = {
        name
        for name, module in product().items()
        if module.lines < SMALL and users()[name] == 1 and not module.is_package
    }
    assert small == set(OF_THEIR_OWN)
    assert len(OF_THEIR_OWN) <= MOST_OF_THEIR_OWN


def test_no_module_of_the_product_is_named_as_a_test() -> None:
    assert not [name for name in product() if name.endswith("_test")]


def test_a_class_name_stands_in_one_file() -> None:
    files = defaultdict(set)
    for name, module in product().items():
        for each in module.classes():
            files[each].add(name)
    assert not {name: sorted(found) for name, found in files.items() if len(found) > 1}


def test_no_forbidden_word_is_a_name() -> None:
    text = (ROOT / "docs" / "words.md").read_text(encoding="utf-8").partition("\n## Not as names\n")[2]
    entries = [line.removeprefix("- ") for line in text.splitlines() if line.startswith("- ")]
    forbidden = {entry.partition(":")[0].strip("`") for entry in entries}
    assert forbidden
    wrong = {
        f"{name}: {each}"
        for name, module in product().items()
        for each in module.names()
        if words(each) & forbidden
    }
    assert not wrong


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


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {path.parent for path in PRODUCT.rglob("*.py")} - {GENERATED}
    assert all((folder / "__init__.py").is_file() for folder in folders)
