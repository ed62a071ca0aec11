"""The testbed as a distribution: in step with flowedge, with all its data, and without the makers' tools."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import flowedge_testbed

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PACKAGE = Path(flowedge_testbed.__file__).parent


def project(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))


def test_its_version_is_that_of_flowedge() -> None:
    flowedge, testbed = project(ROOT)["project"], project(ROOT / "testbed")["project"]
    assert testbed["version"] == flowedge["version"]
    assert f"flowedge=={flowedge['version']}" in testbed["dependencies"]


def test_all_data_files_are_in_the_wheel() -> None:
    (patterns,) = project(ROOT / "testbed")["tool"]["setuptools"]["package-data"].values()
    packed = {file for pattern in patterns for file in PACKAGE.glob(pattern)}
    assert packed == {file for kind in ("yaml", "json", "safetensors") for file in PACKAGE.rglob(f"*.{kind}")}


def test_every_folder_of_modules_is_a_package_and_no_tool_is() -> None:
    folders = {module.parent for module in PACKAGE.rglob("*.py")}
    assert all((folder / "__init__.py").read_text().startswith('"""') for folder in folders)
    assert project(ROOT / "testbed")["tool"]["setuptools"]["packages"]["find"] == {
        "include": ["flowedge_testbed*"]
    }
    assert not (PACKAGE / "tools").exists()


def test_no_folder_has_more_than_fifteen_modules() -> None:
    for folder in {module.parent for module in (ROOT / "testbed").rglob("*.py")}:
        modules = [module for module in folder.glob("*.py") if module.name != "__init__.py"]
        assert len(modules) <= 15, f"{folder} has {len(modules)} modules"
