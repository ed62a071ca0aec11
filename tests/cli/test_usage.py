"""A command that cannot be done ends with one line on stderr and the right exit code, and starts nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from flowedge.cli.main import run
from flowedge.core.request import NOISES
from flowedge_testbed.bench_command import DraftNoise
from tests.support.commands import run_command
from tests.support.processes import CLI

HI = ["generate", "--model", "bundled", "--prompt", "Hi", "--stages", "2"]


def joined(*drafters: str) -> list[str]:
    return [word for name in drafters for word in ("--drafter", name)]


@pytest.fixture(autouse=True)
def nothing_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr("flowedge.agent.local_cluster.LocalCluster.start", fail)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["generate"], "--prompt"),
        (["generate", "--prompt", " "], "empty"),
        (["generate", "--prompt", "a", "--prompt-file", "b"], "2 sources of prompts are given; give one of"),
        (["generate", "--prompt-file", "missing.txt"], "missing.txt: cannot be read: No such file"),
        (
            ["generate", "--prompt", "a\udcffb"],
            "--prompt: the prompt is not valid UTF-8: its character 2 is byte 0xff",
        ),
        ([*HI, "--system", "\udce9"], "--system is not valid UTF-8: its character 1 is byte 0xe9"),
        ([*HI, "--system", " "], "the system message is empty"),
        ([*HI, "--stop", ""], "stop string 1 is empty"),
        ([*HI, *["--stop", "x"] * 17], "at most 16 stop strings"),
        ([*HI, "--strategy", "magic"], "known are autoregressive"),
        ([*HI, "--quant", "int3"], "nf4"),
        ([*HI, "--temperature", "-1"], "temperature"),
        ([*HI, "--temperature", "nan"], "temperature"),
        ([*HI, "--temperature", "warm"], "--temperature"),
        ([*HI, "--top-p", "0"], "top_p"),
        ([*HI, "--top-p", "1.5"], "top_p"),
        ([*HI, "--top-k", "-1"], "top_k"),
        ([*HI, "--seed", "-1"], "seed"),
        ([*HI, "--noise", "loud"], "plain"),
        ([*HI, "--max-new-tokens", "0"], "max_new_tokens"),
        ([*HI, "--peers", "127.0.0.1:1,127.0.0.1:2"], "either --stages or --peers"),
        ([*HI, "--drafter", "none", "--strategy", "flowspec"], "--strategy flowspec needs a drafter"),
        ([*HI, "--top-k", "99999999999"], "top_k"),
        ([*HI, "--model", "bundeld"], "did you mean bundled?"),
        ([*HI, "--model", "./missing"], "./missing: no such directory"),
        ([*HI, "--tokenizer", "/missing/tokenizer"], "/missing/tokenizer: no such directory"),
        ([*HI, "--drafter", "ngrm"], "did you mean ngram?"),
        ([*HI, *joined("ngram", "recall")], "recall corrects an EAGLE head"),
        ([*HI, "--strategy", "pipespec", "--middle", "/missing/small"], "--middle /missing/small"),
        (
            ["generate", "--model", "bundled", "--prompt", "Hi", "--peers", "a:1,b:1", "--split", "5,3"],
            "for 2 stages, but there are 1",
        ),
        (
            ["generate", "--model", "bundled", "--prompt", "Hi", "--peers", "a:1,b:1", "--split", "7"],
            "adds up to 7 layers",
        ),
        ([*HI, *joined("bundled", "ngram", "ngram")], "not joined with itself"),
        ([*HI, *joined("none", "ngram")], "none cannot be joined"),
        ([*HI, "--json", "/missing/folder/out.json"], "/missing/folder/out.json: its folder does not exist"),
        (["generate", "--prompt", "Hi", "--stages", "0"], "stages"),
        (["generate", "--prompt", "Hi", "--stages", "100"], "local stages"),
        (["generate", "--prompt", "Hi", "--peers", "nowhere"], "host:port"),
        (["generate", "--prompt", "Hi", "--limit", "0"], "limit"),
        (["generate", "--prompt", "Hi", "--limit", "1"], "--limit counts the prompts of --prompts"),
        ([*HI, "--timeout", "inf"], "--timeout is inf; it must be finite"),
        (["devices", "--timeout", "inf"], "must be finite"),
        ([*HI, "--model", "~no-such-user/model"], "the home directory of ~no-such-user is not known"),
        (["devices", "--timeout", "0"], "above 0"),
        (["devices", "--peers", "a,b"], "host:port"),
        (["agent", "--port", "70000"], "--port"),
        (["agent", "--host", "board.example"], "IP address"),
        (["release", ","], "names no device"),
    ],
)
def test_wrong_usage(arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert complaint in captured.err
    assert captured.err.startswith("flowedge: ")
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        ('{"text": "a"}', 'neither "prompt" nor "turns"'),
        ('{"turns": []}', 'neither "prompt" nor "turns"'),
        ('{"prompt": 3}', "not text"),
        ('{"prompt": ""}', "empty"),
    ],
)
def test_a_prompt_file_is_checked_line_by_line(
    line: str, complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "good"}\n\n' + line + "\n", encoding="utf-8")
    assert run(["generate", "--stages", "1", "--prompts", str(file)]) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert f"{file}:3" in error


def test_a_prompt_file_without_line_breaks_is_not_read_into_memory(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("flowedge.device.files._MOST_CHARACTERS", 1 << 10)
    assert run(["generate", "--stages", "1", "--prompts", "/dev/zero"]) == 2
    assert "/dev/zero:1: has more than" in capsys.readouterr().err


def test_a_file_that_the_system_refuses_is_no_internal_error(capsys: pytest.CaptureFixture[str]) -> None:
    name = "a" * 300
    assert run([*HI, "--model", f"{name}/b"]) == 1
    assert capsys.readouterr().err == f"flowedge: {name}/b: File name too long\n"


def test_streams_that_are_closed_are_read_and_written_as_empty() -> None:
    for arguments, closed, complaint in (
        ("generate --stages 1 --prompt -", "<&-", "standard input: the prompt is empty"),
        ("--version", ">&-", ""),
    ):
        done = run_command(["sh", "-c", f'"$@" {arguments} {closed}', "sh", *CLI])
        assert (done.returncode, done.stdout) == (2 if complaint else 0, "")
        assert done.stderr == (f"flowedge: {complaint}\n" if complaint else "")


def test_an_empty_prompt_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n")
    assert run(["generate", "--stages", "1", "--prompts", str(file)]) == 2
    assert "no prompt" in capsys.readouterr().err


def test_nobody_at_an_address_is_a_failure_not_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["generate", "--prompt", "Hi", "--peers", "127.0.0.1:1,127.0.0.1:2"]) == 1
    assert "127.0.0.1:1" in capsys.readouterr().err
    assert run(["release", "127.0.0.1:1"]) == 1


def test_the_kinds_of_drafting_offered_are_those_there_are() -> None:
    assert tuple(noise.value for noise in DraftNoise) == (*NOISES, "both")


def test_an_error_nobody_foresaw_is_one_line_too() -> None:
    code = (
        "import sys; from flowedge.cli import main; "
        "main.run = lambda: 1 // 0; sys.argv = ['flowedge']; main.main()"
    )
    done = run_command([sys.executable, "-c", code])
    assert done.returncode == 1
    assert done.stderr.startswith("flowedge: internal error: ZeroDivisionError")
    assert done.stderr.count("\n") == 1
