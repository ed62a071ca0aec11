"""auto's leads by place: what is compared with what, the figures of many, the table and its picture."""

from __future__ import annotations

import json

import pytest

from flowedge.core.request import Noise
from flowedge_testbed.report.entries import Entry
from flowedge_testbed.report.lead_table import lead_lines, lead_tables
from flowedge_testbed.report.leads import LeadSummary, leads, leads_content
from flowedge_testbed.report.plots.bars import draw_leads
from flowedge_testbed.report.plots.style import Heading
from tests.testbed.report.plots.figure_texts import cut_texts, texts


def entry(
    place: str,
    method: str,
    speed: float | None,
    *,
    temperature: float = 0,
    noise: Noise = "plain",
    dataset: str = "own",
    **point: float,
) -> Entry:
    return {
        "profile": place,
        "method": method,
        "tokens_per_s": speed,
        "temperature": temperature,
        "noise": noise,
        "dataset": dataset,
        "point": point,
        "by_prompt": {"tokens": [60.0], "seconds": [60 / (speed or 1)]},
    }


def shared(place: str, method: str, speed: float) -> Entry:
    return entry(place, method, speed, temperature=1, noise="shared")


AT_HOME = [
    entry("home", "auto", 6.0),
    entry("home", "autoregressive", 2.0),
    entry("home", "pipedec", 5.0),
    entry("home", "specpipe", 4.0),
]
AT_A_FRIENDS = [
    entry("friend", "auto", 3.0),
    entry("friend", "autoregressive", 4.0),
    entry("friend", "pipedec", 1.0),
]


def test_auto_is_compared_with_the_best_other_and_with_plain_decoding() -> None:
    home, friend = leads([*AT_HOME, *AT_A_FRIENDS])
    assert (home.place, home.rival, home.rival_speed, home.plain_speed) == ("home", "pipedec", 5.0, 2.0)
    assert (home.ratio, home.plain_ratio) == (1.2, 3.0)
    assert (friend.rival, friend.ratio, friend.plain_ratio) == ("autoregressive", 0.75, 0.75)


def test_a_place_has_the_mean_of_its_datasets() -> None:
    more = [
        entry("home", method, speed, dataset="gsm8k") for method, speed in (("auto", 10.0), ("pipedec", 3.0))
    ]
    (home,) = leads([*AT_HOME[:1], AT_HOME[2], *more])
    assert (home.speed, home.rival_speed, home.plain_speed, home.plain_ratio) == (8.0, 4.0, None, None)


def test_shared_noise_is_compared_with_shared_noise() -> None:
    plain = [
        entry("home", method, speed, temperature=1)
        for method, speed in (("auto", 3.0), ("autoregressive", 2.0), ("pipedec", 4.0))
    ]
    both = leads([*plain, shared("home", "auto", 6.0), shared("home", "pipedec", 5.0)])
    assert [(lead.noise, lead.rival_speed, lead.ratio) for lead in both] == [
        ("plain", 4.0, 0.75),
        ("shared", 5.0, 1.2),
    ]
    assert [lead.plain_speed for lead in both] == [2.0, 2.0], "plain decoding has one kind of drafting: none"


def test_points_of_a_sweep_are_places_of_their_own() -> None:
    swept = [
        entry("home", method, speed, mbps=mbps)
        for mbps in (100, 1000)
        for method, speed in (("auto", 2.0), ("flowspec", 1.0))
    ]
    assert [lead.place for lead in leads(swept)] == ["home, mbps 100", "home, mbps 1000"]


@pytest.mark.parametrize(
    "entries", [AT_HOME[:1], AT_HOME[1:], [AT_HOME[0], entry("home", "pipedec", None)], []]
)
def test_without_two_figures_there_is_no_lead(entries: list[Entry]) -> None:
    assert leads(entries) == []
    assert leads_content(entries) == {"places": []}
    assert lead_tables(entries) == ["No place has figures of auto and of another method."]


def test_many_leads_have_a_geometric_mean_and_a_worst() -> None:
    found = leads([*AT_HOME, *AT_A_FRIENDS])
    whole = LeadSummary.of(found)
    assert whole.mean == pytest.approx((1.2 * 0.75) ** 0.5)
    assert (whole.worst.place, whole.behind) == ("friend", (found[1],))
    assert (whole.worst_plain, whole.behind_plain) == (found[1], (found[1],))
    content = json.loads(json.dumps(leads_content([*AT_HOME, *AT_A_FRIENDS])))
    assert content["geometric_mean"] == pytest.approx(whole.mean)
    assert (content["behind_best_other"], content["behind_plain"]) == (1, 1)
    assert content["worst"] == content["worst_beside_plain"] == content["places"][1]
    assert content["places"][0] == {
        "place": "home",
        "temperature": 0,
        "noise": "plain",
        "tokens_per_s": 6.0,
        "best_other": "pipedec",
        "best_other_tokens_per_s": 5.0,
        "plain_tokens_per_s": 2.0,
        "ratio_to_best_other": 1.2,
        "ratio_to_plain": 3.0,
        "half_width": None,
        "prompts_needed": None,
    }


def test_a_hundredth_behind_is_not_behind() -> None:
    level = [entry("home", "auto", 0.992), entry("home", "pipedec", 1.0)]
    assert LeadSummary.of(leads(level)).behind == ()
    assert [line for line in lead_lines(leads(level)) if "below" in line] == [
        "below 0.99 of the best other: 0 of 1"
    ]


def test_the_table_marks_where_auto_is_behind_and_sums_up() -> None:
    warm = [shared("home", "auto", 123.4), shared("home", "pipedec", 150.0)]
    cold, table, told, *_, both = lead_tables([*AT_HOME, *AT_A_FRIENDS, *warm])
    assert cold == "Temperature 0"
    assert table.splitlines()[2:] == [
        "| home | pipedec | 5.00 | 6.00 | 1.20 | 2.00 | 3.00 |",
        "| friend | autoregressive | 4.00 | 3.00 | **0.75** | 4.00 | **0.75** |",
    ]
    assert told.splitlines() == [
        "- auto / best other: geometric mean 0.949 of 2",
        "- least auto / best other: 0.750, friend at temperature 0, beside autoregressive",
        "- below 0.99 of the best other: 1 of 2: friend",
        "- intervals over the prompts: none, for a dataset has one prompt",
        "- least auto / plain decoding: 0.750, friend at temperature 0",
        "- below 0.99 of plain decoding: 1 of 2: friend",
    ]
    assert "- below 0.99 of the best other: 2 of 3: friend (at 0), home (at 1)" in both
    assert "| home | pipedec | 150 | 123 | **0.82** |  |  |" in "\n".join(lead_tables(warm))


def test_the_picture_has_a_bar_for_each_place_and_temperature() -> None:
    warm = [shared("home", "auto", 3.0), shared("home", "specpipe", 1.0)]
    figure = draw_leads(leads([*AT_HOME, *AT_A_FRIENDS, *warm]), Heading("leads by place " * 10, ("a note",)))
    greedy, sampled = figure.axes
    assert [text.get_text() for text in greedy.texts] == ["1.20 pipedec", "0.75 autoregressive"]
    assert [label.get_text() for label in greedy.get_yticklabels()] == ["home", "friend"]
    assert [text.get_text() for text in sampled.texts] == ["3.00 specpipe"]
    assert {"temperature 0", "temperature 1, shared noise", "a note"} <= set(texts(figure))
    assert cut_texts(figure) == []


def test_leads_have_intervals_over_the_prompts() -> None:
    """At home every prompt gains alike. At a friend's a lead of 2 % comes from two prompts of four."""
    seconds = {
        ("home", "auto"): [1.0, 2.0, 3.0, 4.0],
        ("home", "pipedec"): [1.2, 2.4, 3.6, 4.8],
        ("friend", "auto"): [1.0, 1.0, 1.0, 1.0],
        ("friend", "pipedec"): [1.2, 1.15, 0.9, 0.83],
    }
    entries = [
        entry(place, method, 40 / sum(spent)) | {"by_prompt": {"tokens": [10.0] * 4, "seconds": spent}}
        for (place, method), spent in seconds.items()
    ]
    home, friend = leads(entries)
    assert home.half_width == pytest.approx(0, abs=1e-9)
    assert not home.by_chance
    assert friend.ratio == pytest.approx(1.02)
    assert friend.half_width == pytest.approx(0.155, abs=0.02)
    assert friend.by_chance
    _, table, told = lead_tables(entries)
    assert f"| 1.02 ±{friend.half_width:.2f} |" in table
    assert "- may be chance (the interval holds 1): 1 of 2: friend" in told
    assert f"{friend.prompts_needed} at the most varied; there were 4" in told


def test_of_one_prompt_the_chunks_of_its_answer_have_intervals() -> None:
    """Each chunk is slower at home. At a friend's the loss of 3 % comes from two chunks of four."""
    seconds = {
        ("home", "auto"): [1.3, 2.5, 3.8, 5.0],
        ("home", "pipedec"): [1.0, 2.0, 3.0, 4.0],
        ("friend", "auto"): [1.0, 1.0, 1.0, 1.0],
        ("friend", "pipedec"): [1.2, 1.1, 0.8, 0.78],
    }
    entries = [
        entry(place, method, 64 / sum(spent)) | {"by_chunk": {"tokens": [16.0] * 4, "seconds": spent}}
        for (place, method), spent in seconds.items()
    ]
    home, friend = leads(entries)
    assert home.half_width == pytest.approx(0.01, abs=0.01)
    assert (home.surely_behind, home.by_chance, home.prompts_needed) == (True, False, None)
    assert friend.ratio == pytest.approx(0.97)
    assert (friend.surely_behind, friend.by_chance) == (False, True)
    _, table, told = lead_tables(entries)
    assert f"| **0.97** ±{friend.half_width:.2f} |" in table
    assert "- below 0.99 of the best other: 2 of 2: home, friend" in told
    assert "- below 0.99 with the whole interval: 1 of 2: home" in told
    assert "- may be chance (the interval holds 1): 1 of 2: friend" in told
    assert "- a dataset has one prompt, so intervals are over chunks of 16 tokens of the answers" in told
    assert leads_content(entries)["surely_behind_best_other"] == 1


def tuned(place: str, method: str, speed: float, gain: float, **setting: float) -> Entry:
    return entry(place, method, speed) | {"tuned": {"setting": setting, "settings": 9, "gain": gain}}


def test_a_tuned_method_is_named_with_its_setting() -> None:
    """Tuned, pipedec of 5 tokens/s is the best other. With 2.5 of its own it is specpipe, which has 4."""
    at_home = [*AT_HOME[:2], tuned("home", "wide", 5.0, 2.0, width=32, step_levels=2), AT_HOME[3]]
    at_a_friends = [*AT_A_FRIENDS[:2], tuned("friend", "wide", 1.0, 1.0)]
    home, friend = leads([*at_home, *at_a_friends])
    assert (home.rival, home.setting, home.ratio) == ("wide", {"width": 32, "step_levels": 2}, 1.2)
    assert (home.untuned_speed, home.untuned_ratio) == (4.0, 1.5)
    assert (friend.rival, friend.setting, friend.untuned_ratio) == ("autoregressive", None, 0.75)
    assert home.to_dict()["best_other_setting"] == {"width": 32, "step_levels": 2}
    _, table, told, _, settings = lead_tables([*at_home, *at_a_friends])
    assert "| home | wide: width 32, step_levels 2 | 5.00 | 6.00 | 1.20 |" in table
    assert "- auto / best other: geometric mean 0.949 of 2" in told
    assert "- the same where the others have their own settings: 1.061" in told
    assert settings.splitlines() == [
        "| Place | wide |",
        "| --- | --- |",
        "| home | 2.00: width 32, step_levels 2 |",
        "| friend | 1.00: its own setting |",
        "| geometric mean | 1.414 |",
    ]
