"""Commands of root in a directory of a service's user, who replaces its parts by links all the time."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowedge.cluster.certificate_role import CertificateRole
from flowedge.cluster.credentials import CredentialStore
from flowedge.cluster.process import Security
from flowedge.core.errors import AccessError
from flowedge.device import private_files
from flowedge.device.owner import Owner, become_owner, owner_of
from tests.cluster.clusters import Cluster, enrolment_service
from tests.support.blocks import BLOCKS
from tests.support.commands import run_command
from tests.support.free_ports import free_ports

SERVICE = 64_321  # a user that owns the directory, and no account of this machine

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for another user")

# The interpreter is started by root, whose files it may need, and then is the service's user.
SWAPPER = textwrap.dedent(
    """
    import os, random, shutil, sys, time
    os.setgroups([]); os.setresgid({uid}, {uid}, {uid}); os.setresuid({uid}, {uid}, {uid})
    state, foreign = sys.argv[1:]
    names = ["identity.new", "identity.old", "identity", "identity.new/x"]
    print("ready", flush=True)
    while os.getppid() != 1:
        time.sleep(random.random() * 0.004)
        name = os.path.join(state, random.choice(names))
        try:
            if os.path.islink(name):
                os.unlink(name)
            elif os.path.isdir(name):
                os.rename(name, os.path.join(state, "aside"))
                os.symlink(foreign, name)
                shutil.rmtree(os.path.join(state, "aside"))
            else:
                os.symlink(foreign, name)
        except OSError:
            shutil.rmtree(os.path.join(state, "aside"), ignore_errors=True)
    """
).format(uid=SERVICE)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that other users can reach, unlike pytest's."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def state(place: Path) -> Path:
    directory = place / "state"
    directory.mkdir(mode=0o700)
    os.chown(directory, SERVICE, SERVICE)
    return directory


@pytest.fixture
def foreign(place: Path) -> Path:
    """A directory of root that holds the names of credentials."""
    directory = place / "foreign"
    directory.mkdir(mode=0o700)
    for name in ("member.pem", "precious"):
        (directory / name).write_text("of somebody else")
    return directory


@pytest.fixture
def swapper(state: Path, foreign: Path) -> Iterator[None]:
    with subprocess.Popen(
        [sys.executable, "-c", SWAPPER, str(state), str(foreign)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield
        process.kill()


def described(directory: Path) -> list[tuple[Any, ...]]:
    """Owner, mode and content of a directory and of all in it."""
    paths = [directory, *sorted(directory.iterdir())]
    stats = [path.lstat() for path in paths]
    contents = [path.read_text() if path.is_file() else "" for path in paths]
    return [
        (path.name, stat.st_uid, stat.st_gid, stat.st_mode, content)
        for path, stat, content in zip(paths, stats, contents, strict=True)
    ]


@pytest.fixture
def security(tmp_path: Path) -> Security:
    return Cluster(tmp_path, free_ports(2)).security("kitchen", CertificateRole.AGENT)


@pytest.mark.parametrize(
    "rounds",
    [12, *(pytest.param(60, id=f"shard{number}", marks=pytest.mark.proof) for number in range(BLOCKS))],
)
def test_a_swapped_link_never_has_root_change_another_directory(
    rounds: int, state: Path, foreign: Path, swapper: None, security: Security
) -> None:
    """Each round is a process of root, as `flowedge join --dir` is."""
    before, own = described(foreign), security.store
    written = 0
    for _ in range(rounds):
        child = os.fork()
        if child == 0:
            try:
                become_owner(state)
                CredentialStore.create(state, own.credentials, own.revoked)
            except (OSError, AccessError):
                os._exit(1)  # the user has broken its own directory, which is its own affair
            except BaseException:  # noqa: BLE001 (the child of a test must not go on with the test)
                os._exit(2)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code in (0, 1)
        written += code == 0
        assert described(foreign) == before
    print(f"{written} of {rounds} rounds wrote credentials")


def test_root_itself_does_not_write_there(state: Path, foreign: Path, security: Security) -> None:
    own = security.store
    before = described(foreign)
    with pytest.raises(AccessError, match=f"belongs to user {SERVICE}, and root does not write there"):
        CredentialStore.create(state, own.credentials, own.revoked)
    (state / "link").symlink_to(foreign)
    for path in (state / "link" / "member.pem", state / "link" / "deeper" / "member.pem"):
        with pytest.raises(AccessError, match="root does not write there"):
            private_files.write(path, b"x")
        with pytest.raises(AccessError, match="root does not write there"):
            private_files.make_directory(path.parent / "new")
        with pytest.raises(AccessError, match="root does not write there"):
            private_files.remove_directory(path.parent)
    assert described(foreign) == before


def test_the_owner_of_a_path(place: Path, state: Path, foreign: Path) -> None:
    service = Owner(SERVICE, SERVICE)
    assert owner_of(foreign) == owner_of(foreign / "not" / "there") == Owner(0, 0)
    assert owner_of(state) == owner_of(state / "a" / "b") == service
    (place / "of-root").symlink_to("state")
    (place / "of-user").symlink_to("foreign")
    os.lchown(place / "of-user", SERVICE, SERVICE)
    (place / "round").symlink_to("round")
    (foreign / "back").symlink_to("../state/x")
    assert owner_of(place / "of-root" / "x") == service
    assert owner_of(place / "of-user") == service  # the user can let it lead elsewhere
    assert owner_of(foreign / "back") == owner_of(foreign / ".." / "state") == service
    with pytest.raises(AccessError, match="more than 40 links"):
        owner_of(place / "round")


def test_a_command_of_root_joins_as_the_owner(state: Path, foreign: Path, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, free_ports(2))
    before = described(foreign)
    with enrolment_service(cluster):
        command = [sys.executable, "-m", "flowedge.cli.main", "join", "-", "--name", "kitchen"]
        joined = run_command([*command, "--dir", str(state)], input=cluster.token())
    assert joined.returncode == 0, joined.stderr
    assert "kitchen (agent) is a member of cluster home" in joined.stdout
    files = [state / "identity", *(state / "identity").iterdir()]
    assert len(files) == 5
    assert {(path.stat().st_uid, path.stat().st_mode & 0o777) for path in files} == {
        (SERVICE, 0o700),
        (SERVICE, 0o600),
    }
    assert described(foreign) == before


def test_a_refresh_by_root_leaves_the_files_of_a_service_alone(state: Path, tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, free_ports(2))
    source = cluster.member("kitchen", CertificateRole.AGENT) / "identity"
    source.rename(state / "identity")
    for path in (state / "identity", *(state / "identity").iterdir()):
        os.chown(path, SERVICE, SERVICE)
    before = described(state / "identity")
    store = CredentialStore.open(state)
    thief = CredentialStore.open(cluster.member("thief", CertificateRole.AGENT)).credentials.holder
    cluster.authority.revoke("thief", thief.not_before + (thief.not_after - thief.not_before) / 2)
    assert store.replace_revoked(cluster.authority.revocation_list(thief.not_before))
    assert thief.serial in store.revoked.serials
    assert described(state / "identity") == before
