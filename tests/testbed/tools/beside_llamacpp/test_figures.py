"""Turns of two sides, and the report of what they measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flowedge.core.errors import BadRequestError
from testbed.tools.beside_llamacpp.comparisons import LAYERS, ONE
from testbed.tools.beside_llamacpp.figures import Figures, Measured, TableCell, take_turns
from testbed.tools.beside_llamacpp.formats import FORMATS, format_of
from testbed.tools.beside_llamacpp.report import markdown, write_json

OURS, THEIRS = (
    TableCell(ONE.name, "FlowEdge int4", "decode"),
    TableCell(ONE.name, "llama.cpp Q4_0", "decode"),
)


class Sides:
    """Two turns that note their order, and a clock that each turn moves on by a second."""

    def __init__(self) -> None:
        self.order: list[str] = []

    def turn(self, cell: TableCell) -> Measured:
        self.order.append(cell.line)
        return [(cell, float(len(self.order)))]

    def clock(self) -> float:
        return float(len(self.order))


@pytest.mark.parametrize(
    ("repeats", "deadline", "rounds"), [(3, 100, 3), (3, 3.5, 2), (3, -1, 1), (1, 100, 1)]
)
def test_sides_take_turns_until_the_deadline(repeats: int, deadline: float, rounds: int) -> None:
    sides, figures = Sides(), Figures()
    turns = [lambda: sides.turn(OURS), lambda: sides.turn(THEIRS)]
    assert take_turns(turns, repeats, deadline, figures, sides.clock) == rounds
    assert sides.order == [OURS.line, THEIRS.line] * rounds
    assert figures.values[THEIRS] == [2.0, 4.0, 6.0][:rounds]


def test_the_best_is_the_most_tokens_and_the_least_time() -> None:
    figures = Figures()
    figures.add([(OURS, 1.0), (OURS, 4.0), (OURS, 2.0)])
    assert (figures.best(OURS, "more"), figures.best(OURS, "less")) == (4.0, 1.0)
    assert figures.median(OURS) == 2.0
    assert (figures.best(THEIRS, "more"), figures.median(THEIRS)) == (None, None)


def test_the_report_has_a_table_for_each_that_was_measured(tmp_path: Path) -> None:
    figures = Figures()
    figures.add([(OURS, 20.0), (OURS, 21.04), (THEIRS, 48.5)])
    figures.add(
        [
            (TableCell(LAYERS.name, OURS.line, column), ms)
            for column, ms in (("1 row", 65.0), ("4 rows", 113.0))
        ]
    )
    figures.add([(TableCell(LAYERS.name, THEIRS.line, "1 row"), 32.0)])
    text = markdown(figures)
    assert "| FlowEdge int4 | 21.0 / 20.5 |" in text
    assert "| FlowEdge int4 | 65.0 / 65.0 | 113.0 / 113.0 |" in text
    assert "| llama.cpp Q4_0 | 32.0 / 32.0 |  |" in text
    assert text.count("best / median") == 2
    write_json(tmp_path / "out.json", figures, {"machine": "x"})
    content = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert content["machine"] == "x"
    assert content["figures"][0] == {
        "table": ONE.name,
        "line": "FlowEdge int4",
        "column": "decode",
        "values": [20.0, 21.04],
    }


def test_formats_are_named_as_each_side_names_them() -> None:
    assert (format_of("bf16").ours, format_of("bf16").theirs) == ("FlowEdge bfloat16", "llama.cpp BF16")
    assert (format_of("int4").ours, format_of("int4").theirs) == ("FlowEdge int4", "llama.cpp Q4_0")
    assert (format_of("w8a16").gguf, format_of("nf4").gguf) == ("Q8_0", "Q4_0")
    assert FORMATS["float32"].dtype == "float32"
    with pytest.raises(BadRequestError, match="no format 'q9'"):
        format_of("q9")
