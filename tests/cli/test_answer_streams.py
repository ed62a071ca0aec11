"""What an answer leaves on standard output and standard error, also when it does not end well."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from flowedge.cli.main import run
from flowedge.client import ChatMessage, Client
from flowedge.core.errors import DeviceLostError
from flowedge.v1 import generation_pb2 as pb
from tests.client.fake_node import chunk, fail, options_of, serving, started
from tests.support.commands import run_command
from tests.support.processes import CLI

PROMPT = "Tell me a story about a lamp."


@pytest.mark.proof
def test_quiet_answers_of_a_file_are_set_apart(
    cluster4: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in (PROMPT, "Hello!")))
    options = ["--max-new-tokens", "12", "--check", "--quiet"]
    assert run(["generate", "--peers", cluster4, "--prompts", str(prompts), *options]) == 0
    captured = capsys.readouterr()
    with Client(cluster4) as client:
        texts = [client.generate(text, max_new_tokens=12).result().text for text in (PROMPT, "Hello!")]
    assert captured.out == f"{texts[0]}\n\n{texts[1]}\n"
    assert captured.err == ""


def test_standard_input_in_a_pipe_and_a_stop_string(cluster4: str) -> None:
    with Client(cluster4) as client:
        whole = client.generate(PROMPT, max_new_tokens=24).result().text
    word = whole.split()[3]
    command = [
        *CLI,
        "generate",
        "--peers",
        cluster4,
        "--prompt",
        "-",
        "--max-new-tokens",
        "24",
        "--stop",
        word,
    ]
    done = run_command([*command, "--quiet"], input=PROMPT + "\n", check=True)
    assert done.stdout == whole.partition(word)[0] + "\n"
    assert done.stderr == ""


def test_an_error_in_an_answer_begins_on_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    def script(request: pb.GenerateRequest, context: grpc.ServicerContext) -> Iterator[pb.GenerateEvent]:
        yield started()
        yield chunk("Once upon", 1, 2)
        fail(context, DeviceLostError("v1", "the lamp went out"))

    with serving(script) as (_, address):
        assert run(["generate", "--peers", address, "--prompt", PROMPT]) == 1
        assert "The same command asks again" in capsys.readouterr().err, "what to do with half an answer"
        assert run(["generate", "--peers", address, "--prompt", PROMPT, "--quiet"]) == 1
    captured = capsys.readouterr()
    assert captured.out == "Once upon\n"
    assert captured.err.startswith("flowedge: ")
    assert "the lamp went out" in captured.err


def test_a_system_message_reaches_the_draft_node_in_a_conversation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def script(request: pb.GenerateRequest, context: grpc.ServicerContext) -> Iterator[pb.GenerateEvent]:
        yield started()
        fail(context, DeviceLostError("v1", "enough"))

    with serving(script) as (node, address):
        options = ["--system", "Be brief.", "--stop", "a", "--stop", "b"]
        assert run(["generate", "--peers", address, "--prompt", PROMPT, *options]) == 1
    capsys.readouterr()
    (request,) = node.requests
    messages = [(message.role, message.content) for message in request.conversation.messages]
    assert messages == [("system", "Be brief."), ("user", PROMPT)]
    assert options_of(request).stop == ("a", "b")


def test_a_system_message_stands_before_the_prompt(cluster4: str, capsys: pytest.CaptureFixture[str]) -> None:
    talk = [ChatMessage("system", "Your name is Ada."), ChatMessage("user", "What is your name?")]
    with Client(cluster4) as client:
        told = client.chat(talk, max_new_tokens=12, temperature=0).result().text
    asked = ["--prompt", talk[1].content, "--system", talk[0].content]
    assert run(["generate", "--peers", cluster4, "--max-new-tokens", "12", "--temperature", "0", *asked]) == 0
    assert capsys.readouterr().out.splitlines()[0] == told
    assert "Ada" in told
