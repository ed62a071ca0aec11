"""README's ten minutes on one machine: what it tells a reader to type is typed, and does what it says."""

from __future__ import annotations

import os
import signal
import sys
import uuid
from pathlib import Path

import pytest

from flowedge.cli.commands.demo import NEXT
from tests.gateway.page.talking import ask, await_answer
from tests.support.browser import browsing
from tests.support.commands import run_command
from tests.support.free_ports import free_port
from tests.support.terminal import Terminal
from tests.walk.documents import ROOT, commands, program
from tests.walk.machine import UserMachine

README = "README.md"
ONE = "**One machine.**"
PAGE = "http://127.0.0.1:8000/"
QUESTION = "Write a Python function that counts the vowels in a text."
START_S = 120.0  # for agents that are started
STOP_S = 30.0


@pytest.fixture
def user(tmp_path: Path) -> UserMachine:
    """A machine on whose network there are no other agents."""
    return UserMachine(tmp_path, {"FLOWEDGE_DISCOVERY__GROUP": uuid.uuid4().hex[:6]})


def test_flowedge_is_imported_in_the_folder_that_holds_the_clone(tmp_path: Path) -> None:
    (tmp_path / "flowedge").symlink_to(ROOT)
    program = "import flowedge; print(flowedge.Client.__name__)"
    done = run_command([sys.executable, "-c", program], cwd=tmp_path, check=True)
    assert done.stdout == "Client\n"


def test_the_demonstration_ends_with_commands_that_exist(user: UserMachine) -> None:
    for line in NEXT:
        command = line.partition(": ")[2].partition(",")[0]
        assert command.startswith("flowedge ")
        user.works(f"{command} --help")


def test_a_chat_answers_what_is_piped_into_it(user: UserMachine) -> None:
    (chat,) = commands(README, ONE, "**A page in the browser")
    answered = user.works(chat, typed=f"{QUESTION}\n")
    assert "def " in answered.out
    assert "agents are started here" in answered.err
    assert user.left() == []


def test_a_chat_in_a_terminal(user: UserMachine) -> None:
    (chat,) = commands(README, ONE, "**A page in the browser")
    with Terminal(chat.split()[1:], env=user.variables()) as terminal:
        terminal.expect("/help shows the commands", START_S)
        terminal.type(f"{QUESTION}\r")
        terminal.expect(r"\bdef\b")
        terminal.type("/help\r")
        terminal.expect("/reset")
        terminal.type("\x04")
        assert terminal.wait() == 0
    assert user.left() == []


def test_a_page_in_the_browser_and_the_openai_package(user: UserMachine, tmp_path: Path) -> None:
    after, until = "**A page in the browser", "**One answer, and its proof.**"
    (serve,) = commands(README, after, until)
    source = program(README, after, until)
    assert source.count(PAGE) == 1
    port = free_port()
    page = PAGE.replace("8000", str(port))
    with user.running(f"{serve} --listen 127.0.0.1:{port}", "models: ") as gateway:
        (tmp_path / "ask.py").write_text(source.replace(PAGE, page), encoding="utf-8")
        assert "reverse" in user.works("python ask.py").out
        with browsing() as browser:
            browser.open(page)
            browser.wait(lambda: browser.one(".speed .good"), "the pipeline is ready")
            ask(browser, QUESTION)
            assert "def " in await_answer(browser)
            assert browser.complaints() == []
        os.killpg(gateway.pid, signal.SIGINT)  # Ctrl-C
        assert gateway.wait(STOP_S) == 0
    assert user.left() == []


def test_one_answer_and_its_proof(user: UserMachine) -> None:
    streamed, checked = commands(README, "**One answer, and its proof.**", "**Several boards.**")
    assert "reverse" in user.works(streamed).out
    assert "identical" in user.works(checked).err
