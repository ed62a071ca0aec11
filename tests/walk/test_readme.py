"""README's ten minutes: what it tells a reader to type is typed, and does what it says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from flowedge_testbed.paced.namespaces import Namespaces, why_not
from tests.support.hub import hub
from tests.support.smollm2 import make_smollm2
from tests.walk.documents import ROOT, commands
from tests.walk.machine import UserMachine

README = "README.md"
THREE_HOSTS = pytest.mark.skipif(why_not() is not None, reason=f"README ON SEVERAL HOSTS: {why_not()}")


@pytest.fixture
def user(tmp_path: Path) -> UserMachine:
    return UserMachine(tmp_path)


def test_flowedge_is_imported_in_the_folder_that_holds_the_clone(tmp_path: Path) -> None:
    (tmp_path / "flowedge").symlink_to(ROOT)
    program = "import flowedge; print(flowedge.Client.__name__)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "Client\n"


def test_one_machine(user: UserMachine) -> None:
    streamed, checked = commands(README, "**One machine.**", "**Several boards.**")
    assert "reverse" in user.works(streamed).out
    assert "identical" in user.works(checked).err


def test_a_small_real_model_from_the_hub(user: UserMachine) -> None:
    """The hub is on loopback, and its models have the published shapes with fewer layers."""
    activate, generate = commands(README, "**A small real model**", "Which PyTorch")
    assert activate == "source .venv/bin/activate"
    sizes = {f"HuggingFaceTB/SmolLM2-{size}-Instruct": size for size in ("360M", "135M")}
    repositories = {name: user.home / size for name, size in sizes.items()}
    for name, directory in repositories.items():
        directory.mkdir()
        make_smollm2(directory, sizes[name])
    with hub(repositories) as endpoint:
        online = UserMachine(user.home, {"HF_ENDPOINT": endpoint})
        assert online.works(f"{generate} --max-new-tokens 8").out.strip()


@pytest.fixture
def network() -> Iterator[Namespaces]:
    with Namespaces(3) as namespaces:
        yield namespaces


@THREE_HOSTS
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
    devices, doctor, generate = commands(README, then, "The first idle agent")
    laptop.works(init)
    with ExitStack() as running:
        running.enter_context(laptop.running(serve.removesuffix(" &"), "listening on"))
        tokens = [laptop.works(leader).out, laptop.works(leader.removesuffix("--role draft-node")).out]
        for board, name, token in zip(boards, names[1:], tokens, strict=True):
            board.works(join.replace("kitchen", name), typed=token)
            running.enter_context(board.running(agent, "listening on"))
        listed = laptop.works(devices).out
        assert all(name in listed for name in names[1:])
        found = laptop.run(doctor)
        assert "error" not in found.out.lower(), found
        assert laptop.works(f"{generate} --max-new-tokens 8").out.strip()
