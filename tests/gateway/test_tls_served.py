"""HTTPS by files."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import psutil
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from flowedge.core.errors import BadRequestError
from flowedge.gateway.config import ListenSettings
from flowedge.gateway.process import tls_context
from tests.gateway.http_sockets import connected, exchange, head, read_all
from tests.support.gateways import GatewayProcess, gateway_before

ASYNCIOS_OWN_S = 60.0  # its limit for a handshake if none is set


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gateway")])
    now = datetime.datetime.now(datetime.timezone.utc)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    chain, private = folder / "cert.pem", folder / "key.pem"
    chain.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    private.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return chain, private


@pytest.fixture(scope="module")
def gateway(files: tuple[Path, Path], cluster4: str) -> Iterator[GatewayProcess]:
    chain, key = files
    options = ["--tls-cert", str(chain), "--tls-key", str(key)]
    with gateway_before(cluster4, options=options) as started:
        yield started


def test_it_is_served_and_verified(gateway: GatewayProcess, files: tuple[Path, Path]) -> None:
    context = ssl.create_default_context(cafile=str(files[0]))
    with httpx.Client(verify=context, trust_env=False) as client:
        answer = client.get(f"https://{gateway.address}/v1/models")
    assert answer.status_code == 200
    gateway.line(f"page: https://{gateway.address}/")


def test_a_body_that_comes_after_its_refusal_does_not_take_the_answer_away(
    gateway: GatewayProcess, files: tuple[Path, Path]
) -> None:
    context = ssl.create_default_context(cafile=str(files[0]))
    size = 8 << 20
    with connected(gateway.host) as plain, context.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
        secure.sendall(head("POST", "/v1/completions", f"Content-Length: {size}"))
        secure.sendall(b" " * size)
        assert b" 413 " in secure.recv(4096)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
def test_old_versions_and_plain_http_are_refused(gateway: GatewayProcess, files: tuple[Path, Path]) -> None:
    context = ssl.create_default_context(cafile=str(files[0]))
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with httpx.Client(verify=context, trust_env=False) as client, pytest.raises(httpx.ConnectError):
        client.get(f"https://{gateway.address}/v1/models")
    with pytest.raises((IndexError, ValueError)):  # no HTTP comes back
        exchange(gateway.host, head("GET", "/v1/models"))


def test_handshakes_that_do_not_end_are_cut_off(cluster4: str, files: tuple[Path, Path]) -> None:
    chain, key = files
    options = ["--tls-cert", str(chain), "--tls-key", str(key)]
    settings = {"deadlines": {"headers_s": 0.5}}
    with (
        gateway_before(cluster4, options=options, settings=settings) as hasty,
        connected(hasty.host) as nothing,
        connected(hasty.host) as part,
    ):
        part.sendall(b"\x16\x03\x01\x02\x00\x01")
        for connection in (nothing, part):
            connection.settimeout(ASYNCIOS_OWN_S / 2)
            assert read_all(connection) == b""
        context = ssl.create_default_context(cafile=str(chain))
        with httpx.Client(verify=context, trust_env=False) as client:
            assert client.get(f"https://{hasty.address}/health/live").status_code == 200


def test_handshakes_take_the_share_of_their_address_and_make_way(
    cluster4: str, files: tuple[Path, Path]
) -> None:
    chain, key = files
    options = ["--tls-cert", str(chain), "--tls-key", str(key)]
    settings = {"limits": {"connections": 6, "connections_each": 4}, "deadlines": {"headers_s": 120}}
    with gateway_before(cluster4, options=options, settings=settings) as few, ExitStack() as held:
        silent = [held.enter_context(connected(few.host)) for _ in range(12)]
        context = ssl.create_default_context(cafile=str(chain))
        with httpx.Client(verify=context, trust_env=False) as client:
            assert client.get(f"https://{few.address}/v1/models").status_code == 200
        assert read_all(silent[0]) == b"", "the oldest made way"
        assert few.pid is not None
        sockets = [each for each in psutil.Process(few.pid).net_connections("tcp") if each.raddr]
        at_gateway = [each for each in sockets if each.laddr.port == few.host[1]]
        assert len(at_gateway) <= 4


def test_wrong_files_are_refused(files: tuple[Path, Path], tmp_path: Path) -> None:
    chain, _ = files
    with pytest.raises(BadRequestError, match="both --tls-cert and --tls-key"):
        tls_context(ListenSettings(tls_cert=chain))
    with pytest.raises(BadRequestError, match="PEM files"):
        tls_context(ListenSettings(tls_cert=chain, tls_key=chain))
    with pytest.raises(BadRequestError, match="No such file"):
        tls_context(ListenSettings(tls_cert=chain, tls_key=tmp_path / "none.pem"))
