"""The tables of a report, from made-up entries: which rows there are, and what stands in them."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from flowedge_testbed.report import tables
from flowedge_testbed.report.entries import Entry
from flowedge_testbed.report.figures import device_tables
from flowedge_testbed.report.figures.columns import COLUMNS
from flowedge_testbed.report.figures.sweep_tables import sweep_tables, swept_columns
from flowedge_testbed.report.same_results import panels
from flowedge_testbed.scenario_parts import ColumnName


def entry(
    method: str, speed: float, dataset: str = "mt_bench", noise: str = "plain", **point: float
) -> Entry:
    """An entry of one method on a dataset of four prompts, at a point of a sweep over options."""
    content: dict[str, Any] = {
        "profile": "llama2-7b-fp16",
        "emulated": True,
        "method": method,
        "noise": noise,
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
        "latency_ms_by_seed": [1e3 * speed],
        "by_prompt": {
            "tokens": [60.0] * 4,
            "seconds": [share * 60 / speed for share in (0.7, 0.9, 1.1, 1.3)],
        },
        "tokens": 100,
        "hit_rate": 0.75,
        "memory_gib": {"d0": 1.5, "v1": 6.0},
        "link_bytes": {"d0": 20_000, "v1": 400_000, "express": 1_000},
        "segments_by_tokens": [1, 2, 1],
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
    speed = next(place for place, name in enumerate(header) if name in ("mt_bench ξ", "run 1 ξ"))
    assert [(row[0], row[1], float(row[speed].split(" ")[0])) for row in rows] == [
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
        "-50.0 ±0.0 %",
        "+0.0 %",
        "+10.0 ±0.0 %",
    ], "all prompts gain alike"


def test_without_a_sweep_the_papers_figures_stand_beneath() -> None:
    _, mine, theirs = cells(tables.main_table([entry("naive_pp", 6.0)], 0))
    assert mine[:2] == ["llama2-7b-fp16", "naive_pp"]
    assert theirs[:3] == ["", "*in the paper*", "*7.05*"]


def test_bars_of_points_are_rows_of_panels() -> None:
    rows = panels([entry("pipedec", float(width), width=width) for width in (8, 16)])
    assert [row.title for row in rows] == [
        "llama2-7b-fp16, width 8, temperature 0",
        "llama2-7b-fp16, width 16, temperature 0",
    ]
    assert [row.speed(row.methods[0], "mt_bench") for row in rows] == [8.0, 16.0]


def test_a_figure_along_one_axis_is_a_table_of_methods() -> None:
    entries = [
        entry(method, speed + mbps / 1000) | {"point": {"mbps": mbps}}
        for method, speed in (("naive_pp", 5.0), ("auto", 9.0))
        for mbps in (125.0, 250.0, 500.0, 1000.0)
    ]
    title, table = sweep_tables(entries, ["tokens_per_s"])
    header, naive, published, auto = cells(table)
    assert title == "tokens/s by Mbit/s"
    assert header == ["Model", "Method", "T", "125", "250", "500", "1000"]
    assert [cell.split(" ")[0] for cell in naive[3:]] == ["5.12", "5.25", "5.50", "6.00"]
    assert published[3:] == ["*6.46*", "*6.72*", "*6.81*", "*6.86*"]
    assert auto[1] == "auto"
    assert swept_columns([], entries) == ["tokens_per_s"], "plain decoding was not measured"


def test_a_figure_of_two_axes_is_a_map_for_each_method() -> None:
    entries = [
        entry(method, depth + expand / 10, depth=depth, expand_depth=expand)
        for method in ("flowspec_paper", "flowspec")
        for depth in (3.0, 4.0)
        for expand in (3.0, 5.0)
    ]
    title, paper, own_title, own = sweep_tables(entries, ["tokens_per_s"])
    assert title == "tokens/s of flowspec_paper, llama2-7b-fp16, temperature 0"
    assert own_title.startswith("tokens/s of flowspec,")
    assert cells(own) == [
        ["", "expand_depth 3", "expand_depth 5"],
        ["depth 3", "3.30", "3.50"],
        ["depth 4", "4.30", "4.50"],
    ]
    assert cells(paper)[1] == ["depth 3", "3.30 (*8.93*)", "3.50 (*9.44*)"]
    hit = sweep_tables(entries, ["hit_rate"])[1]
    assert cells(hit)[2] == ["depth 4", "75 %", "75 %"]


def test_named_figures_have_a_column_each() -> None:
    entries = [entry("auto", 10.0, "a"), entry("auto", 20.0, "b")]
    header, row = cells(
        tables.columns_table(entries, ["per_token_ms", "tokens_per_s_per_gib", "fullest_gib"])
    )
    assert header == ["Model", "Method", "T", "ms a token", "tokens/s per GiB", "GiB, fullest device"]
    assert row[3:] == ["67", "2.000", "6.0"]
    assert set(COLUMNS) == set(get_args(ColumnName)), "each name of the scenario is a column"


def test_devices_have_their_memory_and_their_bytes() -> None:
    entries = [
        entry("auto", 10.0, "a"),
        entry("auto", 20.0, "b"),
        entry("naive_pp", 5.0) | {"memory_gib": None},
    ]
    header, held = cells(device_tables.memory_table(entries))
    assert header[3:] == ["d0", "v1", "GiB", "tokens/s", "tokens/s per GiB"]
    assert held[1:6] == ["auto", "0", "1.50", "6.00", "7.5"]
    header, sent, _ = cells(device_tables.link_table(entries))
    assert header[3:] == ["d0", "v1", "express", "kB a token"]
    assert sent[3:] == ["0.2", "4.0", "0.0", "4.2"]


def test_segments_are_told_by_their_tokens() -> None:
    entries = [entry("auto", 10.0), entry("auto", 10.0, "b") | {"segments_by_tokens": [1, 0, 0, 3]}]
    header, row = cells(tables.accepted_table(entries))
    assert header[3:] == ["0", "1", "2", "3"]
    assert row[3:] == ["25.0", "25.0", "12.5", "37.5"]


def test_repeated_runs_have_their_latency_and_the_papers() -> None:
    speeds, latencies = [7.0, 7.1, 7.2], [18_000.0, 18_100.0, 18_300.0]
    own = entry("naive_pp", 7.1) | {"tokens_per_s_by_seed": speeds, "latency_ms_by_seed": latencies}
    header, mine, theirs = cells(tables.repeat_table([own], 0))
    assert header[3:11] == [
        "run 1 ξ",
        "run 1 s",
        "run 2 ξ",
        "run 2 s",
        "run 3 ξ",
        "run 3 s",
        "mean ξ",
        "mean s",
    ]
    assert mine[9:13] == ["7.100", "18.133", "0.100", "0.153"]
    assert theirs[9:13] == ["*7.021*", "*18.142*", "*0.001*", "*0.014*"]
