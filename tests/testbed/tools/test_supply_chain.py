"""Pinned packages: each has a hash, bounds exclude releases with holes, and an audit that failed says so."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from testbed.tools.supply.audit import judge
from testbed.tools.supply.lock import CONSTRAINTS, LOCK, ROOT, locked

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ENVIRONMENT = {"python_version": "3.11", "python_full_version": "3.11.7", "sys_platform": "linux"}


def pinned() -> dict[str, str]:
    """The versions of constraints.txt that apply to the pinned Python."""
    lines = [line for line in CONSTRAINTS.read_text().splitlines() if line and not line.startswith("#")]
    wanted = [Requirement(line) for line in lines]
    return {
        canonicalize_name(each.name): str(each.specifier).removeprefix("==")
        for each in wanted
        if each.marker is None or each.marker.evaluate(ENVIRONMENT)
    }


def test_every_pinned_package_has_a_hash_and_its_version() -> None:
    lines = [line for line in LOCK.read_text().splitlines() if not line.startswith("#")]
    found = {}
    for line in lines:
        match = re.fullmatch(r"([\w.-]+)==(\S+) --hash=sha256:[0-9a-f]{64}", line)
        assert match is not None, line
        found[canonicalize_name(match[1])] = match[2].removesuffix("+cpu")
    known = pinned()
    assert found == known
    assert len(found) > 90


def test_the_build_backend_is_pinned() -> None:
    for folder in (ROOT, ROOT / "testbed"):
        settings = tomllib.loads((folder / "pyproject.toml").read_text())
        assert settings["build-system"]["requires"] == [f"setuptools=={pinned()['setuptools']}"]


@pytest.mark.parametrize(
    ("name", "hole", "mended"), [("torch", "2.5.1", "2.6.0"), ("cryptography", "44.0.0", "44.0.1")]
)
def test_releases_with_known_holes_are_not_installed(name: str, hole: str, mended: str) -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    bounds = {
        Requirement(text).name: Requirement(text).specifier for text in settings["project"]["dependencies"]
    }
    assert not bounds[name].contains(Version(hole))
    assert bounds[name].contains(Version(mended))


def test_a_package_that_would_be_built_is_not_locked() -> None:
    item = {
        "metadata": {"name": "x", "version": "1"},
        "download_info": {"url": "https://host/x-1.tar.gz", "archive_info": {"hashes": {"sha256": "0" * 64}}},
    }
    with pytest.raises(ValueError, match="x 1 has no wheel"):
        locked({"install": [item]})


HOLE = {"id": "PYSEC-1", "fix_versions": ["2"], "aliases": [], "description": ""}


@pytest.mark.parametrize(
    ("packages", "status", "line"),
    [
        ([{"name": "a", "version": "1", "vulns": []}], 0, "1 of 1 packages were audited"),
        ([{"name": "a", "version": "1", "vulns": [HOLE]}], 1, "a 1: PYSEC-1, fixed in 2"),
        ([{"name": "a", "skip_reason": "not found"}], 2, "nothing was audited"),
        (
            [{"name": "a", "version": "1", "vulns": []}, {"name": "b", "skip_reason": "not found"}],
            2,
            "1 of 2 packages were audited; not audited: b",
        ),
    ],
)
def test_an_audit_says_what_it_did_not_look_up(packages: list[Any], status: int, line: str) -> None:
    verdict = judge({"dependencies": packages})
    assert verdict.status == status
    assert line in verdict.lines[0]


def test_a_report_without_packages_is_no_audit() -> None:
    with pytest.raises(ValueError, match="no packages"):
        judge({"dependencies": []})
