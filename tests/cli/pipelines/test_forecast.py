"""Before a pipeline loads, a line says which weights and drafter it takes, and what to expect."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from flowedge.cli.pipelines.forecast import forecast
from flowedge.client.assembly import PipelineSpec
from tests.support.gguf_files import write_gguf


def said(*, here: bool = True, **settings: object) -> str:
    spec = PipelineSpec(draft_node="a:1", stages=("b:1",), **settings)  # type: ignore[arg-type]
    return forecast(spec, on_this_machine=here)


def test_a_file_is_loaded_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "small-Q8_0.gguf"
    write_gguf(file, kind="Q8_0")
    text = said(model=str(file), drafter="ngram")
    assert text.startswith("small-Q8_0.gguf as its file stores it, 0.01 GiB in files; drafts by lookup")
    assert re.search(
        r"reading them takes [\d.]+ s or more; plain decoding reads them for each token: at most", text
    )
    assert re.search(r"at most [\d.e+]+ tokens/s, at the [\d.]+ GB/s that a thread moves now", text)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (
            {"model": "bundled", "drafter": "bundled"},
            "because no --quant is given (int4 takes 28% of 16 bits)",
        ),
        ({"model": "bundled", "drafter": "bundled", "quant": "int4"}, "bundled in int4, as --quant says"),
        ({"model": "owner/name", "drafter": "none"}, "drafts by nothing (plain decoding)"),
        ({"model": "owner/name", "drafter": ("bundled", "ngram")}, "drafts by bundled+ngram"),
    ],
)
def test_the_choices_are_told_with_their_reasons(settings: dict[str, object], text: str) -> None:
    assert text in said(here=False, **settings)


def test_nothing_is_foretold_of_machines_and_files_elsewhere() -> None:
    assert "tokens/s" not in said(here=False, model="bundled", drafter="bundled")
    assert "reading" not in said(model="/on/the/agents", drafter="ngram")
