"""docs/papers.md lists the experiments as they are declared now, and its mechanisms name experiments."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flowedge_testbed.papers.declaration import PAPERS, read_paper
from testbed.tools.documents.papers import DOCUMENT, papers_document

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / DOCUMENT).read_text(encoding="utf-8")


def test_the_experiments_of_the_document_are_current() -> None:
    assert papers_document(TEXT) == TEXT, "run: python -m testbed.tools.documents.papers"


@pytest.mark.parametrize("name", PAPERS)
def test_a_mechanism_is_shown_by_an_experiment_of_its_paper(name: str) -> None:
    paper = read_paper(name)
    section = TEXT.partition(f"\n## {paper.title}\n")[2].partition("\n## ")[0]
    shown = [cell.strip().rpartition("|")[2] for cell in re.findall(r"^\|(.*)\|$", section, re.MULTILINE)[2:]]
    names = {word for cell in shown for word in re.findall(r"`([\w-]+)`", cell)}
    assert names
    assert {word for word in names if not word.startswith("--")} <= set(paper.experiments)
