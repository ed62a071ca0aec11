"""The documents agree with the tree: every relative link leads somewhere, the picture is the contract."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("testbed/**/*.md")),
    *sorted(ROOT.glob("device_agents/**/*.md")),
]
MAX_LINES = {ROOT / "README.md": 150, ROOT / "docs/architecture.md": 150}
MAX_LINES_OF_OTHERS = 250
LINK = re.compile(r"\]\(([^)\s]+)\)")


def headings(document: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    lines = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_relative_links_lead_somewhere(document: Path) -> None:
    broken = []
    for link in LINK.findall(document.read_text(encoding="utf-8")):
        target, _, anchor = link.partition("#")
        path = document if not target else document.parent / target
        if "://" in link:
            continue
        if not path.exists() or (anchor and path.suffix == ".md" and anchor not in headings(path)):
            broken.append(link)
    assert not broken


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_document_is_read_in_one_sitting(document: Path) -> None:
    lines = document.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= MAX_LINES.get(document, MAX_LINES_OF_OTHERS)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_document_with_commands_says_how_they_get_on_path(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    if re.search(r"^    (flowedge|python -m) ", text, flags=re.MULTILINE):
        assert "source .venv/bin/activate" in text or "device_agents/install.sh" in text


def test_the_picture_of_the_packages_is_the_import_contract() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["id"] == "layers")
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    lines = text.partition("\n## Rooms\n")[2].partition("\n## ")[0].splitlines()
    picture = [re.split(r" {2,}", line.strip())[0] for line in lines if line.startswith("    ")]
    assert picture == layers


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_paths_and_names_of_code_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    paths = re.findall(r"`((?:flowedge|testbed|tests)/[\w/.*-]+)`", text)
    assert not [path for path in paths if not any(ROOT.glob(path)) and path != "tests/yours"]
    labelled = re.findall(r"\[`([A-Za-z_.]+)`\]\(([^)#]+\.py)\)", text)
    code = {path: (document.parent / path).read_text(encoding="utf-8") for _, path in labelled}
    assert not [label for label, path in labelled if not all(word in code[path] for word in label.split("."))]
