"""The runner: the same results every time and by either clock, resuming, the report, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flowedge.cli.main import run as flowedge
from flowedge.core.errors import BadRequestError
from flowedge.core.messages import StageReport
from flowedge.core.request import DecodeCounters, Finished, Request, Tokens
from flowedge.core.sampling import SamplingParams
from flowedge.planning.virtual_pipeline import TimedOutput
from flowedge.strategies.registry import STRATEGIES
from flowedge_testbed.bench.options import BenchOptions
from flowedge_testbed.bench.progress import BenchProgress
from flowedge_testbed.record import RunRecord, record_of
from flowedge_testbed.results import quantile, rounded
from flowedge_testbed.run_backends import ReplayBackend
from flowedge_testbed.runs import Task
from flowedge_testbed.scenario import SHIPPED, find_scenario, read_scenario, shipped_scenarios
from flowedge_testbed.trace import Trace
from tests.support.breadth import dealt
from tests.testbed.conftest import SMALL, Bench, ScenarioFile, results

pytestmark = pytest.mark.slow
SHORT = [(0, 0, 8), (1, 1, 8)]  # temperature, first strategy, tokens


@pytest.mark.parametrize("clock", ["replay", pytest.param("virtual", marks=pytest.mark.proof)])
def test_two_runs_write_the_same_results(
    scenario_file: ScenarioFile, bench: Bench, tmp_path: Path, clock: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "flowedge_testbed.bench.benchmark.git_revision", lambda: None
    )  # the repository may change under a test
    scenario = scenario_file(repeats=2, temperatures=[1], noise=["shared"])
    for name in ("a", "b"):
        bench(scenario, tmp_path / name, clock=clock)
    first, second = [(tmp_path / name / "results.json").read_bytes() for name in ("a", "b")]
    assert first == second


@pytest.mark.parametrize(
    ("temperature", "first", "tokens"),
    dealt(((t, first, tokens) for t in (0, 1) for first in (0, 1) for tokens in (8, 20)), SHORT.__contains__),
)
def test_replay_gives_the_figures_of_the_virtual_clock(
    scenario_file: ScenarioFile, bench: Bench, tmp_path: Path, temperature: int, first: int, tokens: int
) -> None:
    """Every second strategy, from the first or the second on."""
    scenario = scenario_file(
        strategies=list(STRATEGIES)[first::2],
        temperatures=[temperature],
        noise=["shared"],
        max_new_tokens=tokens,
    )
    for clock in ("replay", "virtual"):
        bench(scenario, tmp_path / clock, clock=clock)
    assert results(tmp_path / "replay")["runs"] == results(tmp_path / "virtual")["runs"]
    assert results(tmp_path / "replay")["outputs_differ"] == []


def test_results_have_what_was_asked_for(scenario_file: ScenarioFile, bench: Bench, tmp_path: Path) -> None:
    said = bench(scenario_file(samples=2), tmp_path / "out")
    found = results(tmp_path / "out")
    assert said.begun == [(6, 0)]
    assert said.done == 6
    assert [run["method"] for run in found["runs"]] == ["autoregressive", "naive_pp", "flowspec"]
    alone, naive, flowspec = found["runs"]
    for run in found["runs"]:
        assert run["profile"] == "llama2-7b-fp16"
        assert (run["dataset"], run["temperature"], run["requests"]) == ("own", 0, 2)
        assert run["tokens_per_s"] > 0
        assert run["itl_p50_ms"] <= run["itl_p99_ms"]
        assert run["ttft_ms"] < run["latency_ms"]
        assert run["tokens"] == naive["tokens"]
        assert set(run["use"]) == {"d0", "v1", "v2", "v3", "v4"}
        for use in run["use"].values():
            assert sum(use.values()) == pytest.approx(1)
        assert run["energy_j_per_token"] > 0
        assert run["link_bytes"]["v1"] > run["link_bytes"]["d0"] > 0
        # While a segment crosses, nothing comes out but what is in flight. C is the mean over few trees here,
        # the output's first token starts an empty pipeline and its last segment may hold more than fits: at
        # 12 tokens the shares may be off by some tenths either way, over 128 by some hundredths.
        assert 0 < run["share_of_bound_sent"] < 1.2
        assert run["bound_tokens_per_s"] <= run["bound_sent_tokens_per_s"]
        assert run["rows_alive_in_flight"] <= run["rows_in_flight"]
    assert (alone["rows_in_flight"], alone["rows_alive_in_flight"]) == (pytest.approx(1), pytest.approx(1))
    assert alone["share_of_bound"] == pytest.approx(1, abs=0.01), "one row crosses an empty pipeline"
    assert alone["acceptance_length"] == 1
    assert alone["rounds"] == 0
    assert naive["speedup_vs_naive_pp"] == 1
    assert flowspec["speedup_vs_autoregressive"] == pytest.approx(
        flowspec["tokens_per_s"] / alone["tokens_per_s"]
    )
    assert flowspec["acceptance_length"] >= 1
    assert flowspec["rows_for_nothing"] > 0
    assert alone["rows_for_nothing"] == 0
    for run in found["runs"]:
        assert run["looping_requests"] == 0, "no run of 16 tokens comes three times in 12"
        assert run["tokens_per_s_without_looping"] == run["tokens_per_s"]
        assert run["speedup_vs_naive_pp_without_looping"] == run["speedup_vs_naive_pp"]
    facts = json.loads((tmp_path / "out" / "run.json").read_text())
    assert facts["simulated_tokens"] == sum(run["tokens"] for run in found["runs"])


def test_looping_answers_are_counted_and_left_out(
    scenario_file: ScenarioFile, bench: Bench, tmp_path: Path
) -> None:
    scenario, out = scenario_file(samples=2), tmp_path / "out"
    bench(scenario, out)
    before = {run["method"]: run for run in results(out)["runs"]}
    # The stored records of the shorter prompt are changed to say that its answer loops.
    records = {file: json.loads(file.read_text()) for file in (out / "runs").glob("*.json")}
    shortest = min(record["prompt_tokens"] for record in records.values())
    varied = {record["decode_s"] for record in records.values() if record["prompt_tokens"] > shortest}
    for file, record in records.items():
        file.write_text(json.dumps({**record, "loops": record["prompt_tokens"] == shortest}))
    assert bench(scenario, out).begun == [(6, 6)], "nothing is run again"
    alone, naive, flowspec = results(out)["runs"]
    for run in (alone, naive, flowspec):
        assert (run["requests"], run["looping_requests"]) == (2, 1)
        assert run["tokens_per_s"] == before[run["method"]]["tokens_per_s"]
        assert any(run["tokens_per_s_without_looping"] == pytest.approx(11 / time) for time in varied)
    for other, baseline in ((alone, "autoregressive"), (naive, "naive_pp")):
        assert flowspec[f"speedup_vs_{baseline}_without_looping"] == pytest.approx(
            flowspec["tokens_per_s_without_looping"] / other["tokens_per_s_without_looping"]
        )
    report = (out / "report.md").read_text()
    assert "mean ξ without looping" in report
    assert "| 1 of 2 |" in report


@pytest.mark.parametrize(("tokens", "loops"), [([*range(16)] * 3, True), ([*range(48)], False)])
def test_a_record_says_whether_its_answer_loops(tokens: list[int], loops: bool) -> None:
    request = Request("s", (1, 2), SamplingParams(), len(tokens), frozenset(), "autoregressive")
    reports = (StageReport("d0"), StageReport("v1"))
    outputs = [
        TimedOutput(1.0, Tokens("s", tuple(tokens), "")),
        TimedOutput(2.0, Finished("s", "length", "", DecodeCounters(), reports)),
    ]
    record = record_of(request, outputs, Trace(), (None, None))
    assert (record.loops, record.new_tokens) == (loops, len(tokens))
    assert RunRecord.from_dict(json.loads(json.dumps(record.to_dict()))) == record


def test_a_shipped_scenario_is_found_by_its_name() -> None:
    assert find_scenario("flowspec-table1") == SHIPPED / "flowspec-table1.yaml"
    for file in shipped_scenarios().values():
        assert read_scenario(find_scenario(file.stem)).name in (
            file.stem,
            file.stem.removesuffix("-template"),
        )
    assert find_scenario("mine.yaml") == Path("mine.yaml")
    with pytest.raises(BadRequestError, match=r"no scenario 'tabel1'.*ablation, .*flowspec-table1, "):
        find_scenario("tabel1")


def test_a_shipped_scenario_is_run_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run: list[BenchOptions] = []

    def run_bench(options: BenchOptions, progress: BenchProgress) -> Path:
        run.append(options)
        return options.out / "report.md"

    monkeypatch.setattr("flowedge_testbed.bench.benchmark.run_bench", run_bench)
    own = tmp_path / "own.yaml"
    own.write_text("{}")
    for scenario, *more in (["bandwidth"], [str(own)], ["bandwidth", "--data", "prompts"]):
        assert flowedge(["bench", scenario, "--out", str(tmp_path), *more]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / "report.md")] * 3
    named, path, data = run
    assert (named.scenario, named.data_directory) == (SHIPPED / "bandwidth.yaml", Path())
    assert (path.scenario, path.data_directory) == (own, tmp_path), "datasets lie beside the file"
    assert (data.scenario, data.data_directory) == (named.scenario, Path("prompts"))
    assert flowedge(["bench", "bandwith", "--out", str(tmp_path)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "ablation, acceptance, arrivals-1b, arrivals-7b, auto-ablation, bandwidth" in said


def test_both_kinds_of_drafting_are_run_where_they_differ(
    scenario_file: ScenarioFile, bench: Bench, tmp_path: Path
) -> None:
    scenario = scenario_file(
        strategies=["autoregressive", "naive_pp"], temperatures=[0, 1], max_new_tokens=16
    )
    assert bench(scenario, tmp_path / "both").begun == [(5, 0)]
    runs = {(r["temperature"], r["method"], r["noise"]): r for r in results(tmp_path / "both")["runs"]}
    assert list(runs) == [
        (0, "autoregressive", "plain"),
        (0, "naive_pp", "plain"),
        (1, "autoregressive", "plain"),
        (1, "naive_pp", "plain"),
        (1, "naive_pp", "shared"),
    ]
    assert results(tmp_path / "both")["outputs_differ"] == []
    plain, shared = runs[1, "naive_pp", "plain"], runs[1, "naive_pp", "shared"]
    assert shared["acceptance_length"] > plain["acceptance_length"]
    assert shared["speedup_vs_naive_pp"] == pytest.approx(shared["tokens_per_s"] / plain["tokens_per_s"])
    alone = runs[1, "autoregressive", "plain"]["tokens_per_s"]
    assert shared["speedup_vs_autoregressive"] == pytest.approx(shared["tokens_per_s"] / alone)
    bench(scenario, tmp_path / "shared", noise=("shared",))
    (only,) = [run for run in results(tmp_path / "shared")["runs"] if run["noise"] == "shared"]
    assert only["tokens_per_s"] == shared["tokens_per_s"]
    assert only["speedup_vs_naive_pp"] is None, "nothing to compare with was run"


@pytest.mark.proof
def test_a_method_is_run_less_each_of_its_parts(
    scenario_file: ScenarioFile, bench: Bench, tmp_path: Path
) -> None:
    variants = {
        "small segments": {"strategy": "auto", "options": {"segment_rows": 1}},
        "without shared noise": {"strategy": "auto", "noise": ["plain"]},
    }
    scenario = scenario_file(
        strategies=["auto", *variants],
        variants=variants,
        strategy_options={"auto": {"candidates": 8}},
        temperatures=[0, 1],
        noise=["shared"],
        max_new_tokens=8,
        report={"tables": ["parts"], "plots": ["gantt"]},
    )
    assert bench(scenario, tmp_path / "out").begun == [(5, 0)], "at temperature 0 two of them are the same"
    found = {(run["temperature"], run["method"]): run for run in results(tmp_path / "out")["runs"]}
    assert [found[1, name]["noise"] for name in ["auto", *variants]] == ["shared", "shared", "plain"]
    assert {"candidates": 8, "segment_rows": 1}.items() <= found[1, "small segments"]["options"].items()
    whole, small = found[0, "auto"], found[0, "small segments"]
    assert small["draft_rows_sent"] < whole["draft_rows_sent"]
    assert found[0, "without shared noise"]["tokens_per_s"] == whole["tokens_per_s"]
    report = (tmp_path / "out" / "report.md").read_text()
    beside = 100 * (small["tokens_per_s"] / whole["tokens_per_s"] - 1)
    assert f"| {beside:+.1f} % |" in report
    assert {"gantt-auto.png", "gantt-small-segments.png"} == {
        f.name for f in (tmp_path / "out").glob("*.png")
    }


def test_a_tuned_method_has_its_best_setting_in_the_results(
    scenario_file: ScenarioFile, bench: Bench, tmp_path: Path
) -> None:
    tried = {"narrow": {"width": 1}, "wide": {"width": 8}, "in pairs": {"width": 8, "step_levels": 2}}
    fixed = {name: {"strategy": "specpipe", "options": options} for name, options in tried.items()}
    tuned = {
        "strategy": "specpipe",
        "options": {"width": 1},
        "tuned": {"width": [1, 8], "step_levels": [1, 2]},
    }
    scenario = scenario_file(
        strategies=["autoregressive", "tuned", *fixed], variants={"tuned": tuned, **fixed}, samples=2
    )
    assert bench(scenario, tmp_path / "out").begun == [(2 * 7, 0)], (
        "of the fixed settings one was tried under the same options"
    )
    found = {run["method"]: run for run in results(tmp_path / "out")["runs"]}
    assert list(found) == ["autoregressive", "tuned", *fixed]
    assert "tuned" not in found["wide"]
    best = max(fixed, key=lambda name: found[name]["tokens_per_s"])
    assert best != "narrow", "there is something to gain"
    assert found["tuned"]["tokens_per_s"] == found[best]["tokens_per_s"]
    assert found["tuned"]["options"].items() >= tried[best].items()
    assert found["tuned"]["tuned"] == {
        "setting": {"step_levels": 1, **tried[best]},
        "settings": 5,
        "gain": pytest.approx(found[best]["tokens_per_s"] / found["narrow"]["tokens_per_s"]),
    }


@pytest.mark.proof
def test_one_prompt_has_its_answer_in_chunks(
    scenario_file: ScenarioFile, bench: Bench, tmp_path: Path
) -> None:
    scenario = scenario_file(strategies=["autoregressive", "flowspec"], max_new_tokens=40)
    bench(scenario, tmp_path / "one")
    for run in results(tmp_path / "one")["runs"]:
        chunks, whole = run["by_chunk"], run["by_prompt"]
        assert chunks["tokens"] == [16, 16, 7]
        assert sum(chunks["seconds"]) == pytest.approx(whole["seconds"][0])
    bench(scenario, tmp_path / "two", samples=2)
    assert all("by_chunk" not in run for run in results(tmp_path / "two")["runs"])


def test_an_interrupted_bench_goes_on(
    scenario_file: ScenarioFile, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario, measure = scenario_file(samples=2), ReplayBackend.measure

    def interrupted(clock: ReplayBackend, task: Task) -> Any:
        for count, found in enumerate(measure(clock, task)):
            if count == 2:
                raise KeyboardInterrupt
            yield found

    monkeypatch.setattr(ReplayBackend, "measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bench(scenario, tmp_path / "out")
    assert not (tmp_path / "out" / "results.json").exists()
    assert len(list((tmp_path / "out" / "runs").glob("*.json"))) == 2
    monkeypatch.undo()
    said = bench(scenario, tmp_path / "out")
    assert said.begun == [(6, 2)]
    bench(scenario, tmp_path / "whole")
    whole, resumed = [(tmp_path / name / "results.json").read_bytes() for name in ("whole", "out")]
    assert whole == resumed
    damaged = next((tmp_path / "out" / "runs").glob("*.json"))
    damaged.write_text("{")
    assert bench(scenario, tmp_path / "out").begun == [(6, 5)]


def test_models_of_the_same_size_share_their_runs(
    scenario_file: ScenarioFile, bench: Bench, tmp_path: Path
) -> None:
    emulated = [{"model": "llama2-7b"}, {"model": "vicuna-7b"}]
    said = bench(scenario_file(emulated=emulated, strategies=["naive_pp"]), tmp_path / "out")
    assert said.begun == [(1, 0)]
    llama, vicuna = results(tmp_path / "out")["runs"]
    assert llama["tokens_per_s"] == vicuna["tokens_per_s"]
    assert (llama["model"], vicuna["model"]) == ("LLaMA2-Chat 7B", "Vicuna-v1.3 7B")


def test_the_report_has_tables_and_plots(scenario_file: ScenarioFile, bench: Bench, tmp_path: Path) -> None:
    out = tmp_path / "out"
    asked = {"tables": ["table1", "table2", "table3"], "plots": ["bars", "gantt"]}
    scenario = scenario_file(seeds=[0, 1], temperatures=[0, 1], max_new_tokens=6, report=asked)
    said = bench(scenario, out)
    report = (out / "report.md").read_text()
    assert "| llama2-7b-fp16 | flowspec |" in report
    assert "| llama2-7b-fp16 | flowspec, shared noise |" in report
    assert "autoregressive, shared noise" not in report
    assert "*in the paper*" in report
    assert "*6.14*" in report  # naive_pp's mean over datasets in the paper's table 1
    assert "| run 1 ξ | run 1 s | run 2 ξ | run 2 s | mean ξ | mean s | SD ξ | SD s |" in report
    assert "| mean ξ | mean SR | mean ×AR | mean ξ without looping |" in report
    assert "| J/token |" in report
    assert "| rows alive | bound (alive) | share (alive) |" in report
    for name in ("bars.png", "gantt-naive_pp.png", "gantt-flowspec.png"):
        assert f"]({name})" in report
        assert (out / name).read_bytes().startswith(b"\x89PNG")
    summary = said.lines[said.lines.index("writing the report and plots") + 1 :]
    assert [line.split(": ")[0] for line in summary] == ["Run", "On", "Fastest", "Distrust", "Command"]
    title, *told = (line for line in report.splitlines() if line)
    assert title == "# A small scenario"
    assert [line.replace("**", "").replace("`", "") for line in told[:5]] == [f"- {line}" for line in summary]
    assert told[5].startswith("![tokens/s of each method"), "the pictures stand before the tables"
    assert "emulated: LLaMA2-Chat 7B fp16 on 5 x Jetson Orin Nano 8 GB" in summary[1]
    assert "tokens by the bundled 8.92 M model and its EAGLE head" in summary[1]
    assert "only 1 prompt of a dataset" in summary[3]
    assert summary[4] == f"Command: flowedge bench {scenario} --out {out}"


def test_sweeps_are_drawn(scenario_file: ScenarioFile, bench: Bench, tmp_path: Path) -> None:
    out = tmp_path / "out"
    changes: dict[str, Any] = {"emulated": [{"model": "llama2-7b", "quant": "nf4"}], "max_new_tokens": 6}
    report: dict[str, Any] = {"tables": ["sweep"], "plots": ["sweep"]}
    bench(scenario_file(sweep={"stages": [2, 16]}, report=report, **changes), out)
    assert len(results(out)["runs"]) == 2 * 3
    assert (out / "sweep.png").read_bytes().startswith(b"\x89PNG")
    text = (out / "report.md").read_text()
    assert "| Model | Method | T | 2 | 16 |" in text
    assert "vs autoregressive by verification stages" in text
    report["columns"] = ["hit_rate"]
    report["tables"] += ["columns", "accepted", "memory", "links"]
    report["plots"] += ["accepted"]
    depth = {"option.depth": [3, 4], "mbps": [125]}
    bench(scenario_file(sweep=depth, report=report, strategies=["flowspec"], **changes), out)
    assert {"sweep-hit_rate-flowspec.png", "accepted.png"} <= {file.name for file in out.glob("*.png")}
    text = (out / "report.md").read_text()
    assert "hit rate of flowspec, llama2-7b-nf4, temperature 0" in text
    assert "| depth 3 |" in text
    assert "| Model | Method | T | d0 | v1 | v2 | v3 | v4 | express | kB a token |" in text


def test_answers_of_one_token_have_no_speed(
    scenario_file: ScenarioFile, bench: Bench, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    tables = ["table1", "table2", "table3", "parts"]
    said = bench(scenario_file(max_new_tokens=1, report={**SMALL["report"], "tables": tables}), out)
    for run in results(out)["runs"]:
        assert (run["tokens"], run["tokens_per_s"], run["itl_p50_ms"], run["speedup_vs_naive_pp"]) == (
            1,
            *[None] * 3,
        )
        assert run["ttft_ms"] > 0
    assert "no speed was measured" in next(line for line in said.lines if line.startswith("Fastest"))
    assert "0.00" not in (out / "report.md").read_text().split("## Devices")[0]


def test_missing_datasets_are_said(scenario_file: ScenarioFile, bench: Bench, tmp_path: Path) -> None:
    scenario = scenario_file(datasets={"own": "own.jsonl", "far": "far.jsonl"}, strategies=["autoregressive"])
    said = bench(scenario, tmp_path / "some")
    assert any("left out: far" in line for line in said.lines)
    (tmp_path / "empty").mkdir()
    said = bench(scenario, tmp_path / "none", data=tmp_path / "empty")
    assert any("the project's own prompts" in line for line in said.lines)
    assert [run["dataset"] for run in results(tmp_path / "none")["runs"]] == ["bundled"]
    assert "the project's own prompts" in (tmp_path / "none" / "report.md").read_text()


def test_clocks_that_are_not_there_are_refused(
    scenario_file: ScenarioFile, bench: Bench, tmp_path: Path
) -> None:
    with pytest.raises(BadRequestError, match="use --clock replay"):
        bench(scenario_file(sweep={"stages": [9]}), tmp_path / "out", clock="virtual")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere.yaml"], "nowhere.yaml: cannot be read"),
        (["{file}", "--temperatures", "warm"], "--temperatures warm"),
        (["{file}", "--temperatures", "-1"], "the command line: key temperatures.0"),
        (["{file}", "--noise", "loud"], "--noise"),
        (["{file}", "--strategies", "magic"], "unknown strategy 'magic'"),
        (["{file}", "--datasets", "far"], "no dataset far in the scenario; it has own"),
        (["{file}", "--clock", "sundial"], "key clock"),
        (["{file}", "--samples", "0"], "samples"),
        (["{file}", "--drafter", "nowhere"], "nowhere"),
    ],
)
def test_the_command_refuses_with_one_line(
    scenario_file: ScenarioFile,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    said: str,
) -> None:
    file = str(scenario_file())
    given = [argument.replace("{file}", file) for argument in arguments]
    assert flowedge(["bench", *given, "--out", str(tmp_path / "out")]) == 2
    complaint = [line for line in capsys.readouterr().err.splitlines() if line.startswith("flowedge:")]
    assert len(complaint) == 1
    assert said in complaint[0]


def test_quantiles_and_rounding() -> None:
    assert quantile([], 0.5) == 0
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 2
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.99) == 4
    assert rounded({"a": [0.12345678901234]}) == {"a": [0.123456789]}
