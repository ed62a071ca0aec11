"""Attacks on the CA's service: false signing requests, guessed tokens, renewals without end."""

from __future__ import annotations

import datetime
import random
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID

from flowedge.cluster.authority import RENEWALS, Authority
from flowedge.cluster.certificate_role import CertificateRole
from flowedge.cluster.certificates import new_key, pem_of, request_for, requested_key
from flowedge.cluster.credentials import CredentialStore
from flowedge.cluster.join_throttle import JoinThrottle
from flowedge.cluster.join_token import JoinToken
from flowedge.cluster.member import CertificateHolder, authority_name
from flowedge.cluster.member_ledger import MemberLedger, TokenGrant
from flowedge.core.errors import AccessError
from flowedge.v1 import cluster_pb2 as pb
from flowedge.v1 import cluster_pb2_grpc as rpc
from tests.cluster.clusters import Cluster, enrolment_service, now
from tests.support.free_ports import free_ports
from tests.support.processes import FlowEdgeProcess

DAY = datetime.timedelta(days=1)
MINUTE = datetime.timedelta(minutes=1)
P256 = bytes.fromhex("06082a8648ce3d030107")  # the curve's object identifier in DER
ANSWER_S = 30.0
MUTATIONS = 4000

pytestmark = pytest.mark.usefixtures("service")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path, "home", now=now() - 400 * DAY)


def signing_request(key: rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey) -> bytes:
    digest = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return builder.sign(key, digest).public_bytes(serialization.Encoding.DER)


def full_request() -> bytes:
    """A request with a name and extensions, for mutations of those."""
    names = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kitchen")])
    builder = x509.CertificateSigningRequestBuilder().subject_name(names)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=3), critical=True)
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("x.y")]), critical=False)
    return builder.sign(new_key(), hashes.SHA256()).public_bytes(serialization.Encoding.DER)


def off_the_curve(request: bytes) -> bytes:
    point = request.index(b"\x04", request.index(P256))
    return request[: point + 10] + bytes(20) + request[point + 30 :]


ALGORITHM = bytes.fromhex("06072a8648ce3d0201")
WRONG: dict[str, Callable[[bytes], bytes]] = {
    "unknown curve": lambda good: good.replace(P256, P256[:-1] + b"\x63"),
    "unknown algorithm": lambda good: good.replace(ALGORITHM, ALGORITHM[:-1] + b"\x63"),
    "another curve": lambda _: signing_request(ec.generate_private_key(ec.SECP384R1())),
    "curve of coins": lambda _: signing_request(ec.generate_private_key(ec.SECP256K1())),
    "point off the curve": off_the_curve,
    "edwards": lambda _: signing_request(ed25519.Ed25519PrivateKey.generate()),
    "rsa": lambda _: signing_request(rsa.generate_private_key(public_exponent=65537, key_size=2048)),
    "empty": lambda _: b"",
    "long": lambda good: good + bytes(1 << 20),
    "deep": lambda _: b"\x30\x80" * 2000,
    "signature of another": lambda good: good[:-8] + bytes(8),
}


def wrong_request(name: str) -> bytes:
    return WRONG[name](request_for(new_key()))


@pytest.mark.parametrize("name", WRONG)
def test_a_false_signing_request_is_refused(name: str) -> None:
    with pytest.raises(AccessError, match="signing request"):
        requested_key(wrong_request(name))


def test_mutated_signing_requests_are_read_or_refused() -> None:
    chance, accepted = random.Random(1), 0
    sources = [request_for(new_key()), full_request(), wrong_request("rsa"), wrong_request("another curve")]
    for _ in range(MUTATIONS):
        data = bytearray(chance.choice(sources))
        for _ in range(chance.choice((1, 1, 2, 5))):
            place = chance.randrange(len(data))
            match chance.randrange(4):
                case 0:
                    data[place] ^= 1 << chance.randrange(8)
                case 1:
                    data[place] = chance.choice((0, 0x7F, 0x80, 0x84, 0xFF, 0x30, 0x06))
                case 2:
                    del data[place : place + chance.choice((1, 2, 16))]
                case _:
                    data[place:place] = chance.randbytes(chance.choice((1, 4, 64)))
            data = data or bytearray(1)
        try:
            requested_key(bytes(data))
            accepted += 1
        except AccessError as error:
            assert str(error).isprintable()
    assert accepted < MUTATIONS // 10


def connected(cluster: Cluster) -> grpc.Channel:
    """A channel to the enrolment service over TLS."""
    tls = grpc.ssl_channel_credentials(pem_of(cluster.authority.certificate))
    options = [("grpc.ssl_target_name_override", authority_name(cluster.authority.id))]
    return grpc.secure_channel(cluster.address, tls, options=options)


def joined(cluster: Cluster, secret: bytes, request: bytes) -> tuple[grpc.StatusCode, str]:
    """Join once; return the status and its details."""
    asked = pb.JoinRequest(secret=secret, name="x", signing_request=request)
    with connected(cluster) as channel:
        try:
            rpc.EnrolmentStub(channel).Join(asked, timeout=ANSWER_S)
        except grpc.RpcError as error:
            status, details = error.code(), str(error.details())
            assert status != grpc.StatusCode.PERMISSION_DENIED or "\n" not in details
            return status, details
    return grpc.StatusCode.OK, ""


def test_guessing_is_throttled_and_a_right_token_waits_seconds(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, free_ports(2))
    with enrolment_service(cluster) as service:
        token = JoinToken.decode(cluster.token())
        unknown = wrong_request("unknown curve")
        assert joined(cluster, bytes(24), unknown)[0] == grpc.StatusCode.PERMISSION_DENIED
        good = request_for(new_key())
        answers = [joined(cluster, bytes([number]) * 24, good)[1] for number in range(60)]
        judged = sum("not known to this cluster" in answer for answer in answers)
        refused = sum("too many attempts to join from" in answer for answer in answers)
        assert judged + refused == 60
        assert 5 <= judged <= 12  # five of them, and a few whose wait was over
        service.line("refused flowedge.v1.Enrolment/Join", "not known to this cluster")
        service.line("may try to join again in")
        waiting = threading.Event()
        for _ in range(120):
            if joined(cluster, token.secret, good)[0] == grpc.StatusCode.OK:
                break
            waiting.wait(0.5)
        else:
            pytest.fail("the right token was locked out for a minute")


def test_waits_grow_are_bounded_and_take_bounded_memory() -> None:
    throttle, at = JoinThrottle(), 0.0
    waits = []
    for _ in range(20):
        waits.append(throttle.failed("a", at))
        at += waits[-1]
        assert throttle.wait_s("a", at) == 0
    assert waits[:5] == [0] * 5 and waits[5:11] == [1, 2, 4, 8, 16, 30] and waits[-1] == 30
    assert throttle.wait_s("a", at - 1) == 1  # which does not change, however often it is asked
    throttle.joined("a")
    assert throttle.failed("a", at) == 0
    for number in range(20_000):
        throttle.failed(str(number), at)
    assert len(throttle) == 4096
    for _ in range(6):
        throttle.failed("b", at)
    assert throttle.failed("b", at + 601) == 0  # forgotten after ten minutes


def member(authority: Authority, name: str, at: datetime.datetime) -> CertificateHolder:
    secret = authority.new_token(frozenset({CertificateRole.AGENT}), MINUTE, ["x:1"], now=at).secret
    return authority.join(secret, name, request_for(new_key()), at).holder


def test_a_member_renews_when_it_is_due_and_not_often(authority: Authority) -> None:
    present, request = now(), request_for(new_key())
    fresh = member(authority, "fresh", present)
    with pytest.raises(AccessError, match="is not due: it can be renewed from"):
        authority.renew(fresh, request, present + 44 * DAY)
    assert authority.renew(fresh, request, present + 60 * DAY)
    old = member(authority, "old", present - 60 * DAY)
    accepted = 0
    for _ in range(850):
        try:
            authority.renew(old, request, present)
            accepted += 1
        except AccessError as error:
            assert "try again after" in str(error)
    assert accepted == RENEWALS
    assert authority.renew(old, request, present + DAY)  # a reply was lost: the next day is early enough


def test_revocation_is_of_the_member(authority: Authority) -> None:
    present = now()
    first = member(authority, "thief", present - 60 * DAY)
    spare = authority.new_token(frozenset({CertificateRole.AGENT}), DAY, ["x:1"], now=present - MINUTE).secret
    second = authority.renew(first, request_for(new_key()), present - MINUTE).holder
    other = member(authority, "honest", present - 60 * DAY)
    revoked = authority.revoke(f"{first.serial:x}", present)
    assert {each.serial for each in revoked} == {first.serial, second.serial}
    for holder in (first, second):
        with pytest.raises(AccessError, match="revoked"):
            authority.renew(holder, request_for(new_key()), present + 50 * DAY)
    with pytest.raises(AccessError, match="after the join token was made; make a new token"):
        authority.join(spare, "thief", request_for(new_key()), present + MINUTE)
    assert authority.renew(other, request_for(new_key()), present)
    assert member(authority, "thief", present + MINUTE).serial not in {first.serial, second.serial}


def test_the_ledger_does_not_grow_without_bound(authority: Authority) -> None:
    at = now() - 300 * DAY
    holder = member(authority, "kitchen", at)
    for _ in range(40):
        at += 50 * DAY
        holder = authority.renew(holder, request_for(new_key()), at).holder
        member(authority, f"visitor-{at:%Y%m%d}", at)
    assert len(authority.certificates()) < 10


def test_a_ledger_of_a_former_version_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "CREATE TABLE settings (key TEXT PRIMARY KEY, value TEXT NOT NULL);"
            "CREATE TABLE tokens (hash TEXT PRIMARY KEY, role TEXT NOT NULL, name TEXT NOT NULL,"
            " expires REAL NOT NULL, used REAL);"
            "CREATE TABLE certificates (serial TEXT PRIMARY KEY, role TEXT NOT NULL, name TEXT NOT NULL,"
            " issued REAL NOT NULL, expires REAL NOT NULL, revoked REAL);"
            f"INSERT INTO tokens VALUES ('h', 'agent', '', {(now() + DAY).timestamp()}, NULL);"
        )
    for _ in range(2):
        ledger = MemberLedger.open(path)
    with ledger.transaction() as transaction:
        transaction.bar("kitchen", now())
        transaction.add_token("i", TokenGrant(frozenset({CertificateRole.AGENT}), ""), now(), now() + DAY)
        made = transaction.use_token("h", now()).created
        assert made is not None and made.year == 1970
        assert transaction.use_token("i", now()).created is not None


def test_the_service_answers_while_the_ledger_is_locked(cluster: Cluster) -> None:
    """Another process holds the ledger's lock; the first join waits for it, and other callers are served."""
    token = JoinToken.decode(cluster.token())
    with (
        closing(sqlite3.connect(cluster.ca / "authority" / "ledger.sqlite3", isolation_level=None)) as ledger,
        connected(cluster) as channel,
    ):
        stub = rpc.EnrolmentStub(channel)
        stub.Authority(pb.AuthorityRequest(), timeout=ANSWER_S)
        ledger.execute("BEGIN EXCLUSIVE")
        asked = pb.JoinRequest(secret=token.secret, name="late", signing_request=request_for(new_key()))
        joining = stub.Join.future(asked, timeout=ANSWER_S)
        for _ in range(20):
            assert stub.Authority(pb.AuthorityRequest(), timeout=2.0).certificate
        assert not joining.done()
        ledger.execute("ROLLBACK")
        assert joining.result(ANSWER_S).certificate


def test_a_member_can_fill_neither_ledger_nor_log_over_the_network(
    cluster: Cluster, service: FlowEdgeProcess
) -> None:
    state = cluster.member("greedy", CertificateRole.AGENT, now() - 60 * DAY)
    own = CredentialStore.open(state).credentials
    tls = grpc.ssl_channel_credentials(own.authority_pem, own.key_pem, own.certificate_pem)
    options = [("grpc.ssl_target_name_override", authority_name(own.cluster_id))]
    accepted, refused = 0, 0
    with grpc.secure_channel(f"127.0.0.1:{cluster.port + 1}", tls, options=options) as channel:
        stub = rpc.RenewalStub(channel)
        for _ in range(50):
            try:
                asked = pb.RenewRequest(signing_request=request_for(new_key()))
                stub.Renew(asked, timeout=ANSWER_S)
                accepted += 1
            except grpc.RpcError as error:
                assert error.code() == grpc.StatusCode.PERMISSION_DENIED
                refused += 1
    assert (accepted, refused) == (RENEWALS, 50 - RENEWALS)
    service.line("refused flowedge.v1.Renewal/Renew from greedy (agent)", "try again after")
    assert sum("refused flowedge.v1.Renewal/Renew" in line for line in service.lines) == 1
    revoked = cluster.authority.revoke(f"{own.holder.serial:x}", now())
    assert len(revoked) == RENEWALS + 1
