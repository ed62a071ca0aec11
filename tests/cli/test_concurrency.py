"""`flowedge generate --concurrency N`: the same answers in the same order, at the same time."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from flowedge.cli.main import run
from flowedge.core.errors import CapacityError, DeviceLostError
from flowedge.v1 import generation_pb2 as pb
from tests.client.fake_node import Script, chunk, fail, keep_alive, options_of, serving, started, waiting
from tests.support.processes import CLI

PROMPTS = [
    "Write a Python function that counts the vowels in a text.",
    "Write a JavaScript function that reverses a string.",
    "What is 17 plus 5?",
    "Tell me a story about a lamp.",
    "Write a function in Python that returns the largest number of a list.",
    "Name a colour.",
    "What is 3 times 8?",
    "Hello!",
]


def prompts_file(directory: Path, prompts: list[str]) -> str:
    file = directory / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in prompts), encoding="utf-8")
    return str(file)


def test_answers_are_those_of_one_at_a_time_in_the_order_of_the_file(
    cluster4: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = ["--max-new-tokens", "24", "--temperature", "0.7", "--seed", "3"]
    ask = ["generate", "--peers", cluster4, "--prompts", prompts_file(tmp_path, PROMPTS), *options]
    outputs, entries = [], []
    for concurrency in ("1", "4"):
        file = tmp_path / f"{concurrency}.json"
        assert run([*ask, "--concurrency", concurrency, "--json", str(file)]) == 0
        captured = capsys.readouterr()
        outputs.append(captured.out)
        report = json.loads(file.read_text())
        entries.append(report["prompts"])
        assert report["settings"]["concurrency"] == int(concurrency)
        total = [line for line in captured.err.splitlines() if line.startswith("8 answers, ")]
        assert len(total) == 1
        assert re.fullmatch(
            r"8 answers, \d+ tokens, [\d.]+ tokens/s prefill included; medians: first token after [\d.]+ s, "
            r"\d+ ms between tokens",
            total[0],
        )
    assert outputs[0] == outputs[1]
    one, four = entries
    assert [entry["prompt"] for entry in four] == PROMPTS
    assert [entry["token_ids"] for entry in four] == [entry["token_ids"] for entry in one]


def answering(at_once: list[int]) -> Script:
    """A script that answers with the prompt when four requests are open, or all have been."""
    open_now, lock, all_open = Counter[str](), threading.Lock(), threading.Event()

    def script(request: pb.GenerateRequest, context: grpc.ServicerContext) -> Iterator[pb.GenerateEvent]:
        with lock:
            open_now[request.prompt] += 1
            at_once.append(len(open_now))
            if len(open_now) == 4:
                all_open.set()
        assert all_open.wait(60)
        yield started()
        yield chunk(request.prompt, 1)
        with lock:
            del open_now[request.prompt]
        fail(context, DeviceLostError("v1", "enough"))

    return script


def test_so_many_are_asked_at_once_and_the_first_error_in_order_ends_all(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    at_once: list[int] = []
    with serving(answering(at_once)) as (_, address):
        ask = ["generate", "--peers", address, "--prompts", prompts_file(tmp_path, PROMPTS), "--quiet"]
        assert run([*ask, "--concurrency", "4"]) == 1
    captured = capsys.readouterr()
    assert captured.out == f"{PROMPTS[0]}\n"
    assert "enough" in captured.err
    assert max(at_once) == 4


@pytest.mark.parametrize("concurrency", ["1", "3"])
def test_a_draft_node_without_room_is_asked_again_when_it_said(
    concurrency: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    tries: Counter[str] = Counter()
    times: dict[str, list[float]] = {}

    def script(request: pb.GenerateRequest, context: grpc.ServicerContext) -> Iterator[pb.GenerateEvent]:
        tries[request.prompt] += 1
        times.setdefault(request.prompt, []).append(time.monotonic())
        yield waiting(1)
        if tries[request.prompt] < 3:
            fail(context, CapacityError.later("no room", 0.2))
        yield started()
        yield chunk(request.prompt, 1)
        fail(context, CapacityError.later("no room any more", 0.2))

    prompts = PROMPTS[:3]
    with serving(script) as (_, address):
        ask = ["generate", "--peers", address, "--prompts", prompts_file(tmp_path, prompts), "--quiet"]
        assert run([*ask, "--concurrency", concurrency]) == 1
    captured = capsys.readouterr()
    assert captured.out == f"{prompts[0]}\n", "what was emitted is not asked for again"
    assert "no room any more; try later" in captured.err
    assert tries[prompts[0]] == 3
    first, second, third = times[prompts[0]]
    assert second - first >= 0.2 and third - second >= 0.2


def test_a_wait_longer_than_the_time_for_the_answer_is_an_error_at_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def script(request: pb.GenerateRequest, context: grpc.ServicerContext) -> Iterator[pb.GenerateEvent]:
        yield waiting(3, 9.0)
        fail(context, CapacityError.later("no room", 3000.0))

    with serving(script) as (node, address):
        assert run(["generate", "--peers", address, "--prompt", "Hi", "--priority", "batch"]) == 1
    error = capsys.readouterr().err
    assert "no room; try later, in about 3000 s" in error
    assert "waiting for room: place 3, about 9 s" in error
    (request,) = node.requests
    assert options_of(request).priority == "batch"


@pytest.mark.parametrize("at_once", [pytest.param(1, id="one-prompt"), pytest.param(3, id="three-of-a-file")])
def test_ctrl_c_ends_all_requests(at_once: int, tmp_path: Path) -> None:
    cancelled = threading.Semaphore(0)

    def script(request: pb.GenerateRequest, context: grpc.ServicerContext) -> Iterator[pb.GenerateEvent]:
        context.add_callback(cancelled.release)
        yield started()
        yield chunk("Once upon", 1, 2)
        while context.is_active():
            yield keep_alive()
            time.sleep(0.1)

    with serving(script) as (node, address):
        file = ["--prompts", prompts_file(tmp_path, PROMPTS), "--concurrency", str(at_once)]
        prompts = ["--prompt", PROMPTS[0]] if at_once == 1 else file
        command = [*CLI, "generate", "--peers", address, *prompts]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None and process.stderr is not None
            assert process.stdout.read(9) == "Once upon"
            while len(node.requests) < at_once:
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        for _ in range(at_once):
            assert cancelled.acquire(timeout=10), "the draft node does not work on"
    assert process.returncode == 130
    assert out == "\n"
    assert "cancelled" in err and "Traceback" not in err
    assert len(node.requests) == at_once, "nothing more is asked"
