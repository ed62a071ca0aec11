"""README's several boards, on three hosts with a bridge between them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from flowedge_testbed.paced.namespaces import Namespaces, why_not
from tests.support.terminal import without_colours
from tests.walk.documents import commands
from tests.walk.machine import UserMachine

README = "README.md"
NARROW = 60  # columns
BOARDS = (1, "kitchen"), (2, "attic")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(why_not() is not None, reason=f"README ON SEVERAL HOSTS: {why_not()}"),
]


@pytest.fixture
def network() -> Iterator[Namespaces]:
    with Namespaces(3) as namespaces:
        yield namespaces


@pytest.mark.proof
def test_several_boards(network: Namespaces, tmp_path: Path) -> None:
    names = ["laptop", "kitchen", "attic"]
    for name in names:
        (tmp_path / name).mkdir()
    laptop, *boards = (
        UserMachine(tmp_path / name, enter=partial(network.enter, host)) for host, name in enumerate(names)
    )
    here, there, then = "**Several boards.**", "and on each board", "From any machine of the network:"
    init, serve, leader = commands(README, here, there)
    join, agent = commands(README, there, then)
    devices, doctor, use, generate, chat, add, gateway = commands(README, then, "One idle agent")
    laptop.works(init)
    with ExitStack() as running:
        running.enter_context(laptop.running(serve.removesuffix(" &"), "listening on"))
        tokens = [laptop.works(leader).out, laptop.works(leader.removesuffix("--role draft-node")).out]
        for board, name, token in zip(boards, names[1:], tokens, strict=True):
            board.works(join.replace("kitchen", name), typed=token)
            running.enter_context(board.running(agent, "listening on"))
        listed = laptop.works(devices).out
        assert all(name in listed for name in names[1:])
        on_screen = laptop.works(f"script -qec 'stty cols {NARROW}; {devices}' /dev/null").out
        on_narrow = without_colours(on_screen)
        for host, name in BOARDS:
            assert name in on_narrow
            assert re.search(rf"\b{re.escape(network.hosts[host])}:[0-9]+\b", on_narrow), on_narrow
        assert max(len(shown.rstrip()) for shown in on_narrow.splitlines()) <= NARROW, on_narrow
        found = laptop.run(doctor)
        assert "error" not in found.out.lower(), found
        assert "runs bundled, drafter bundled, on 1 stage" in laptop.works(use).out
        answered = laptop.works(f"{generate} --max-new-tokens 8")
        assert answered.out.strip() and "has the pipeline of bundled ready" in answered.err
        assert laptop.works(chat, typed="Hello\n").out.strip()
        refused = laptop.run(gateway)
        assert (refused.code, refused.err.count("\n")) == (2, 1), refused
        assert add.removesuffix("anna") in refused.err
        key = laptop.works(add).out.strip()
        running.enter_context(laptop.running(gateway, "models: "))
        body = json.dumps({"model": "bundled", "messages": [{"role": "user", "content": "Hello"}]})
        url = f"http://{network.hosts[0]}:8000/v1/chat/completions"
        ask = f"curl -sS {url} -H 'Content-Type: application/json' -d '{body}'"
        attic = boards[1]
        assert "an API key is needed" in attic.works(ask).out
        assert "the API key is not known here" in attic.works(f"{ask} -H 'Authorization: Bearer fe-no'").out
        answer = json.loads(attic.works(f"{ask} -H 'Authorization: Bearer {key}'").out)
        assert answer["choices"][0]["message"]["content"].strip()
