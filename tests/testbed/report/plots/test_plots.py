"""Pictures: what they say on themselves, values on bars, equal results drawn once, nothing cut off."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from flowedge.core.request import Noise
from flowedge.strategies.registry import STRATEGIES
from flowedge_testbed.record import DeviceUsage, RunRecord
from flowedge_testbed.report.entries import Entry
from flowedge_testbed.report.plots.bars import draw_bars
from flowedge_testbed.report.plots.gantt import LOOKS, draw_gantt
from flowedge_testbed.report.plots.style import Heading, line_style, spread, text_width, three_digits, wrapped
from flowedge_testbed.report.plots.sweeps import draw_lines, draw_map, sweep_maps
from flowedge_testbed.trace import Interval, PruneMark, Trace
from tests.testbed.report.plots.figure_texts import cut_texts, overlapping, texts

NOTES = (
    "emulated: LLaMA2-Chat 7B fp16 on 5 x Jetson Orin Nano 8 GB; links of 150 Mbit/s and 1 ms",
    "tokens by the bundled 8.92 M model and its EAGLE head; speeds are those of the emulated devices",
    "2 prompts of mt_bench, temperature 0, at most 24 new tokens",
)
HEADING = Heading("A benchmark with a title that is longer than the picture is wide, " * 2, NOTES)


def entry(
    profile: str,
    method: str,
    speed: float | None,
    *,
    dataset: str = "mt_bench",
    temperature: float = 0,
    noise: Noise = "plain",
    **point: float,
) -> Entry:
    return {
        "profile": profile,
        "model": profile.upper(),
        "method": method,
        "options": {},
        "noise": noise,
        "dataset": dataset,
        "temperature": temperature,
        "emulated": True,
        "tokens_per_s": speed,
        "point": {name.replace("option_", "option."): value for name, value in point.items()},
    }


def on_itself(figure: Figure) -> str:
    """The heading of a figure, without the breaks of its lines."""
    return " ".join(text.get_text() for text in figure.texts)


def test_bars_have_values_and_equal_results_are_drawn_once() -> None:
    entries = [
        entry(profile, method, speed, dataset=dataset)
        for profile in ("llama2-7b-fp16", "vicuna-7b-fp16")
        for dataset, times in (("mt_bench", 1.0), ("natural_questions", 2.0))
        for method, speed in (("pipedec", 4.0 * times), ("specpipe", 4.0 * times), ("auto", 7.123 * times))
    ]
    figure = draw_bars(entries, HEADING)
    assert all(note in on_itself(figure) for note in NOTES)
    assert "llama2-7b-fp16 = vicuna-7b-fp16, temperature 0" in texts(figure)
    panels = [[text.get_text() for text in panel.texts] for panel in figure.axes]
    assert panels == [["6.00", "10.7"], ["4.00", "7.12"], ["8.00", "14.2"]], "the mean, and each dataset"
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["pipedec = specpipe", "auto"]
    assert cut_texts(figure) == []
    assert [bar.get_width() for bar in figure.axes[1].patches if isinstance(bar, Rectangle)] == [4.0, 7.123]


def test_methods_that_differ_at_one_temperature_are_told_apart_there() -> None:
    entries = [
        entry("m", method, speed, temperature=temperature, noise=noise)
        for temperature, method, noise, speed in (
            (0, "auto", "plain", 5.0),
            (0, "small segments", "plain", 5.0),
            (1, "auto", "shared", 6.0),
            (1, "small segments", "shared", 4.0),
            (1, "pipedec", "shared", 3.0),
            (1, "specpipe", "shared", 3.0),
        )
    ]
    greedy, warm = (
        [t.get_text() for t in panel.get_yticklabels()] for panel in draw_bars(entries, HEADING).axes
    )
    assert greedy == ["auto = small segments"]
    assert warm == ["auto, shared noise", "small segments, shared noise", "pipedec = specpipe, shared noise"]


def test_a_speed_that_was_not_measured_is_no_bar_of_zero() -> None:
    (panel,) = draw_bars([entry("m", "auto", None), entry("m", "flowspec", 3.0)], HEADING).axes
    assert [text.get_text() for text in panel.texts] == ["not measured", "3.00"]


@pytest.mark.parametrize("profiles", [1, 2])
def test_long_labels_fit_on_bars_and_lines(profiles: int) -> None:
    methods = ["auto", "autoregressive", "naive_pp", "a method with a name of many words " * 3, "pipeinfer"]
    names = [f"model-number-{number}-with-a-long-name.yaml-fp16" for number in range(profiles)]
    entries = [
        entry(name, method, 1.0 + row / 100 + place + mbps / 1000, mbps=mbps)
        for place, name in enumerate(names)
        for row, method in enumerate(methods)
        for mbps in (125, 250, 500, 1000)
    ]
    for figure in (draw_bars(entries, HEADING), draw_lines(entries, "mbps", "tokens_per_s", HEADING)):
        assert cut_texts(figure) == []
        assert all(note in on_itself(figure) for note in NOTES)
        for panel in figure.axes:
            assert overlapping(list(panel.texts)) == []


def test_lines_end_in_their_names_and_values() -> None:
    speeds = {"auto": (5.0, 9.0), "flowspec": (4.0, 8.95), "pipedec": (3.0, 3.5), "specpipe": (3.0, 3.5)}
    entries = [
        entry(profile, method, speed, mbps=mbps)
        for profile in ("llama2-7b-fp16", "vicuna-7b-fp16")
        for method, pair in speeds.items()
        for mbps, speed in zip((125, 1000), pair, strict=True)
    ]
    figure = draw_lines(entries, "mbps", "tokens_per_s", HEADING)
    (panel,) = figure.axes
    assert {"auto 9.00", "flowspec 8.95", "pipedec = specpipe 3.50"} <= set(texts(figure))
    assert "llama2-7b-fp16 = vicuna-7b-fp16" in texts(figure)
    styles = [(line.get_marker(), line.get_linestyle()) for line in panel.get_lines()]
    assert len(set(styles)) == 3, "lines are told apart without their colours"


def test_a_map_of_two_axes_says_what_it_rests_on() -> None:
    entries = [
        entry("m", method, depth + expand / 10, option_depth=depth, option_expand_depth=expand)
        for method in ("flowspec", "flowspec_paper")
        for depth in (3, 4)
        for expand in (3, 4)
    ]
    (shown,) = sweep_maps(entries)
    assert (shown.title, shown.file_name) == ("flowspec = flowspec_paper", "flowspec")
    figure = draw_map(shown, ("option.depth", "option.expand_depth"), "tokens_per_s", HEADING)
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == ("expand_depth", "depth")
    assert all(note in on_itself(figure) for note in NOTES)
    assert {"3.30", "3.40", "4.30", "4.40"} <= set(texts(figure))
    assert cut_texts(figure) == []


def record(places: list[str], ttft_s: float, itl_s: tuple[float, ...]) -> RunRecord:
    used = [DeviceUsage(name, 0.5, 0.1, 0.4, 1.0, 10, 0, 0, 0, 0, 100, None) for name in places]
    return RunRecord(
        prompt_tokens=38,
        new_tokens=1 + len(itl_s),
        finish_reason="length",
        output="",
        loops=False,
        ttft_s=ttft_s,
        decode_s=sum(itl_s),
        latency_s=ttft_s + sum(itl_s),
        itl_s=itl_s,
        accepted_per_segment=(),
        accepted_per_round=(),
        segments=0,
        empty_segments=0,
        prunes=0,
        draft_layers=0,
        draft_rows_sent=0,
        rows_in_flight=0,
        rows_alive_in_flight=0,
        segments_in_flight=0,
        express_bytes=0,
        draft_node=used[0],
        stages=tuple(used[1:]),
    )


def request() -> tuple[RunRecord, Trace]:
    """A request whose first token comes at 1 s, after a prefill of V2 that began at 0.9 s."""
    forwards = [
        Interval(
            stage, "forward", 1.1 + 0.1 * step + 0.05 * stage, 1.2 + 0.1 * step + 0.05 * stage, 100 + step
        )
        for stage in (0, 1)
        for step in range(40)
    ]
    trace = Trace(
        [
            Interval(0, "prefill", 0.2, 0.6, 38),
            Interval(1, "prefill", 0.9, 0.99, 38),
            Interval(-1, "verify", 0.99, 1.0, 1),
            Interval(-1, "draft", 1.0, 1.1, 1),
            Interval(1, "aborted", 1.1, 1.145, 7),
            Interval(0, "transfer", 1.2, 1.21, 5),
            *forwards,
        ],
        [PruneMark(0, 1.5)],
    )
    return record(["d0", "v1", "v2"], 1.0, (0.5,) * 8), trace


def test_the_first_number_of_a_gantt_chart_is_whole() -> None:
    figure = draw_gantt(*request(), HEADING)
    (panel,) = figure.axes
    numbers = [text for text in panel.texts if text.get_text() == "38"]
    assert len(numbers) == 1, "of the prefill that ended before the first token"
    box, frame = numbers[0].get_window_extent(), panel.get_window_extent()
    assert frame.x0 <= box.x0
    assert panel.get_xlim()[0] <= 0.9, "the whole computation is shown"
    assert cut_texts(figure) == []
    assert overlapping([text for text in panel.texts if text.get_text() != "tokens"]) == []
    assert all(note in on_itself(figure) for note in NOTES)
    assert "seconds since the request arrived" in panel.get_xlabel()
    for text in panel.texts:
        assert frame.x0 <= text.get_window_extent().x0 or text.get_text() == "tokens"
        assert text.get_window_extent().x1 <= frame.x1


def test_a_number_that_does_not_fit_its_bar_is_left_out() -> None:
    found, trace = request()
    longest = [i for i in trace.intervals if i.kind != "aborted"]
    thin = replace(trace, intervals=[*longest, Interval(1, "aborted", 1.1, 1.101, 12345)])
    (panel,) = draw_gantt(found, thin, HEADING).axes
    assert "12345" not in [text.get_text() for text in panel.texts]


def brightness(colour: str) -> float:
    red, green, blue = to_rgb(colour)
    return 0.299 * red + 0.587 * green + 0.114 * blue


def test_kinds_of_work_differ_in_grey() -> None:
    for kinds in (("draft", "verify"), ("forward", "prefill", "aborted")):
        greys = sorted(brightness(LOOKS[kind].colour) for kind in kinds)
        hatches = {LOOKS[kind].hatch for kind in kinds}
        assert all(b - a > 0.25 for a, b in pairwise(greys)) or len(hatches) > 1


def test_methods_have_lines_of_their_own() -> None:
    styles = [tuple(map(str, line_style(name).values())) for name in STRATEGIES]
    assert len(set(styles)) == len(STRATEGIES)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (0.0123, "0.012"), (0.801, "0.801"), (7.123, "7.12"), (14.24, "14.2"), (340.6, "341")],
)
def test_values_have_three_digits(value: float, shown: str) -> None:
    assert three_digits(value) == shown


def test_lines_are_as_wide_as_they_may_be() -> None:
    lines = wrapped(NOTES[0], 8, 2.0)
    assert " ".join(lines) == NOTES[0]
    assert all(text_width(line, 8) <= 2.0 for line in lines)
    assert len(lines) > 2


def test_labels_are_moved_apart_in_their_order() -> None:
    assert spread([1.0, 1.1, 5.0, 1.05], [0.5] * 4, 6) == pytest.approx([1.0, 2.0, 5.0, 1.5])
    assert spread([5.9, 6.0], [1.0, 1.0], 6) == pytest.approx([4.5, 5.5]), "none is above the top"
    assert spread([0.0, 0.1], [1.0, 0.5], 6) == pytest.approx([0.5, 1.25]), "none is below the bottom"
