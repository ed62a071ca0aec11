"""Identities side by side in one state directory, several roles in one certificate, and how roles are "
"added."""

from __future__ import annotations

import datetime
import errno
import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowedge.cluster.authority import Authority
from flowedge.cluster.certificate_role import (
    CertificateRole,
    Roles,
    may_call,
    read_roles,
    roles_needed,
    text_of,
)
from flowedge.cluster.certificates import key_pem, new_key, read_certificate, request_for
from flowedge.cluster.credentials import ClusterInfo, Credentials, CredentialStore
from flowedge.cluster.identities import Identities, IdentityKind, store_identity
from flowedge.cluster.member import check_name, holder_of
from flowedge.cluster.process import Security
from flowedge.cluster.revocation import read_list
from flowedge.cluster.settings import SecuritySettings
from flowedge.core.errors import AccessError, BadRequestError
from flowedge.device import private_files
from flowedge.device.state_dir import command_states
from tests.cluster.clusters import MINUTE, members, now
from tests.support.commands import run_command
from tests.support.free_ports import free_ports
from tests.support.processes import CLI, FlowEdgeProcess, running

GENERATE = "/flowedge.v1.Generation/Generate"
BECOME_STAGE = "/flowedge.v1.Agent/BecomeStage"


def test_roles_are_a_list_of_which_any_may_allow_a_call() -> None:
    both = read_roles("client, agent")
    assert text_of(both) == "agent,client"
    assert may_call(GENERATE, both)
    assert not may_call(BECOME_STAGE, both)
    assert text_of(roles_needed(BECOME_STAGE, both)) == "agent,draft-node,client"
    assert text_of(roles_needed(GENERATE, read_roles("draft-node"))) == "draft-node,client"
    assert not roles_needed("/flowedge.v1.Agent/Unknown", both)
    for text in ("admin,client", "agent,authority", "agent,,client", "king", ""):
        with pytest.raises(BadRequestError, match="role"):
            read_roles(text)


def test_a_name_with_several_roles_is_in_the_certificate(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "ca", "home", now=now())
    store = joined(authority, tmp_path / "board", read_roles("agent,client"), "board")
    assert store.member.uri == f"flowedge://{authority.id}/agent,client/board"
    assert holder_of(store.credentials.certificate).member == store.member
    assert str(store.member) == "board (agent,client)"
    renewed = authority.renew(
        store.credentials.holder, request_for(new_key()), now() + datetime.timedelta(days=61)
    )
    assert renewed.holder.member == store.member


def joined(
    authority: Authority, state: Path, roles: Roles, name: str, *, named: bool = False
) -> CredentialStore:
    """The identity of a new member, stored in a state directory; `named`: the token is for that name."""
    key = new_key()
    token = authority.new_token(roles, MINUTE, ["x:1"], now=now(), name=name if named else "")
    signed = authority.join(token.secret, name, request_for(key), now())
    ca = authority.certificate
    own = Credentials(
        key_pem(key), read_certificate(signed.certificate), ca, ClusterInfo("home", ("x:1",), 2)
    )
    return store_identity(state, own, read_list(signed.revocation_list, ca))


def test_a_person_and_a_device_are_side_by_side(tmp_path: Path) -> None:
    state = tmp_path / "laptop"
    authority = Authority.create(state, "home", now=now())
    settings = SecuritySettings(cluster_dir=str(state))
    assert Security.load_for_agent(settings).roles == {CertificateRole.ADMIN}  # as in directories of before

    board = joined(authority, state, read_roles("agent"), "laptop")
    assert (board.folder.name, Security.load(settings).device_name(None)) == ("identity-device", "admin")
    assert Security.load_for_agent(settings).device_name(None) == "laptop"

    # Each replaces its own kind only; an identity of the same name goes as well.
    again = joined(authority, state, read_roles("draft-node,client"), "shelf")
    assert again.folder == board.folder
    assert Identities.open(state).of(IdentityKind.PERSON) is not None
    assert len(Identities.open(state).stores) == 2

    other = Authority.create(tmp_path / "other", "home", now=now())
    moved = joined(other, state, read_roles("client"), "anna")
    assert [store.member for store in Identities.open(state).stores] == [moved.member]
    with pytest.raises(AccessError, match=r"anna \(client\), does not allow it to serve; join as a device"):
        Security.load_for_agent(settings)


def test_a_board_of_before_gets_a_person_beside_it(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "ca", "home", now=now())
    state = tmp_path / "board"
    joined(authority, state, read_roles("agent"), "board")
    assert Security.load(SecuritySettings(cluster_dir=str(state))).device_name(None) == "board"
    person = joined(authority, state, read_roles("client"), "anna")
    assert person.folder.name == "identity-person"
    assert Security.load(SecuritySettings(cluster_dir=str(state))).device_name(None) == "anna"
    assert Security.load_for_agent(SecuritySettings(cluster_dir=str(state))).device_name(None) == "board"


DAMAGE = {
    "zeros": lambda content: bytes(len(content)),
    "half": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "one letter": lambda content: content[:200] + bytes([content[200] ^ 1]) + content[201:],
}


@pytest.mark.parametrize("file", ["member.pem", "authority.pem", "revoked.pem", "cluster.json"])
def test_a_damaged_identity_stops_only_its_user_and_is_replaced(tmp_path: Path, file: str) -> None:
    state = tmp_path / "laptop"
    authority = Authority.create(state, "home", now=now())
    joined(authority, state, read_roles("agent"), "laptop")
    settings = SecuritySettings(cluster_dir=str(state))
    path = state / "identity" / file
    intact = path.read_bytes()
    for damage in DAMAGE.values():
        path.write_bytes(damage(intact.ljust(201)))
        if not Identities.open(state).damaged:  # a letter between the lines of PEM, or in a cluster's name
            continue
        assert Security.load_for_agent(settings).device_name(None) == "laptop"
        with pytest.raises(AccessError, match=r"identity in .* cannot be used: .*join --replace"):
            Security.load(settings)
    path.unlink()
    assert len(Identities.open(state).damaged) == 1
    assert joined(authority, state, read_roles("agent"), "laptop2").folder.name == "identity-device"
    assert len(Identities.open(state).damaged) == 1
    assert joined(authority, state, read_roles("client"), "anna").folder.name == "identity"
    assert Security.load(settings).device_name(None) == "anna"
    assert Security.load_for_agent(settings).device_name(None) == "laptop2"


def test_a_process_writes_nothing_into_the_identity_that_replaced_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = tmp_path / "board"
    former = Authority.create(tmp_path / "former", "home", now=now())
    running_store = joined(former, state, read_roles("agent"), "board")
    other = Authority.create(tmp_path / "other", "home", now=now())
    joined(other, state, read_roles("agent"), "board")
    joined(former, tmp_path / "thief", read_roles("agent"), "thief")
    former.revoke("thief", now())

    for _ in range(2):
        running_store.replace_revoked(former.revocation_list(now()))
    assert len(running_store.revoked.serials) == 1
    assert caplog.text.count("was replaced while this process uses the former one") == 1
    (present,) = Identities.open(state).stores
    assert present.member.cluster == other.id


def test_a_list_is_used_where_it_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority.create(tmp_path / "ca", "home", now=now())
    store = joined(authority, tmp_path / "board", read_roles("agent"), "board")
    thief = joined(authority, tmp_path / "thief", read_roles("agent"), "thief")
    authority.revoke("thief", now())

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(private_files, "write", full)
    assert store.replace_revoked(authority.revocation_list(now()))
    with pytest.raises(AccessError, match="revoked"):
        store.revoked.check(thief.credentials.holder)


def test_only_a_later_token_for_its_name_replaces_a_member(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "ca", "home", now=now())
    early = authority.new_token(read_roles("agent"), MINUTE, ["x:1"], now=now(), name="kitchen")
    kitchen = joined(authority, tmp_path / "kitchen", read_roles("agent"), "kitchen")
    steps = r"named kitchen \(agent\) already.*token --role agent --name kitchen"
    with pytest.raises(AccessError, match=steps):  # of a stranger with a token for any name
        joined(authority, tmp_path / "thief", read_roles("agent"), "kitchen")
    with pytest.raises(AccessError, match=steps):  # it was for the member that has joined since
        authority.join(early.secret, "", request_for(new_key()), now())

    upgraded = joined(authority, tmp_path / "kitchen", read_roles("agent,client"), "kitchen", named=True)
    assert text_of(upgraded.member.roles) == "agent,client"
    revoked = read_list(authority.revocation_list(now()), authority.certificate)
    assert revoked.serials == {kitchen.credentials.holder.serial}
    with pytest.raises(AccessError, match="revoked"):
        authority.renew(kitchen.credentials.holder, request_for(new_key()), now())


def test_a_variable_keeps_commands_from_the_services_directory() -> None:
    assert command_states({"FLOWEDGE_STATE_DIR": "/a"}) == (Path("/a"),)
    assert command_states({"STATE_DIRECTORY": "/b"}) == (Path("/b"),)


class Machine:
    """A machine of the cluster: its state directory, and the commands that a person gives there."""

    def __init__(self, state: Path) -> None:
        self.state = state

    def run(self, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "FLOWEDGE_STATE_DIR": str(self.state), "OMP_NUM_THREADS": "1"}
        command = [*CLI, *arguments]
        return run_command(command, input=text, env=environment)

    def says(self, *arguments: str, text: str = "", status: int = 0) -> str:
        done = self.run(*arguments, text=text)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr


def diagnosed(machine: Machine, peers: str) -> dict[str, dict[str, str]]:
    """What `flowedge doctor` finds, by code."""
    quick = ["--no-libraries", "--no-rate", "--timeout", "0.1"]
    done = machine.run("doctor", "--json", *quick, "--peer", peers)
    return {finding["code"]: finding for finding in json.loads(done.stdout)["findings"]}


@pytest.fixture
def laptop(tmp_path: Path) -> Iterator[Machine]:
    """The machine that made the cluster, whose service runs."""
    made = Machine(tmp_path / "laptop")
    made.says("cluster", "init", "home", "--port", str(free_ports(2)))
    service = FlowEdgeProcess(
        "cluster", "serve", "--dir", str(made.state), "--host", "127.0.0.1", "--exit-with-parent"
    )
    with running(service):
        yield made


def test_the_machine_that_made_the_cluster_is_a_board_and_a_refusal_names_its_remedy(
    laptop: Machine, tmp_path: Path
) -> None:
    board = Machine(tmp_path / "board")
    for machine, role, name in ((laptop, "draft-node", "laptop"), (board, "agent", "board")):
        token = laptop.run("cluster", "token", "--role", role, "--address", "127.0.0.1").stdout
        assert "next: restart this device's agent" in machine.says("join", "-", "--name", name, text=token)
    token = laptop.run("cluster", "token", "--address", "127.0.0.1").stdout
    assert "holds the identity of laptop (draft-node)" in laptop.says("join", "-", text=token, status=2)
    assert len(Identities.open(laptop.state).stores) == 2

    prompt = ["--prompt", "Hello", "--max-new-tokens", "4", "--model", "bundled", "--drafter", "ngram"]
    with members([laptop.state, board.state]) as agents:
        peers = ",".join(agent.address for agent in agents)
        listed = json.loads(laptop.says("devices", "--peers", peers, "--json"))
        assert {row["name"]: row["certified_role"] for row in listed} == {
            "laptop": "draft-node",
            "board": "agent",
        }
        refused = board.says("generate", "--peers", peers, *prompt, status=1)
        assert "board (agent) may not call flowedge.v1.Agent/BecomeDraftNode" in refused
    steps = [shlex.split(step) for step in re.findall(r"`flowedge ([^`]*)`", " ".join(refused.split()))]
    assert steps == [["cluster", "token", "--role", "agent,client", "--name", "board"], ["join", "--replace"]]

    done = laptop.run(*steps[0], "--address", "127.0.0.1")
    assert "board (agent) is a member. Whoever joins with this token replaces it" in done.stderr
    board.says(*steps[1], "-", text=done.stdout)
    with members([laptop.state, board.state]) as agents:
        peers = ",".join(agent.address for agent in agents)
        answered = board.says("generate", "--peers", peers, *prompt)
        assert "4 tokens" in answered
        # The admin's commands use the agent of its own machine, and the board's too.
        assert "4 tokens" in laptop.says("generate", "--peers", peers, *prompt)

        laptop.says("cluster", "revoke", "board")
        for agent in agents:
            agent.line("is revoked")
        found = diagnosed(board, peers)
        assert found["certificate-revoked"]["detail"] == "the certificate of board (agent,client)"
        assert "flowedge join --replace" in found["certificate-revoked"]["remedy"]
        assert not {"agent-not-running", "no-answer", "not-accepted"} & set(found)
        assert "board (agent,client), serial" in diagnosed(laptop, peers)["peer-not-accepted"]["detail"]
    listed = json.loads(laptop.says("cluster", "list", "--json"))
    assert {row["name"]: row["roles"] for row in listed} == {
        "admin": "admin",
        "board": "agent,client",
        "laptop": "draft-node",
    }


def test_a_persons_name_is_of_user_and_host(laptop: Machine, tmp_path: Path) -> None:
    token = laptop.run("cluster", "token", "--role", "client", "--address", "127.0.0.1").stdout
    joined_as = Machine(tmp_path / "anna").says("join", "-", text=token).split()[0]
    device = laptop.run("cluster", "token", "--address", "127.0.0.1").stdout
    host = laptop.says("join", "-", text=device).split()[0]
    assert check_name(joined_as).endswith(host[-8:])
    assert joined_as != host
