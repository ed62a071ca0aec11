"""The file of keys, and who is let in."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from flowedge.core.errors import AccessError, BadRequestError
from flowedge.gateway.access import gatekeeper
from flowedge.gateway.access.caller import ApiCaller
from flowedge.gateway.access.gatekeeper import Gatekeeper
from flowedge.gateway.access.keys import KeyFile, KeyLimits, digest_of, find_key
from flowedge.gateway.errors import ApiError


@pytest.fixture
def file(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path / "state" / "keys.json")


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


def test_the_file_has_hashes_only_and_is_private(file: KeyFile) -> None:
    secret = file.add("anna", "batch", KeyLimits(concurrent=2))
    assert secret.startswith("fe-") and len(secret) == 3 + 43
    assert secret not in file.path.read_text()
    assert file.path.stat().st_mode & 0o777 == 0o600
    (key,) = file.read()
    assert (key.name, key.priority, key.limits) == ("anna", "batch", KeyLimits(concurrent=2))
    assert find_key(file.read(), secret) == key
    assert find_key(file.read(), secret[:-1]) is None


def test_names_are_unique_and_checked(file: KeyFile) -> None:
    file.add("anna", "normal", KeyLimits())
    with pytest.raises(BadRequestError, match="there is a key 'anna'"):
        file.add("anna", "normal", KeyLimits())
    with pytest.raises(BadRequestError, match="printable"):
        file.add("a\nb", "normal", KeyLimits())
    with pytest.raises(BadRequestError, match="there are: anna"):
        file.remove("berta")
    file.remove("anna")
    assert file.read() == ()


def test_a_file_that_others_can_read_or_that_is_damaged_is_refused(file: KeyFile) -> None:
    file.add("anna", "normal", KeyLimits())
    file.path.chmod(0o644)
    with pytest.raises(AccessError, match="chmod 600"):
        file.read()
    file.path.chmod(0o600)
    for content in ("", "[]", '{"keys": [{"name": "a"}]}', '{"keys": 7}', '{"keys": [{"limits": {"a": 1}}]}'):
        file.path.write_text(content)
        with pytest.raises(AccessError, match="damaged"):
            file.read()


@pytest.mark.parametrize(
    ("mode", "local", "made", "required"),
    [
        ("auto", True, False, False),
        ("auto", True, True, True),
        ("auto", False, True, True),
        ("required", True, True, True),
        ("off", False, True, False),
    ],
)
def test_when_a_key_is_required(file: KeyFile, mode: str, local: bool, made: bool, required: bool) -> None:
    if made:
        file.add("anna", "normal", KeyLimits())
    keeper = Gatekeeper(mode, file, local=local)  # type: ignore[arg-type]
    assert keeper.required == required
    found = keeper.caller_of({})
    assert isinstance(found, ApiError if required else ApiCaller)


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_without_a_key_it_does_not_listen_beyond_loopback(file: KeyFile, mode: str) -> None:
    with pytest.raises(BadRequestError, match=r"flowedge serve keys add NAME.*--no-keys"):
        Gatekeeper(mode, file, local=False)  # type: ignore[arg-type]


def test_both_headers_are_taken_and_wrong_keys_refused(file: KeyFile) -> None:
    secret = file.add("anna", "interactive", KeyLimits())
    keeper = Gatekeeper("auto", file, local=False)
    for headers in (bearer(secret), {"authorization": f"bearer {secret}"}, {"x-api-key": secret}):
        found = keeper.caller_of(headers)
        assert isinstance(found, ApiCaller)
        assert (found.name, found.priority) == ("anna", "interactive")
        assert found.tenant == digest_of(secret), "of the key; another key of this name is another tenant"
    for headers, code in (
        ({}, "missing_api_key"),
        ({"authorization": secret}, "missing_api_key"),
        (bearer(""), "missing_api_key"),
        (bearer(secret + "x"), "invalid_api_key"),
        ({"x-api-key": "é"}, "invalid_api_key"),
    ):
        refused = keeper.caller_of(headers)
        assert isinstance(refused, ApiError)
        assert (refused.status, refused.code) == (401, code)
        assert refused.headers["www-authenticate"] == "Bearer"


def test_a_changed_file_is_read_again(file: KeyFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gatekeeper, "_LOOK_S", 0.0)
    first = file.add("anna", "normal", KeyLimits())
    keeper = Gatekeeper("auto", file, local=True)
    second = file.add("berta", "normal", KeyLimits())
    assert isinstance(keeper.caller_of(bearer(second)), ApiCaller)
    file.remove("anna")
    assert isinstance(keeper.caller_of(bearer(first)), ApiError)
    assert isinstance(keeper.caller_of(bearer(second)), ApiCaller)
    file.path.write_text("damaged")
    assert isinstance(keeper.caller_of(bearer(second)), ApiCaller), "the keys so far stay"


def test_removing_the_last_key_lets_nobody_in(file: KeyFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gatekeeper, "_LOOK_S", 0.0)
    secret = file.add("anna", "normal", KeyLimits())
    keeper = Gatekeeper("auto", file, local=True)
    file.remove("anna")
    assert isinstance(keeper.caller_of(bearer(secret)), ApiError)
    assert isinstance(keeper.caller_of({}), ApiError)


def test_the_content_is_what_the_documents_say(file: KeyFile) -> None:
    before = time.time()
    file.add("anna", "normal", KeyLimits(tokens_per_day=7))
    (entry,) = json.loads(file.path.read_text())["keys"]
    assert entry["created"] >= before
    assert len(bytes.fromhex(entry["digest"])) == 32
    assert entry["limits"]["tokens_per_day"] == 7
    assert os.listdir(file.path.parent) == ["keys.json"]  # noqa: PTH208
