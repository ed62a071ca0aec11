"""A device keeps its id over restarts, and two agents never share one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flowedge.agent.device_info import ID_FILE, DeviceId
from flowedge.core.errors import DeviceError
from flowedge.device.state_dir import state_dir


def test_the_id_is_the_same_at_the_next_start(tmp_path: Path) -> None:
    first = DeviceId.claim(lambda: tmp_path / "state")
    first.release()
    again = DeviceId.claim(lambda: tmp_path / "state")
    again.release()
    assert again.value == first.value
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700


def test_two_agents_at_once_have_two_ids(tmp_path: Path) -> None:
    first = DeviceId.claim(lambda: tmp_path)
    second = DeviceId.claim(lambda: tmp_path)
    assert first.value != second.value
    assert second.lock is None
    first.release()
    third = DeviceId.claim(lambda: tmp_path)
    third.release()
    assert third.value == first.value


@pytest.mark.parametrize("content", ["", "\n", "not an id", "../../etc/passwd"])
def test_a_file_without_an_id_is_replaced(
    content: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / ID_FILE).write_text(content)
    claimed = DeviceId.claim(lambda: tmp_path)
    claimed.release()
    assert (tmp_path / ID_FILE).read_text().strip() == claimed.value
    assert "holds no id" in caplog.text


def test_a_directory_that_cannot_be_used_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    assert DeviceId.claim(lambda: tmp_path / "file" / "state").lock is None
    assert "FLOWEDGE_STATE_DIR" in caplog.text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for another user")
def test_root_starts_in_the_directory_of_another_user(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a container, whose volume belongs to a user of the host."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    os.chown(state, 64_321, 64_321)
    assert DeviceId.claim(lambda: state).lock is None
    assert "root does not write there" in caplog.text
    assert not (state / ID_FILE).exists()


def test_where_state_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert state_dir({"FLOWEDGE_STATE_DIR": "/a", "STATE_DIRECTORY": "/b"}) == Path("/a")
    assert state_dir({"STATE_DIRECTORY": "/b:/c"}) == Path("/b")
    monkeypatch.setenv("HOME", "/home/pi")
    assert state_dir({}) == Path("/home/pi/.local/state/flowedge")


def test_a_device_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home(path: Path) -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "expanduser", no_home)
    with pytest.raises(DeviceError, match="FLOWEDGE_STATE_DIR"):
        state_dir({})
