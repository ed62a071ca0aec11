"""The tables of a report, from made-up entries: which rows there are, and what stands in them."""

from __future__ import annotations

from typing import Any

import pytest

from flowedge_testbed.report import tables
from flowedge_testbed.report.entries import Entry
from flowedge_testbed.report.plots.bars import bar_rows


def entry(method: str, speed: float, dataset: str = "mt_bench", **point: float) -> Entry:
    """An entry of one method on a dataset, at a point of a sweep over options."""
    content: dict[str, Any] = {
        "profile": "llama2-7b-fp16",
        "emulated": True,
        "method": method,
        "noise": "plain",
        "temperature": 0,
        "dataset": dataset,
        "point": {f"option.{name}": value for name, value in point.items()},
        "tokens_per_s": speed,
        "tokens_per_s_without_looping": speed,
        "tokens_per_s_by_seed": [speed],
        "speedup_vs_naive_pp": speed / 4,
        "speedup_vs_autoregressive": None,
        "looping_requests": 0,
        "requests": 1,
        "latency_ms": 1e3 * speed,
    }
    return content


def cells(table: str) -> list[list[str]]:
    """The cells of a table, row by row; the first row is the header."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return [rows[0], *rows[2:]]


@pytest.mark.parametrize("make", [tables.main_table, tables.ablation_table, tables.repeat_table])
def test_each_point_of_a_sweep_has_a_row_of_its_own(make: Any) -> None:
    entries = [entry("pipedec", 8.0 + width / 16, width=width) for width in (8, 16, 32)]
    header, *rows = cells(make(entries, 0))
    speed = next(
        place for place, name in enumerate(header) if name in ("mt_bench ξ", "mean") or name == "run 1"
    )
    assert [(row[0], row[1], float(row[speed])) for row in rows] == [
        ("llama2-7b-fp16, width 8", "pipedec", 8.5),
        ("llama2-7b-fp16, width 16", "pipedec", 9.0),
        ("llama2-7b-fp16, width 32", "pipedec", 10.0),
    ], "no point stands for the others, and none has the paper's figure, which is of the paper's setting"


def test_parts_are_compared_at_their_own_point() -> None:
    entries = [
        entry(method, speed, depth=depth)
        for depth, speeds in ((4, (8.0, 4.0)), (6, (10.0, 11.0)))
        for method, speed in zip(("whole", "less a part"), speeds, strict=True)
    ]
    assert [row[-1] for row in cells(tables.parts_table(entries, 0))[1:]] == [
        "+0.0 %",
        "-50.0 %",
        "+0.0 %",
        "+10.0 %",
    ]


def test_without_a_sweep_the_papers_figures_stand_beneath() -> None:
    _, mine, theirs = cells(tables.main_table([entry("naive_pp", 6.0)], 0))
    assert mine[:2] == ["llama2-7b-fp16", "naive_pp"]
    assert theirs[:3] == ["", "*in the paper*", "*7.05*"]


def test_bars_of_points_are_rows_of_panels() -> None:
    rows = bar_rows([entry("pipedec", float(width), width=width) for width in (8, 16)])
    assert [row.title for row in rows] == [
        "llama2-7b-fp16, width 8, temperature 0",
        "llama2-7b-fp16, width 16, temperature 0",
    ]
    assert [row.speed(row.methods[0], "mt_bench") for row in rows] == [8.0, 16.0]
