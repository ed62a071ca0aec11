"""The secret of a command: who has it, who asks for it, and who is told."""

from __future__ import annotations

import pytest

from flowedge.cluster.process import (
    VARIABLE,
    Security,
    forget_started_agents,
    process_secret,
    security_for,
    speak_plaintext_to,
)
from flowedge.cluster.settings import SecuritySettings
from flowedge.cluster.tls.serving import SecretCheck, check_of, guard_of
from tests.support.seams import set_own_security

AGENT = "127.0.0.1:4242"


def test_an_agent_of_a_command_asks_for_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "s3cret")
    security = Security.load_for_agent(SecuritySettings())
    assert (security.store, security.secret) == (None, "s3cret")
    assert guard_of(security) is None
    assert isinstance(check_of(security, None), SecretCheck)


def test_an_agent_of_its_own_asks_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    security = Security.load_for_agent(SecuritySettings())
    assert security.secret == ""
    assert check_of(security, None) is None


def test_the_secret_goes_to_own_agents_only_while_they_run(monkeypatch: pytest.MonkeyPatch) -> None:
    set_own_security(monkeypatch, None)
    assert security_for(AGENT, None).secret == ""
    speak_plaintext_to([AGENT])
    try:
        assert security_for(AGENT, None).secret == process_secret()
        assert len(process_secret()) >= 32
        chosen = Security(None)
        assert security_for(AGENT, chosen) is chosen
    finally:
        forget_started_agents([AGENT])
    assert security_for(AGENT, None).secret == ""
