"""docs/cli.md has the options of the commands as they are declared now."""

from __future__ import annotations

from pathlib import Path

from testbed.tools.documents.cli import DOCUMENT, cli_document

ROOT = Path(__file__).parents[2]


def test_the_document_of_the_command_line_is_current() -> None:
    written = (ROOT / DOCUMENT).read_text(encoding="utf-8")
    assert written == cli_document(), "run: python -m testbed.tools.documents.cli"
