"""The views of the page: what they show of a real pipeline, on screens of all kinds, and to everybody."""

from __future__ import annotations

from pathlib import Path

import pytest

import flowedge.gateway.page
from flowedge.gateway.page.picture import of_progress
from flowedge.gateway.pipelines.opening import SetUpProgress
from flowedge.weights.fetch.progress import FetchProgress
from tests.gateway.page.talking import ask, await_activity, await_answer, settings
from tests.support.board_files import why_no_thermal_folder, write_files
from tests.support.browser import Browser
from tests.support.processes import AgentProcess

STATIC = Path(flowedge.gateway.page.__file__).with_name("static")
VIEWS = ("chat", "cluster", "live")
MARKDOWN = """# Title

Some **bold** text, `a < b`, <script>window.hurt = 1</script> and <b>tags</b> & more.

- one
- [x] done

1. first

| a | b |
|---|---|
| 1 | 2 |

```python
if a < b: print("&amp;")
```

[good](https://example.org) [bad](javascript:window.hurt=1) ![picture](https://example.org/a.png)
<img src=x onerror="window.hurt = 1">
"""


def test_the_page_is_small_and_its_libraries_have_their_licences() -> None:
    files = [path for path in STATIC.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 300_000
    assert {path.name for path in files} >= {f"LICENSE-{name}.txt" for name in ("preact", "htm", "marked")}
    sources = "".join(path.read_text() for path in files if path.suffix in (".js", ".css", ".html"))
    assert "sourceMappingURL" not in sources


def test_the_cluster_is_a_picture_and_a_table(browser: Browser, page_agents: list[AgentProcess]) -> None:
    browser.show("cluster")
    browser.wait(lambda: browser.one(".picture svg"))
    picture = browser.one(".picture svg").get_attribute("aria-label")
    for agent, part in zip(
        page_agents, ("draft node", "stage, layers 0–3", "stage, layers 4–7"), strict=False
    ):
        assert f"{agent.name}, {part}, present" in picture
        assert agent.name in browser.text(".pipeline table")
    browser.wait(lambda: page_agents[3].name in browser.text(".others"), "the idle agent is seen")
    assert "weights" in browser.text(".device-line")
    memory = browser.text(".pipeline table td:nth-of-type(6)").splitlines()
    assert "GiB" in memory[0], "one machine's memory, once"
    assert memory[1:3] == [f"shared with {page_agents[0].name}"] * 2


@pytest.mark.skipif(bool(why_no_thermal_folder()), reason=f"NOT TESTED: {why_no_thermal_folder()}")
def test_a_device_that_heat_slows_down_is_shown(
    browser: Browser, page_agents: list[AgentProcess], thermal_folder: Path
) -> None:
    """A kernel that throttles is files: the agent reads them, and tells log, metrics and clients."""
    stage, device = page_agents[1], thermal_folder / "cooling_device0"
    browser.show("cluster")
    browser.wait(lambda: browser.one(".picture svg"))
    assert "slowed down" not in browser.text(".picture") and stage.samples()["flowedge_throttled"] == 0
    write_files(device, {"type": "cpufreq-cpu0", "cur_state": 1})
    browser.wait(lambda: browser.text(".device .slowed") == "is slowed down", "its card says so")
    assert "slowed down by cpufreq-cpu0" in browser.text(".pipeline table")
    assert stage.describe().throttled == "cpufreq-cpu0" and stage.samples()["flowedge_throttled"] == 1
    assert any("the device is slowed down: cpufreq-cpu0" in line for line in stage.lines)
    write_files(device, {"cur_state": 0})


def test_the_chart_and_the_tree_show_an_answer(browser: Browser) -> None:
    browser.scheme(dark=False, motion=True)
    await_activity(browser)
    settings(browser, max_tokens="120")
    ask(browser, "Tell me a long story about the sea.")
    browser.show("live")
    browser.wait(lambda: browser.one(".node-accepted"), "the tree shows accepted tokens")
    rows = browser.wait(
        lambda: [row for row in browser.text("table tbody tr td:nth-of-type(2)").split() if row != "0"],
        "the table of the chart counts computations",
    )
    assert len(rows) >= 2
    assert browser.text(".so-far")
    browser.wait(lambda: "limits the speed" in browser.text(".limit"), "it says what limits")
    painted = (
        "const c = document.querySelector('canvas');"
        "const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
        "return new Set(new Uint32Array(d.buffer)).size"
    )
    assert browser.wait(lambda: browser.run(painted) > 3, "the chart is painted")
    browser.button("Pause").click()
    browser.show("chat")
    await_answer(browser)


@pytest.mark.slow
def test_a_device_vanishes_and_returns(browser: Browser, page_agents: list[AgentProcess]) -> None:
    stage = page_agents[2]
    browser.show("cluster")
    browser.wait(lambda: browser.one(".picture svg"))
    stage.kill()
    browser.wait(lambda: stage.name in browser.text(".device.away"), "the device is shown to be away")
    browser.wait(lambda: "recovering" in browser.text(".badge"), "the pipeline recovers")
    assert f"{stage.name}, stage, lost" in browser.one(".picture svg").get_attribute("aria-label")
    browser.wait(lambda: "its agent has ended" in browser.text(".recovery"), "it says what has happened")
    browser.show("live")
    browser.wait(lambda: "No pipeline tells" in browser.text(".empty"), "its figures are gone")
    assert "It recovers" in browser.text(".empty")
    assert "tokens/s" not in browser.text(".speed")
    browser.show("cluster")
    stage.start()
    stage.await_address()
    browser.wait(lambda: not browser.one(".device.away"), "the device is back")
    browser.wait(lambda: browser.one(".badge.good"), "the pipeline is set up again")
    browser.show("chat")
    settings(browser, max_tokens="8")
    ask(browser, "Are you there?")
    assert await_answer(browser)


@pytest.mark.proof
@pytest.mark.slow
def test_an_answer_outlives_a_stage(browser: Browser, page_agents: list[AgentProcess]) -> None:
    stage = page_agents[1]
    settings(browser, max_tokens="250", temperature="0")
    ask(browser, "Tell me a long story about the sea.")
    browser.wait(lambda: browser.text(".message.assistant .markdown"), "the answer has begun")
    stage.kill()
    browser.wait(
        lambda: f"Device {stage.name} was lost" in browser.text(".message .lost"), "the chat says it"
    )
    assert "Stop" in browser.text("#stop"), "the answer goes on"
    browser.show("cluster")
    browser.wait(
        lambda: f"{stage.name}, stage, lost" in browser.one(".picture svg").get_attribute("aria-label")
    )
    assert browser.text(".badge").startswith("recovering")
    browser.show("chat")
    stage.start()
    stage.await_address()
    browser.wait(lambda: not browser.one(".message .lost"), "the line vanishes")
    await_answer(browser)
    assert not browser.one(".message .error")
    assert "250 tokens" in browser.text(".statistics")


def test_transfers_of_weights_have_bars(scripts: Browser) -> None:
    fetching = SetUpProgress("fetching weights", FetchProgress(30, 120, 10.0, 9.0))
    told = [of_progress("v1", fetching), of_progress("v2", SetUpProgress("opening"))]
    shown = scripts.run(
        """
        const { render, html } = await import('./static/html.js');
        const { ClusterView } = await import('./static/cluster.js');
        const pipeline = { name: 'p', model: 'm', ready: false, devices: [], progress: arguments_[0] };
        const place = document.createElement('div');
        const cluster = { pipelines: [pipeline], others: [] };
        render(html`<${ClusterView} cluster=${cluster} views=${new Map()} />`, place);
        const bar = place.querySelector('progress');
        const text = (name) => place.querySelector(name).textContent;
        return [bar.value, bar.max, text('.transfers'), text('.badge')];
        """,
        told,
    )
    assert shown[:2] == [30, 120]
    assert "30 B of 120 B · 10 B/s · 9.0 s left" in shown[2]
    assert "v2is being set up" in shown[2]
    assert shown[3] == "being set up"


@pytest.mark.one_in(2)
@pytest.mark.parametrize("width", [1280, 360])
def test_views_have_no_serious_problem_and_fit_the_screen(browser: Browser, width: int) -> None:
    def check(what: str) -> None:
        for dark in (False, True):
            browser.scheme(dark=dark)
            assert browser.violations() == [], (what, dark)
            assert not browser.overflows(), (what, dark)

    browser.resize(width, 760)
    await_activity(browser)
    settings(browser, max_tokens="16")
    ask(browser, "Hello")
    await_answer(browser)
    for view in VIEWS:
        browser.show(view)
        if view == "cluster":
            browser.wait(lambda: browser.one(".picture svg"))
            browser.driver.execute_script(
                "document.querySelectorAll('details').forEach((d) => (d.open = true))"
            )
        if view == "live":
            browser.wait(lambda: browser.one(".node-accepted"))
        check(view)
    browser.show("chat")
    browser.button("Settings").click()
    browser.wait(lambda: browser.one("dialog"))
    check("settings")


def test_the_colours_can_be_switched(browser: Browser) -> None:
    shade = "return getComputedStyle(document.body).backgroundColor"
    light = browser.run(shade)
    browser.run(
        "const s = document.getElementById('theme'); s.value = 'dark'; s.dispatchEvent(new Event('change'))"
    )
    dark = browser.wait(lambda: (now := browser.run(shade)) != light and now)
    browser.driver.refresh()
    browser.wait(lambda: browser.one("main"))
    assert browser.run(shade) == dark


def test_a_models_text_becomes_no_html(scripts: Browser) -> None:
    shown = scripts.run(
        """
        const { render, html } = await import('./static/html.js');
        const { Markdown } = await import('./static/markdown.js');
        const place = document.createElement('div');
        document.body.append(place);
        render(html`<${Markdown} text=${arguments_[0]} />`, place);
        const found = {
          html: place.innerHTML, text: place.textContent,
          links: [...place.querySelectorAll('a')].map((link) => link.getAttribute('href')),
          tags: [...new Set([...place.querySelectorAll('*')].map((each) => each.tagName.toLowerCase()))],
          code: place.querySelector('pre').textContent, hurt: window.hurt ?? null,
        };
        place.remove();
        return found;
        """,
        MARKDOWN,
    )
    assert shown["hurt"] is None
    assert not {"script", "img", "b"} & set(shown["tags"])
    assert {"strong", "table", "ul", "ol", "code", "pre"} <= set(shown["tags"])
    assert shown["links"] == ["https://example.org", "https://example.org/a.png"]
    assert "<script>window.hurt = 1</script>" in shown["text"]
    assert "a < b" in shown["text"]
    assert shown["code"] == 'if a < b: print("&amp;")'
    assert "& more" in shown["text"]


def test_a_program_without_marks_is_shown_as_code(scripts: Browser) -> None:
    shown = scripts.run(
        """
        const { render, html } = await import('./static/html.js');
        const { Markdown } = await import('./static/markdown.js');
        const shown = ['def one():\\n    return 1', 'Define:\\n    a line'].map((text) => {
          const place = document.createElement('div');
          render(html`<${Markdown} text=${text} />`, place);
          return place.querySelector('pre')?.textContent ?? null;
        });
        return shown;
        """
    )
    assert shown == ["def one():\n    return 1", None]


def test_events_and_numbers_are_read_right(scripts: Browser) -> None:
    script = """
    const [sse, format, live, conversations, cluster] = await Promise.all(
      ['sse', 'format', 'live', 'conversations', 'cluster'].map((name) => import(`./static/${name}.js`)));
    const tree = new live.DraftTreeView(1);
    const change = (kind, nodes) => tree.apply({ kind, nodes, texts: nodes.map(String), reason: '' }, 1);
    change('accepted', [[0, -1, 0]]);
    change('grown', [[1, 0, -1], [2, 0, -2], [3, 1, -1.5], [4, 2, -3]]);
    change('sent', [[0, -1, 0], [1, 0, -1], [3, 1, -1.5]]);
    change('accepted', [[1, 0, -1], [5, 1, -1]]);
    const states = [...tree.nodes.values()].map((node) => [node.number, node.state, node.prunedAt > 0]);
    return {
      events: sse.takeEvents('event: a\\ndata: 1\\n\\n: c\\n\\ndata: 2\\ndata: 3\\n\\ndata: 4'),
      bytes: [0, 999, 1500, 2.5e9].map(format.bytes), short: format.shortNames(['k-1-d0', 'k-1-v1']),
      seconds: [0.0000005, 0.0012, 0.25, 2, 75].map(format.seconds),
      states, layout: live.layoutTree(tree).nodes.map((each) => [each.node.number, each.column]),
      request: conversations.requestOf({
        settings: {...conversations.DEFAULTS, temperature: '0.5', system: 'S'},
        messages: [{role: 'user', content: 'Q'}]}, 'm'),
      cards: [1, 5, 5].map((count, at) => cluster.layoutCards(count, [360, 1280, 700][at]).columns),
      limits: [
        live.limitText([['d0', 0.001], ['v1', 0.01]]),
        live.limitText([['d0', 0], ['v1', 0.14], ['v2', 0.79]]),
        live.limitText([['d0', 0.2], ['v1', 0.3], ['v2', 0.3]])],
      memory: cluster.memoryShares(
        {memory_total: 100, memory_available: 40, weight_bytes: 30, cache_bytes: 10}),
    };
    """
    found = scripts.run(script)
    assert found["events"] == {
        "events": [
            {"event": "a", "data": "1"},
            {"event": "comment", "data": "c"},
            {"event": "message", "data": "2\n3"},
        ],
        "rest": "data: 4",
    }
    assert found["bytes"] == ["0 B", "999 B", "1.5 kB", "2.5 GB"]
    assert found["short"] == ["d0", "v1"]
    assert found["seconds"] == ["1 µs", "1.2 ms", "250 ms", "2.0 s", "1 min 15 s"]
    assert found["states"] == [
        [0, "accepted", False],
        [1, "accepted", False],
        [2, "grown", True],
        [3, "sent", True],
        [4, "grown", True],
        [5, "accepted", False],
    ]
    assert [0, 0] in found["layout"]
    assert [5, 2] in found["layout"]
    assert found["request"] == {
        "model": "m",
        "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Q"}],
        "temperature": 0.5,
    }
    assert found["cards"] == [1, 5, 2]
    assert found["limits"] == [
        "",
        "v2 limits the speed: it computes 79 % of the time, v1 14 %, d0 0 %.",
        "No device limits the speed: the busiest, v1, computes 30 % of the time. They wait for links, for "
        "each other or for requests.",
    ]
    assert found["memory"] == pytest.approx({"weights": 0.3, "cache": 0.1, "used": 0.2})


MERGES = {
    "both have asked": (
        ["q1", "a1"],
        ["q1", "a1", "q3", "a3"],
        ["q1", "a1", "q2", "a2"],
        "q1 a1 q2 a2 q3 a3",
    ),
    "the answer came later": (["q1", "q2"], ["q1", "q2", "q3", "a3"], ["q1", "q2", "a2"], "q1 q2 a2 q3 a3"),
    "made again here": (["q1", "a1"], ["q1", "a1"], ["q1", "b1"], "q1 b1"),
    "made again there": (["q1", "a1"], ["q1", "b1"], ["q1", "a1", "q2"], "q1 b1 q2"),
    "new": (None, None, ["q1"], "q1"),
}


@pytest.mark.parametrize("case", MERGES)
def test_what_two_tabs_have_changed_is_merged(scripts: Browser, case: str) -> None:
    before, theirs, mine, merged = MERGES[case]
    found = scripts.run(
        """
        const { merge } = await import('./static/conversations.js');
        const seen = new Map();
        const message = (id) => seen.get(id) ?? (seen.set(id, { id, content: id }), seen.get(id));
        const made = (ids) => ids && { id: 'c', title: '', settings: {}, messages: ids.map(message) };
        const [before, theirs, mine] = arguments_.slice(0, 3).map(made);
        return merge(theirs, before, mine).messages.map((each) => each.id).join(' ');
        """,
        before,
        theirs,
        mine,
    )
    assert found == merged
