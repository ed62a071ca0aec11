"""The report of load points: groups, tables, what is said of the draft node, lines and charts of sessions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from flowedge.engine.activity import DRAFT, FORWARD, PREFILL, TRANSFER
from flowedge_testbed.load.load_record import LoadRecord
from flowedge_testbed.load.pipeline_use import PipelineUse
from flowedge_testbed.report.entries import Entry
from flowedge_testbed.report.load.load_gantt import SESSION_COLOURS, draw_load_gantt
from flowedge_testbed.report.load.load_groups import load_places
from flowedge_testbed.report.load.load_pictures import draw_curves, draw_load_lines
from flowedge_testbed.report.load.load_summary import draft_node_lines
from flowedge_testbed.report.load.load_tables import paper_gains, speed_table, use_table
from flowedge_testbed.report.plots.style import Heading
from flowedge_testbed.trace import NO_SESSION, Interval, Trace
from tests.testbed.report.plots.figure_texts import cut_texts, texts

NOTES = ("emulated: a model on devices", "tokens by the bundled model", "2 prompts of mt_bench")
HEADING = Heading("Many requests over a pipeline with a long name", NOTES)


def entry(method: str, at: float, speed: float, **changes: Any) -> Entry:
    times = {
        f"{name}_{part}_ms": 100.0 * at
        for name in ("ttft", "latency", "itl", "per_token", "queued")
        for part in ("p50", "p99")
    }
    return {
        "profile": "boards",
        "point": {},
        "method": method,
        "noise": "plain",
        "temperature": 0,
        "load": "clients",
        "at": at,
        "static_batches": method.endswith("static"),
        "tokens_per_s": speed,
        "requests_per_s": 0.25,
        **times,
        "queued_mean_ms": 250.0,
        "per_token_mean_ms": 100.0 * at,
        "slowest_share": 0.8,
        "least_row_share": None,
        "refused": 2,
        "rows_a_forward": {"mean": 12.34, "p50": 16.0, "p99": 128.0},
        "sessions_a_forward": 1.5,
        "busy": {"d0": 0.5, "v1": 0.9, "v2": 0.7},
        "limit": "v1",
        "draft_node_alone": 0.01,
        "idle_beside_draft_node": 0.2,
        "all_idle": 0.03,
        **changes,
    }


def test_tables_have_a_row_for_each_load_point_and_method() -> None:
    entries = [entry(method, at, 4.5 * at) for method in ("auto", "naive_pp") for at in (1, 8)]
    (place,) = load_places(entries)
    rows = speed_table(place).splitlines()
    assert [row.split(" | ")[:3] for row in rows[2:]] == [
        ["| 1 client", "auto", "4.50"],
        ["| 1 client", "naive_pp", "4.50"],
        ["| 8 clients", "auto", "36.00"],
        ["| 8 clients", "naive_pp", "36.00"],
    ]
    assert len({row.count("|") for row in rows}) == 1
    assert rows[2].endswith("| 0.25 | 0.10 | 0.80 |  | 2 |"), "no session decoded: there is no share of rows"
    used = use_table(place).splitlines()
    assert len({row.count("|") for row in used}) == 1
    assert "| 12.3 | 16 | 128 | 1.50 | 50% | 90% / 70% | V1 | 1% | 20% | 3% |" in used[2]


def test_specpipe_dbs_gains_stand_beside_its_papers() -> None:
    entries = [
        entry("specpipe_db", 4.0, 3.0, per_token_p50_ms=50.0),
        entry("autoregressive", 4.0, 2.0, per_token_p50_ms=60.0),
        entry("specpipe_db", 8.0, 5.0),
    ]
    told = paper_gains(entries)
    assert "| the paper, over vLLM |  | 1.64 to 2.08x | 1.61 to 2.06x |" in told
    assert "| boards, temperature 0 | 4 clients | 1.50x | 1.20x |" in told
    assert "8 clients" not in told, "there is nothing to compare it with"
    assert paper_gains(entries[:1]) == ""


def test_places_temperatures_and_kinds_of_load_are_apart() -> None:
    entries = [
        entry("auto", 1, 4.0),
        entry("auto", 1, 4.0, temperature=1),
        entry("auto", 0.5, 4.0, load="arrivals_per_s"),
        entry("auto", 1, 4.0, point={"mbps": 50}),
        entry("auto", 2, 5.0),
    ]
    places = load_places(entries)
    assert [(place.label, place.kind, place.values) for place in places] == [
        ("boards, temperature 0", "clients", [1, 2]),
        ("boards, temperature 1", "clients", [1]),
        ("boards, temperature 0", "arrivals_per_s", [0.5]),
        ("boards, mbps 50, temperature 0", "clients", [1]),
    ]
    assert len({place.file_name for place in places}) == 4
    assert "0.5 requests/s" in speed_table(places[2])


def test_it_is_said_where_the_draft_node_holds_the_stages_up() -> None:
    quiet, alone = entry("auto", 1, 4.0), entry("naive_pp", 1, 4.0, draft_node_alone=0.13)
    limit = entry("auto", 16, 40.0, limit="d0", busy={"d0": 0.99, "v1": 0.9})
    assert list(draft_node_lines([quiet, alone, limit])) == [
        "naive_pp on boards at 1 client: all stages wait for the draft node for 13% of the time",
        "auto on boards at 16 clients: the draft node is the busiest device (99% of the time), and a stage "
        "idles beside it for 20%",
    ]


def test_curves_have_the_time_a_token_below_and_the_throughput_beside() -> None:
    entries = [entry(method, at, 4.5 * at) for method in ("auto", "naive_pp") for at in (1.0, 8.0)]
    (place,) = load_places(entries)
    (panel,) = (figure := draw_curves(place, HEADING)).axes
    for line in panel.get_lines():
        assert np.asarray(line.get_xydata()).tolist() == [[100.0, 4.5], [800.0, 36.0]]
    assert "8" in texts(figure), "the load at the end of a curve"
    assert cut_texts(figure) == []


def test_lines_are_drawn_along_the_load() -> None:
    methods = ("auto", "naive_pp", "naive_pp_static", "a method with a name of many words")
    entries = [
        entry(method, at, at * (4 - place)) for place, method in enumerate(methods) for at in (1, 2, 8)
    ]
    (place,) = load_places([*entries, entry("autoregressive", 1, 3.0)])
    figure = draw_load_lines(place, HEADING)
    assert cut_texts(figure) == []
    shown = texts(figure)
    assert {"tokens/s, all clients", "seconds between tokens, p99"} <= set(shown)
    for panel in figure.axes:
        assert len(panel.get_lines()) == 5
        assert [label.get_text() for label in panel.get_xticklabels()] == ["1", "2", "8"]
    assert list(figure.axes[0].get_lines()[0].get_ydata()) == [4, 8, 32]


def record(span: float) -> LoadRecord:
    use = PipelineUse({"d0": 0.5, "v1": 0.9, "v2": 0.7}, 0.0, 0.0, 0.0, (), ())
    return LoadRecord((0.0, span), 1, 1, (), use)


@pytest.mark.parametrize("sessions", [2, 8, 16])
def test_sessions_of_a_chart_have_colours_and_numbers(sessions: int) -> None:
    numbers = range(10, 10 + sessions)
    intervals = [Interval(-1, DRAFT, at * 0.1, at * 0.1 + 0.05, 1, session=10) for at in range(20)]
    for at in range(10):
        together = [Interval(0, FORWARD, at * 0.2, at * 0.2 + 0.15, 4, session=each) for each in numbers]
        intervals += together
    intervals += [
        Interval(1, PREFILL, 0.1, 0.9, 16, session=11),
        Interval(1, TRANSFER, 0.9, 1.0, 16, session=11),
        Interval(1, DRAFT, 1.0, 1.1, 0, session=NO_SESSION),
    ]
    figure = draw_load_gantt(record(2.0), Trace(intervals), HEADING)
    shown = texts(figure)
    named = [text for text in shown if text.startswith("request ")]
    assert named == [f"request {number}" for number in numbers]
    assert "prefill" in shown
    assert {"D0", "V1", "V2"} <= set(shown)
    assert cut_texts(figure) == []
    colours = legend_colours(figure)
    assert len(colours) == sessions, "each session has a colour of its own"
    assert colours == [colour.lower() for colour in SESSION_COLOURS[:sessions]]
    if sessions <= 2:
        (panel,) = figure.axes
        assert [text.get_text() for text in panel.texts].count("11") == 11, "on each wide bar"


def legend_colours(figure: Figure) -> list[str]:
    (legend,) = figure.legends
    named = zip(legend.get_patches(), legend.get_texts(), strict=True)
    return [to_hex(patch.get_facecolor()) for patch, text in named if text.get_text().startswith("request")]
