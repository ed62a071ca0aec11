"""Certificates that the CA signs, and certificates that are refused; without clock and network."""

from __future__ import annotations

import datetime
from contextlib import nullcontext
from pathlib import Path

import pytest

from flowedge.cluster.authority import Authority
from flowedge.cluster.certificate_role import CALLERS, CertificateRole, may_call
from flowedge.cluster.certificates import (
    new_key,
    read_certificate,
    renewal_time,
    request_for,
    retry_delay,
    verify,
)
from flowedge.cluster.credentials import CredentialStore
from flowedge.cluster.join_token import JoinToken
from flowedge.cluster.member import fingerprint
from flowedge.cluster.revocation import newer, read_list
from flowedge.core.errors import AccessError, BadRequestError

NOW = datetime.datetime(2026, 5, 1, 12, tzinfo=datetime.timezone.utc)
MINUTE = datetime.timedelta(minutes=1)
DAY = datetime.timedelta(days=1)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "ca", "home", now=NOW)


def token(authority: Authority, role: CertificateRole = CertificateRole.AGENT, name: str = "") -> JoinToken:
    return authority.new_token(frozenset({role}), 15 * MINUTE, ["127.0.0.1:7443"], now=NOW, name=name)


def join(
    authority: Authority, name: str, role: CertificateRole = CertificateRole.AGENT
) -> CredentialStore | object:
    return authority.join(token(authority, role).secret, name, request_for(new_key()), NOW)


def test_a_token_can_be_used_once(authority: Authority, tmp_path: Path) -> None:
    made = token(authority)
    request = request_for(new_key())
    signed = authority.join(made.secret, "kitchen", request, NOW)
    holder = verify(read_certificate(signed.certificate), authority.certificate, NOW)
    assert (holder.member.name, holder.member.roles) == ("kitchen", {CertificateRole.AGENT})
    again = Authority.open(tmp_path / "ca")  # the service has been started again
    with pytest.raises(AccessError, match="used already"):
        again.join(made.secret, "garage", request, NOW)


def test_a_token_expires_and_is_for_one_name(authority: Authority) -> None:
    request = request_for(new_key())
    with pytest.raises(AccessError, match="expired"):
        authority.join(token(authority).secret, "kitchen", request, NOW + 16 * MINUTE)
    with pytest.raises(AccessError, match="not known"):
        authority.join(b"guess", "kitchen", request, NOW)
    named = token(authority, name="kitchen")
    with pytest.raises(AccessError, match="for kitchen, not for garage"):
        authority.join(named.secret, "garage", request, NOW)
    # A refusal does not use the token up.
    assert authority.join(named.secret, "", request, NOW).holder.member.name == "kitchen"


def test_a_name_is_taken_until_it_is_revoked(authority: Authority) -> None:
    join(authority, "kitchen")
    with pytest.raises(AccessError, match=r"named kitchen \(agent\) already"):
        join(authority, "kitchen")
    authority.revoke("kitchen", NOW)
    join(authority, "kitchen")
    with pytest.raises(BadRequestError, match="cannot be a name"):
        join(authority, "kitchen/../admin")


def test_a_token_of_text_is_the_token(authority: Authority) -> None:
    made = token(authority)
    assert JoinToken.decode(f" {made.encode()}\n") == made
    assert made.fingerprint == fingerprint(authority.certificate)
    for damaged in ("", "hello", made.encode()[:-9], made.encode().replace("flowedge1-", "flowedge2-")):
        with pytest.raises(BadRequestError, match="join token"):
            JoinToken.decode(damaged)


def test_a_certificate_of_another_cluster_is_refused_and_named(authority: Authority, tmp_path: Path) -> None:
    other = Authority.create(tmp_path / "other", "home", now=NOW)
    signed = other.join(token(other).secret, "kitchen", request_for(new_key()), NOW)
    with pytest.raises(AccessError, match=f"kitchen .* cluster {other.id}, not by {authority.id}"):
        verify(read_certificate(signed.certificate), authority.certificate, NOW)


def test_certificates_expire_and_clocks_that_are_wrong_are_named(authority: Authority) -> None:
    signed = authority.join(token(authority).secret, "kitchen", request_for(new_key()), NOW)
    certificate = read_certificate(signed.certificate)
    with pytest.raises(AccessError, match="expired"):
        verify(certificate, authority.certificate, NOW + 91 * DAY)
    with pytest.raises(AccessError, match="set the clocks"):
        verify(certificate, authority.certificate, NOW - DAY)


def test_a_request_has_to_be_of_the_keys_owner(authority: Authority) -> None:
    broken = bytearray(request_for(new_key()))
    broken[-1] ^= 1
    for request in (b"", b"nonsense", bytes(broken)):
        with pytest.raises(AccessError, match="signing request"):
            authority.join(token(authority).secret, "kitchen", request, NOW)


def test_revoked_certificates_are_on_a_signed_list_that_only_grows(
    authority: Authority, tmp_path: Path
) -> None:
    signed = authority.join(token(authority).secret, "kitchen", request_for(new_key()), NOW)
    before = read_list(authority.revocation_list(NOW), authority.certificate)
    before.check(signed.holder)
    (revoked,) = authority.revoke("kitchen", NOW)
    after = newer(before, read_list(authority.revocation_list(NOW), authority.certificate), 90 * DAY, NOW)
    with pytest.raises(AccessError, match=f"{revoked.serial:x}, has been revoked"):
        after.check(signed.holder)
    with pytest.raises(AccessError, match="older"):
        newer(after, before, 90 * DAY, NOW)
    other = Authority.create(tmp_path / "other", "home", now=NOW)
    with pytest.raises(AccessError, match="not signed by this cluster"):
        read_list(other.revocation_list(NOW), authority.certificate)
    with pytest.raises(AccessError, match="revoked"):
        authority.renew(signed.holder, request_for(new_key()), NOW)
    with pytest.raises(BadRequestError, match="no valid certificate"):
        authority.revoke("kitchen", NOW)


def test_files_are_private_and_nothing_is_overwritten(authority: Authority, tmp_path: Path) -> None:
    state = tmp_path / "ca"
    assert state.stat().st_mode & 0o777 == 0o700
    for path in state.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
    with pytest.raises(BadRequestError, match="nothing was changed"):
        Authority.create(state, "home", now=NOW)
    assert Authority.open(state).id == authority.id
    (state / "identity" / "member.pem").chmod(0o644)
    with pytest.raises(AccessError, match="chmod 600"):
        CredentialStore.open(state)


def test_a_certificate_is_renewed_after_two_thirds_and_retried_faster_near_its_end(
    authority: Authority,
) -> None:
    holder = authority.join(token(authority).secret, "kitchen", request_for(new_key()), NOW).holder
    assert renewal_time(holder) == NOW + 60 * DAY
    assert renewal_time(holder) <= renewal_time(holder, 0.999) < NOW + 70 * DAY
    assert retry_delay(holder, NOW + 61 * DAY) == datetime.timedelta(hours=1)
    assert retry_delay(holder, NOW + 90 * DAY - 10 * MINUTE) == datetime.timedelta(seconds=30)
    assert retry_delay(holder, NOW + 100 * DAY) == datetime.timedelta(seconds=1)


def test_what_nobody_was_given_is_refused() -> None:
    assert not any(may_call("/flowedge.v1.Agent/Anything", frozenset({role})) for role in CertificateRole)
    assert may_call("/flowedge.v1.Agent/BecomeStage", frozenset({CertificateRole.DRAFT_NODE}))
    assert not may_call("/flowedge.v1.Agent/BecomeStage", frozenset({CertificateRole.AGENT}))
    assert not may_call("/flowedge.v1.Agent/BecomeStage", frozenset({CertificateRole.CLIENT}))
    assert not any(CertificateRole.AUTHORITY in roles for roles in CALLERS.values())


def test_every_rpc_of_the_agent_has_its_roles() -> None:
    from flowedge.v1 import agent_pb2, generation_pb2, measure_pb2, pipeline_pb2, weights_pb2

    for module in (agent_pb2, generation_pb2, measure_pb2, pipeline_pb2, weights_pb2):
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                assert f"/{service.full_name}/{method.name}" in CALLERS


@pytest.mark.parametrize("name", ["key.pem", "certificate.pem", "ledger.sqlite3"])
def test_damaged_files_of_the_ca_are_named(authority: Authority, tmp_path: Path, name: str) -> None:
    damaged = tmp_path / "ca" / "authority" / name
    for content in (b"", bytes(5000)):
        damaged.write_bytes(content)
        with pytest.raises(AccessError, match=r"authority.* restore it from a copy"):
            Authority.open(tmp_path / "ca")
    with pytest.raises(AccessError) if name == "ledger.sqlite3" else nullcontext():
        authority.certificates()
