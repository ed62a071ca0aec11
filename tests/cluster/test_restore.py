"""A CA that was restored from a copy: what was revoked stays revoked, and what the copy lacks is learnt."""

from __future__ import annotations

import datetime
import json
import random
import shutil
import sqlite3
import stat
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from flowedge.client import Client
from flowedge.cluster.authority import Authority
from flowedge.cluster.certificate_role import CertificateRole
from flowedge.cluster.certificates import new_key, request_for
from flowedge.cluster.credentials import CredentialStore
from flowedge.cluster.process import Security
from flowedge.cluster.restoring import Restoration, take_over
from flowedge.cluster.revocation import OldListError, newer, read_list
from flowedge.core.errors import AccessError, BadRequestError
from tests.cluster.clusters import MINUTE, Cluster, enrolment_service, members, now
from tests.support.commands import run_command
from tests.support.free_ports import free_ports
from tests.support.processes import CLI
from tests.support.waiting import await_that

DAY = datetime.timedelta(days=1)
LIFE = 90 * DAY
AGENT, CLIENT = CertificateRole.AGENT, CertificateRole.CLIENT


def ca(cluster: Cluster, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run `flowedge cluster ...` on the CA's machine."""
    return run_command([*CLI, "cluster", *arguments, "--dir", str(cluster.ca)], input=text)


def is_refused(address: str, state: Path) -> bool:
    """Return whether the agent at an address refuses a revoked member, which asks anew."""
    security = Security(CredentialStore.open(state))
    with Client(address, security=security) as client:
        try:
            client.describe()
        except AccessError as error:
            return "has been revoked" in str(error)
    return False


def copied(cluster: Cluster) -> Path:
    copy = cluster.directory / "copy"
    shutil.copytree(cluster.ca / "authority", copy)
    return copy


def serial_of(state: Path) -> int:
    return CredentialStore.open(state).credentials.holder.serial


def listed(cluster: Cluster) -> frozenset[int]:
    authority = Authority.open(cluster.ca)
    return read_list(authority.revocation_list(now()), authority.certificate).serials


def test_after_a_restore_nobody_who_was_revoked_is_served_and_everybody_hears_of_it(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, free_ports(2))
    states = {name: cluster.member(name, CLIENT) for name in ("thief", "laptop")}
    kitchen = cluster.member("kitchen", AGENT)
    copy = copied(cluster)
    states["late"] = cluster.member("late", CLIENT)
    attic = cluster.member("attic", AGENT)
    with enrolment_service(cluster) as service, members([kitchen, attic]) as agents:
        assert ca(cluster, "revoke", "thief").returncode == 0
        for agent in agents:
            agent.line("is revoked")

        shutil.rmtree(cluster.ca / "authority")
        shutil.copytree(copy, cluster.ca / "authority")
        agents[0].line("still accepted", "older than the known list", "run `flowedge cluster restore`")
        service.line("says that it has revocation list number", "restored from an older copy")

        # At once, and nobody is served again by what the copy has forgotten.
        assert "revoked laptop (client)" in ca(cluster, "revoke", "laptop").stdout
        agents[0].line("lacks certificates that were revoked before", f"{serial_of(states['thief']):x}")
        assert is_refused(agents[0].address, states["laptop"])
        assert is_refused(agents[0].address, states["thief"])
        done = ca(cluster, "revoke", "late")
        assert done.returncode == 2 and "flowedge cluster revoke --serial" in done.stderr
        done = ca(cluster, "revoke", "--serial", f"{serial_of(states['late']):x}")
        assert "of a member that this CA does not know" in done.stdout
        await_that(lambda: is_refused(agents[0].address, states["late"]))
        quick = ["--json", "--no-libraries", "--no-rate", "--timeout", "0.1", "--peer", agents[0].address]
        found = run_command([*CLI, "doctor", *quick, "--cluster-dir", str(kitchen)])
        assert "revocation-list-old" in {each["code"] for each in json.loads(found.stdout)["findings"]}

        asked = ["restore", "--timeout", "0.1", "--peers", ",".join(agent.address for agent in agents)]
        done = ca(cluster, *asked)
        assert done.returncode == 2 and "give --yes" in done.stderr
        assert serial_of(states["thief"]) not in listed(cluster)
        done = ca(cluster, *asked, "--yes")
        assert done.returncode == 0, done.stderr
        assert "agents that answered: attic, kitchen" in done.stdout
        assert f"lacks member attic (agent), serial {serial_of(attic):x}" in done.stdout
        assert f"lacks a revocation, of serial {serial_of(states['thief']):x}" in done.stdout
        assert listed(cluster) == {serial_of(state) for state in states.values()}
        assert "revoked attic (agent)" in ca(cluster, "revoke", "attic").stdout
        await_that(lambda: len(CredentialStore.open(kitchen).revoked.serials) == 4)
        assert not CredentialStore.open(kitchen).doubt


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """A cluster whose service is off."""
    return Cluster(tmp_path / "home", 1)


def test_a_copy_replaces_a_damaged_ca_and_no_other(cluster: Cluster, tmp_path: Path) -> None:
    copy = copied(cluster)
    with pytest.raises(BadRequestError, match="is not damaged, and its revocation list is as new"):
        Restoration.of(copy, cluster.ca)
    other = Cluster(tmp_path / "other", 1)
    with pytest.raises(AccessError, match=f"holds files of cluster {other.authority.id}"):
        Restoration.of(copy, other.ca)
    assert not (cluster.ca / "authority.new").exists() and not (other.ca / "authority.new").exists()

    token = Authority.open(cluster.ca).new_token(frozenset({AGENT}), MINUTE, ["x:1"], now=now())
    (cluster.ca / "authority" / "ledger.sqlite3").write_bytes(b"nothing")
    done = ca(cluster, "restore", str(copy), "--timeout", "0.1", "--yes")
    assert done.returncode == 0, done.stderr
    assert "the files that were there are in" in done.stdout
    assert [issued.name for issued in Authority.open(cluster.ca).certificates()] == ["admin"]
    with pytest.raises(AccessError, match="not known"):
        Authority.open(cluster.ca).join(token.secret, "x", request_for(new_key()), now())
    assert stat.S_IMODE((cluster.ca / "authority" / "key.pem").stat().st_mode) == 0o600


def test_a_copy_on_a_disk_without_modes_is_restored_on_a_new_machine(
    cluster: Cluster, tmp_path: Path
) -> None:
    unused = cluster.authority.new_token(frozenset({AGENT}), MINUTE, ["x:1"], now=now())
    copy = copied(cluster)
    for file in copy.iterdir():
        file.chmod(0o644)
    new = tmp_path / "new"
    new.mkdir()
    Restoration.of(copy.parent / "copy", new).finish()
    restored = Authority.open(new)
    assert restored.id == cluster.authority.id
    with pytest.raises(AccessError, match="was used already"):
        restored.join(unused.secret, "x", request_for(new_key()), now())


def test_a_renewal_of_what_was_revoked_after_the_copy_is_revoked_with_it(cluster: Cluster) -> None:
    authority, begin = cluster.authority, now() - 60 * DAY
    thief = CredentialStore.open(cluster.member("thief", AGENT, begin)).credentials.holder
    renewed = authority.renew(thief, request_for(new_key()), now()).holder  # by the restored CA
    with authority.ledger.transaction() as transaction:
        take_over(transaction, {thief.serial: now(), 77: now()}, LIFE)
    pem = authority.revocation_list(now())
    assert read_list(pem, authority.certificate).serials == {thief.serial, renewed.serial, 77}


def test_an_entry_is_kept_for_a_life_and_survives_a_restart(cluster: Cluster) -> None:
    thief = cluster.member("thief", AGENT)
    state = cluster.member("kitchen", AGENT)
    copy = copied(cluster)
    store = CredentialStore.open(state)
    cluster.authority.revoke("thief", now())
    store.replace_revoked(cluster.authority.revocation_list(now()))
    shutil.rmtree(cluster.ca / "authority")
    shutil.copytree(copy, cluster.ca / "authority")
    with pytest.raises(OldListError):
        store.replace_revoked(cluster.authority.revocation_list(now()))
    assert "restored from an older copy" in store.doubt
    for name in ("a", "b"):
        cluster.member(name, AGENT)
        cluster.authority.revoke(name, now())
        store.replace_revoked(cluster.authority.revocation_list(now()))
    again = CredentialStore.open(state)
    assert again.revoked.missing == {serial_of(thief)} and again.doubt == store.doubt != ""
    assert (store.folder / "revoked.pem").read_bytes().count(b"BEGIN") == 2

    fresh = read_list(cluster.authority.revocation_list(now()), cluster.authority.certificate)
    assert newer(again.revoked, fresh, LIFE, now()).missing == {serial_of(thief)}
    assert newer(again.revoked, fresh, LIFE, now() + LIFE + DAY) == fresh


def test_random_bytes_in_the_ledger_are_noticed_by_every_command(cluster: Cluster) -> None:
    for number in range(30):
        cluster.member(f"board-{number}", AGENT)
    ledger, chance = cluster.ca / "authority" / "ledger.sqlite3", random.Random(5)
    content = ledger.read_bytes()
    for begin, length in ((len(content) // 2, 3000), (content.index(b"board-7"), 1)):
        damaged = bytearray(content)
        damaged[begin : begin + length] = chance.randbytes(length)
        ledger.write_bytes(damaged)
        commands = (["list"], ["token"], ["serve", "--host", "127.0.0.1"]) if length > 1 else (["list"],)
        for command in commands:
            done = ca(cluster, *command)
            assert done.returncode != 0, done.stdout
            assert "if it is damaged, restore it from a copy" in " ".join(done.stderr.split())
    ledger.write_bytes(content)
    with closing(sqlite3.connect(ledger)) as connection, connection:
        connection.execute("UPDATE certificates SET name = 'eve' WHERE name = 'board-3'")
    with pytest.raises(AccessError, match="its rows are not those that were written"):
        cluster.authority.certificates()


def test_an_open_directory_of_keys_is_closed(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    for folder in (cluster.ca / "authority", cluster.ca / "identity"):
        folder.chmod(0o755)
    Authority.open(cluster.ca)
    CredentialStore.open(cluster.ca)
    assert caplog.text.count("was open to other users (mode 755); its mode is 700 now") == 2
    for folder in (cluster.ca / "authority", cluster.ca / "identity"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
