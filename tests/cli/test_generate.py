"""The command line over real processes."""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path
from typing import Any

import psutil
import pytest

import flowedge
from flowedge.cli import check
from flowedge.cli.main import run
from flowedge.client import Client
from flowedge.client.assembly import PipelineSpec, assemble
from tests.support.processes import AgentProcess, FlowEdgeProcess

MARK = "FLOWEDGE_TEST"  # a variable in the environment of a command and all that the command starts
PROMPT = "Tell me a story about a lamp."


@pytest.fixture(autouse=True)
def tolerance_of_few_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tolerance is measured by forwards of one row each; in float32 the outputs need none."""
    monkeypatch.setattr(check, "_MEASURED_TOKENS", 16)


def test_text_goes_to_stdout_and_the_rest_to_stderr(
    cluster4: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["generate", "--peers", cluster4, "--prompt", PROMPT, "--max-new-tokens", "24"]) == 0
    captured = capsys.readouterr()
    with Client(cluster4) as client:
        expected = client.generate(PROMPT, max_new_tokens=24).result().text
    assert captured.out == expected + "\n"
    assert "24 tokens" in captured.err
    assert "-v4" in captured.err


def test_check_and_json(cluster4: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.json"
    lines = [{"prompt": PROMPT}, {"turns": ["Hello!", "Ignored."]}, {"prompt": "Not reached."}]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    options = ["--temperature", "0.7", "--seed", "5", "--max-new-tokens", "24", "--limit", "2"]
    files = ["--prompts", str(prompts), "--json", str(out), "--check"]
    assert run(["generate", "--peers", cluster4, *options, *files]) == 0
    captured = capsys.readouterr()
    assert "check: the output is identical to the plain model's" in captured.err
    assert "tolerance" in captured.err
    assert "checking 24 tokens with the plain model" in captured.err, "a check is not silent"
    assert "check:" not in captured.out
    content = json.loads(out.read_text())
    assert content["settings"]["seed"] == 5
    assert content["settings"]["strategy"] == "auto"
    assert content["versions"]["flowedge"] == "0.1.0"
    assert [entry["prompt"] for entry in content["prompts"]] == [PROMPT, "Hello!"]
    for entry in content["prompts"]:
        check_entry(entry)


def check_entry(entry: dict[str, Any]) -> None:
    """Every figure that is promised is there and fits the others."""
    tokens = len(entry["token_ids"])
    assert 1 <= tokens <= 24
    assert entry["text"]
    assert entry["seed"] == 5
    assert entry["ttft_s"] > 0
    assert len(entry["itl_s"]) == tokens - 1
    assert entry["tokens_per_s"] > 0
    assert entry["rounds"] == len(entry["accepted_per_round"]) > 0
    assert sum(entry["accepted_per_round"]) <= tokens
    assert entry["accepted_per_segment"]
    assert entry["prunes"] >= 0
    assert [stage["device"][-2:] for stage in entry["stages"]] == ["v1", "v2", "v3", "v4"]
    assert all(stage["rows_computed"] > 0 and stage["rows_trimmed"] >= 0 for stage in entry["stages"])
    assert {link[-2:] for link in entry["link_bytes"]} == {"d0", "v1", "v2", "v3", "v4", "ss"}
    assert entry["check"]["passed"] is True


def test_a_difference_that_is_no_tie_exits_3(
    cluster4: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    judge = check.Checker.judge

    def judge_another(self: check.Checker, prompt_ids: Any, token_ids: Any, *rest: Any) -> check.Verdict:
        return judge(self, prompt_ids, [*token_ids[:3], (token_ids[3] + 1) % 4096, *token_ids[4:]], *rest)

    monkeypatch.setattr(check.Checker, "judge", judge_another)
    options = ["--prompt", PROMPT, "--max-new-tokens", "8", "--check"]
    assert run(["generate", "--peers", cluster4, *options]) == 3
    assert "DIFFERS from the plain model's: 1 of 1 outputs" in capsys.readouterr().err


def test_a_split_is_not_that_of_the_pipeline(cluster4: str, capsys: pytest.CaptureFixture[str]) -> None:
    ask = ["generate", "--peers", cluster4, "--prompt", PROMPT, "--max-new-tokens", "2", "--split"]
    assert run([*ask, "2,2,2,2"]) == 0
    assert run([*ask, "3,2,2,1"]) == 2
    assert "has the split 2,2,2,2" in capsys.readouterr().err


def test_a_stage_alone_is_no_draft_node(cluster4: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Client(cluster4) as client:
        stage = client.describe().stage_addresses[0]
    assert run(["generate", "--peers", stage, "--prompt", PROMPT]) == 2
    assert "not a draft node" in capsys.readouterr().err


def test_devices_tell_their_roles(cluster4: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Client(cluster4) as client:
        addresses = [cluster4, *client.describe().stage_addresses]
    assert run(["devices", "--peers", ",".join(addresses), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["role"] for row in rows] == ["draft node", *["stage"] * 4]
    assert [row["layers"] for row in rows[1:]] == [[0, 2], [2, 4], [4, 6], [6, 8]]
    assert run(["devices", "--peers", ",".join(addresses)]) == 0
    table = capsys.readouterr().out
    assert "bundled [2, 4)" in table


def test_devices_are_found(cluster4: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["devices", "--timeout", "3", "--json"]) == 0
    assert cluster4 in [row["address"] for row in json.loads(capsys.readouterr().out)]


@pytest.mark.slow
def test_a_run_with_stages_of_its_own_leaves_nothing_behind(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    options = ["--strategy", "naive_pp", "--split", "5,3", "--max-new-tokens", "16", "--check"]
    mark = uuid.uuid4().hex
    ask = [
        "generate",
        "--model",
        "bundled",
        "--stages",
        "2",
        "--prompt",
        PROMPT,
        *options,
        "--json",
        str(out),
    ]
    command = FlowEdgeProcess(*ask, environment={MARK: mark})
    command.start()
    try:
        assert command.wait(280) == 0, command.lines
        assert command.line("identical to the plain model's")
        assert command.line("layers 0 to 4")
    finally:
        command.kill()
        command.remove()
    assert len(json.loads(out.read_text())["prompts"][0]["stages"]) == 2
    assert not processes_with(mark)


@pytest.mark.slow
def test_lookup_drafts_without_weights(
    idle_agents: list[AgentProcess], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    options = ["--drafter", "ngram", "--max-new-tokens", "32", "--check", "--json", str(out)]
    prompt = "Repeat after me: one two three four, one two three four, one two three four."
    peers = ",".join(agent.address for agent in idle_agents[:3])
    assert run(["generate", "--model", "bundled", "--peers", peers, "--prompt", prompt, *options]) == 0
    assert "identical to the plain model's" in capsys.readouterr().err
    entry = json.loads(out.read_text())["prompts"][0]
    assert len(entry["token_ids"]) > len(entry["accepted_per_segment"]), "some of it was foreseen"


@pytest.mark.slow
def test_a_model_alone_is_answered_with_lookup_and_without_any_drafter_by_plain_decoding(
    idle_agents: list[AgentProcess], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model, out = tmp_path / "model", tmp_path / "out.json"
    shutil.copytree(Path(flowedge.__file__).parent / "bundled" / "model", model)
    ask = ["generate", "--model", str(model), "--prompt", PROMPT, "--max-new-tokens", "8", "--check"]
    for options, drafter, strategy in (
        ([], "ngram", "auto"),
        (["--drafter", "none"], "none", "autoregressive"),
    ):
        peers = ",".join(agent.address for agent in idle_agents[:2])
        assert run([*ask, "--peers", peers, *options, "--json", str(out)]) == 0
        captured = capsys.readouterr()
        assert "identical to the plain model's" in captured.err
        assert captured.err.count("drafting by lookup in the text (ngram)") == (drafter == "ngram")
        settings = json.loads(out.read_text())["settings"]
        assert (settings["drafter"], settings["strategy"]) == (drafter, strategy)
        made_already = ["generate", "--peers", peers.partition(",")[0], "--prompt", PROMPT]
        assert run([*made_already, "--max-new-tokens", "4"]) == 0, "without a drafter it decodes plainly"
        assert run([*made_already, "--max-new-tokens", "4", "--check"]) == 0, "with the model that it has"
        assert run([*made_already, "--max-new-tokens", "4", "--model", "bundled", "--check"]) == 2
        assert f"give --model {model}" in capsys.readouterr().err
        assert run(["release", peers]) == 0


@pytest.mark.slow
def test_joined_drafters_reach_the_draft_node(
    idle_agents: list[AgentProcess], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    peers = ",".join(agent.address for agent in idle_agents[:2])
    options = ["--drafter", "bundled", "--drafter", "recall", "--drafter", "ngram", "--max-new-tokens", "16"]
    place = ["--model", "bundled", "--peers", peers]
    ask = ["generate", *place, "--prompt", PROMPT, *options, "--check", "--json", str(out)]
    assert run(ask) == 0
    assert "identical to the plain model's" in capsys.readouterr().err
    with Client(idle_agents[0].address) as client:
        assert client.describe().drafter == "bundled+recall+ngram"
    assert json.loads(out.read_text())["settings"]["drafter"] == "bundled+recall+ngram"
    assert run(ask) == 0
    assert "loading" not in capsys.readouterr().err.replace("loading the whole model", "")


@pytest.mark.slow
def test_a_pipeline_is_freed_before_it_is_made_anew(
    idle_agents: list[AgentProcess], capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (agent.address for agent in idle_agents[:2])
    assemble(PipelineSpec(draft_node=first, stages=(second,)), lambda *_: None)
    place = ["--model", "bundled", "--peers", f"{first},{second}"]
    ask = ["generate", *place, "--prompt", PROMPT, "--max-new-tokens", "4"]
    assert run(ask) == 1, "another drafter is another pipeline, and this one is alive"
    assert "release" in capsys.readouterr().err
    assert run(["release", f"{first},{second}"]) == 0
    assert run(ask) == 0
    assert run([*ask, "--strategy", "naive_pp"]) == 0
    assert "loading" not in capsys.readouterr().err.split("4 tokens")[-1]


def processes_with(mark: str) -> list[int]:
    """Return the processes that were started with this value of MARK."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark:
                found.append(process.pid)
        except psutil.Error:  # it has ended, or is not ours to ask
            continue
    return found
