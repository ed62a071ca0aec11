"""docs/papers.md lists the experiments as they are declared now."""

from __future__ import annotations

from pathlib import Path

from testbed.tools.documents.papers import DOCUMENT, papers_document

ROOT = Path(__file__).parents[2]


def test_the_experiments_of_the_document_are_current() -> None:
    written = (ROOT / DOCUMENT).read_text(encoding="utf-8")
    assert written == papers_document(written), "run: python -m testbed.tools.documents.papers"
