"""`flowedge chat` with real agents: by a person at a terminal, and by a program."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from pathlib import Path

from flowedge.client import Client
from tests.support.commands import run_command
from tests.support.terminal import CLI, Terminal

QUESTION = "Tell me about bees."
ENDLESS = "Tell me a long story about the sea."


def piped(text: str, *options: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [*CLI, "chat", "--max-new-tokens", "24", *options]
    environment = {**os.environ, **(env or {})}
    return run_command(command, input=text, env=environment)


def test_each_line_of_standard_input_is_a_message(cluster4: str, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    ran = piped(f"{QUESTION}\n\nAnd three?\n/save {file}\n/stats\n", "--peers", cluster4)
    assert ran.returncode == 0, ran.stderr
    with Client(cluster4) as client:
        talk = client.conversation(max_new_tokens=24)
        answers = [talk.ask(QUESTION).result().text, talk.ask("And three?").result().text]
    saved = [message["content"] for message in json.loads(file.read_text())["messages"]]
    assert saved == [QUESTION, answers[0], "And three?", answers[1]]
    assert ran.stdout == "\n\n".join(answers) + "\n"
    assert "prompt tokens reused" in ran.stderr and "4 messages saved" in ran.stderr
    again = piped("/system\n", "--peers", cluster4, "--load", str(file))
    assert (again.returncode, again.stdout) == (0, "")
    assert "system message: none" in again.stderr


def test_an_error_is_told_and_the_conversation_goes_on(cluster4: str) -> None:
    ran = piped(f"/nothing\n/load /missing\n/save\n/stats\n{'x ' * 3000}\n{QUESTION}\n", "--peers", cluster4)
    assert ran.returncode == 1
    for complaint in (
        "there is no command /nothing",
        "/missing cannot be read",
        "/save needs a FILE",
        "no complete answer yet",
        "/reset begins a new conversation",
    ):
        assert complaint in ran.stderr
    assert "Traceback" not in ran.stderr and ran.stdout.strip()


def chat_terminal(cluster: str, state: Path, most_tokens: int) -> Terminal:
    """Return a chat with a cluster in a terminal of its own; its history is in the directory `state`."""
    command = ["chat", "--peers", cluster, "--max-new-tokens", str(most_tokens)]
    return Terminal(command, env={"FLOWEDGE_STATE_DIR": str(state)})


def test_a_person_chats(cluster4: str, tmp_path: Path) -> None:
    file, state = tmp_path / "talk.json", tmp_path / "state"
    with chat_terminal(cluster4, state, 60) as terminal:
        terminal.expect("/help shows the commands")
        terminal.expect(r"\n>")
        terminal.type("/help\r")
        terminal.expect(r"Ctrl-D ends\s+the\s+chat\.")
        terminal.expect(r"\n>")
        terminal.type("Write a function\x1b\rthat adds two numbers.\r")
        terminal.expect(r"[1-9]\d* tokens, [\d.]+ tokens/s, [\d.]+ a (step|segment)")
        terminal.expect(r"tokens/s, first\s+token\s+after.*seed\s+\d+")  # the line that stays
        terminal.expect(r"\n>")
        terminal.type("/stats\r")
        terminal.expect(r"first\s+token\s+after")
        terminal.type("/system Be brief.\r")
        terminal.expect("system message: Be brief.")
        terminal.type("Again.\r")
        terminal.expect(r"first\s+token\s+after.*seed\s+\d+")
        terminal.expect(r"\n>")
        terminal.type("/system off\r")
        terminal.expect("system message: none")
        terminal.type("Now subtract them.\r")
        terminal.expect(r"first\s+token\s+after.*seed\s+\d+")
        terminal.expect(r"\n>")
        terminal.type("/stats\r")
        terminal.expect(r"[1-9]\d* of \d+\s+prompt\s+tokens\s+reused")
        terminal.type(f"/save {file}\r")
        terminal.expect("6 messages saved")
        terminal.type("/reset\r")
        terminal.expect("a new conversation")
        terminal.type(f"/load {file}\r")
        terminal.expect("6 messages loaded")
        terminal.type("/model\r")
        terminal.expect("model: bundled, drafter: bundled")
        terminal.expect(r"\n>")
        terminal.type("\x04")
        assert terminal.wait() == 0
    first = json.loads(file.read_text())["messages"][0]
    assert first == {"role": "user", "content": "Write a function\nthat adds two numbers."}
    history = state / "chat-history"
    assert "Now subtract them." in history.read_text()
    assert stat.S_IMODE(history.stat().st_mode) == 0o600


def test_keys_of_the_time_of_an_answer_go_to_the_next_prompt(cluster4: str, tmp_path: Path) -> None:
    with chat_terminal(cluster4, tmp_path, 60) as terminal:
        terminal.expect(r"\n>")
        terminal.type(f"{ENDLESS}\r")
        terminal.expect(r"[1-9]\d* tokens, [\d.]+ tokens/s")
        terminal.type("/model\r\x04")
        assert "/model" not in terminal.expect("(?s).*model: bundled").group().partition("\n>")[0]
        assert terminal.wait() == 0


def test_ctrl_c_stops_the_answer_and_not_the_program(cluster4: str, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    with chat_terminal(cluster4, tmp_path, 1500) as terminal:
        terminal.expect(r"\n>")
        terminal.type(f"{ENDLESS}\r")
        terminal.expect(r"[1-9]\d* tokens, [\d.]+ tokens/s, [\d.]+ a segment   \S+ \d+%( \S+ \d+%)+")
        terminal.type("\x03")
        terminal.expect("stopped")
        terminal.expect(r"\n>")
        terminal.type(f"/save {file}\r")
        terminal.expect("2 messages saved")
        terminal.type("/quit\r")
        assert terminal.wait() == 0
    question, answer = json.loads(file.read_text())["messages"]
    assert question["content"] == ENDLESS
    assert answer["content"]
