"""The settings of a gateway, in the groups that are the sections of its file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from flowedge.agent.agent_config import LogSettings
from flowedge.agent.config_loading import SERVE_PREFIX, ConfigDeclaration
from flowedge.agent.config_rendering import ConfigDocuments
from flowedge.cluster.settings import SecuritySettings
from flowedge.core.errors import BadRequestError
from flowedge.core.settings_group import Seconds, SettingsGroup, checked_by, setting
from flowedge.device.state_dir import state_dir
from flowedge.network.address import host_ip, is_loopback, join_address

KEYS_FILE = "gateway-keys.json"


def _checked_listen(address: str) -> str:
    host, _, port = address.rpartition(":")
    if not (host and port.isascii() and port.isdigit() and int(port) < 65536):
        raise BadRequestError(f"{address!r} is not an address of the form ADDRESS:PORT")
    return join_address(host_ip(host.removeprefix("[").removesuffix("]")), int(port))


Listen = Annotated[str, checked_by(_checked_listen)]
Count = Annotated[int, Field(ge=1, le=1 << 20)]
Bytes = Annotated[int, Field(ge=1024, le=1 << 30)]


class ListenSettings(SettingsGroup):
    """Where and how the gateway listens."""

    listen: Listen = setting(
        "127.0.0.1:8000",
        "Address and port to listen at; 0.0.0.0:8000 for all networks, port 0 for a free port.",
    )
    tls_cert: Path | None = setting(
        None, "File of the certificate chain, PEM, for HTTPS.", examples=["/etc/flowedge/tls/cert.pem"]
    )
    tls_key: Path | None = setting(
        None, "File of the certificate's private key, PEM.", examples=["/etc/flowedge/tls/key.pem"]
    )
    root_path: Annotated[str, Field(pattern=r"^(/[A-Za-z0-9._~-]+)*$")] = setting(
        "", "Path below which a proxy offers the gateway, such as /llm; the proxy takes it off."
    )
    trusted_proxies: tuple[str, ...] = setting(
        (), "Addresses or networks of proxies whose X-Forwarded-For and X-Forwarded-Proto are believed."
    )
    allowed_hosts: tuple[str, ...] = setting(
        (),
        "Further names that requests may call this machine by. On loopback, a request whose Host header is "
        "neither such a name nor loopback is refused.",
    )
    cors_origins: tuple[str, ...] = setting(
        (), "Origins of other web sites whose pages may use the gateway, such as https://chat.example."
    )

    @property
    def is_local(self) -> bool:
        """Whether only this machine can connect."""
        host, _, port = self.listen.rpartition(":")
        return is_loopback(f"{host}:{port if port != '0' else '1'}")

    @property
    def host(self) -> str:
        return self.listen.rpartition(":")[0].removeprefix("[").removesuffix("]")

    @property
    def port(self) -> int:
        return int(self.listen.rpartition(":")[2])


class PoolSettings(SettingsGroup):
    """The pipelines."""

    file: Path | None = setting(
        None,
        "TOML file of the pipelines; see docs/gateway.md. Without it: --peers, --stages or the agents that "
        "are found.",
        examples=["/etc/flowedge/pipelines.toml"],
    )
    ask_s: Seconds = setting(5.0, "Seconds between two questions to a draft node how it is.")
    ask_limit_s: Seconds = setting(5.0, "Time for a draft node to answer such a question.")
    requests_each: Count = setting(
        12,
        "Maximum number of answers at one draft node at the same time, less than its "
        "limits.sessions_per_caller; further ones wait in the gateway.",
    )
    queue_s: Seconds = setting(
        120.0,
        "Time that a request waits in the gateway, for room or for a pipeline that has lost a device; time "
        "that an answer waits to go on.",
    )
    most_ask_s: Seconds = setting(
        60.0,
        "Longest time after which a pipeline is asked again that needs a person; one that has lost a device "
        "is asked after ask_s at most.",
    )


class AccessSettings(SettingsGroup):
    """Who may use the gateway."""

    keys: Literal["auto", "required", "off"] = setting(
        "auto",
        'API keys: "required"; "off": anyone who can connect may use the gateway; "auto": required beyond '
        "loopback, and everywhere once a key was made.",
    )
    keys_file: Path | None = setting(
        None,
        f"File of the keys. Default: {KEYS_FILE} in the state directory.",
        examples=[f"/var/lib/flowedge-serve/{KEYS_FILE}"],
    )
    open_metrics: bool = setting(
        False, "Show /metrics without a key also where the gateway listens beyond loopback."
    )

    @property
    def keys_path(self) -> Path:
        return self.keys_file or state_dir() / KEYS_FILE


class GatewayLimits(SettingsGroup):
    """How much the gateway accepts."""

    connections: Count = setting(
        4096, "Maximum number of open connections; fewer where the system's file descriptors are."
    )
    connections_each: Count = setting(
        1024,
        "Maximum number of open connections of one address, or of one /64 network of IPv6; a trusted proxy "
        "has no such limit.",
    )
    requests: Count = setting(256, "Maximum number of requests that are answered at the same time.")
    body_bytes: Bytes = setting(4 << 20, "Maximum bytes of a request's body.")
    header_bytes: Bytes = setting(32 << 10, "Maximum bytes of a request line with its headers.")
    headers: Count = setting(100, "Maximum number of headers of a request.")
    joinable_answers: Count = setting(
        64, "Maximum number of answers that are kept for requests with the same Idempotency-Key."
    )
    joinable_bytes: Bytes = setting(
        16 << 20, "Maximum bytes of these answers together; an answer that is larger is not kept."
    )
    strict: bool = setting(
        False,
        "Refuse requests with parameters that are unknown or change nothing, instead of ignoring these "
        "parameters and naming them in the header x-flowedge-ignored.",
    )


class GatewayDeadlines(SettingsGroup):
    """Time limits, in seconds."""

    headers_s: Seconds = setting(
        10.0,
        "Time for a request line with its headers, from its first byte, for the first byte of a new "
        "connection, and for a TLS handshake.",
    )
    body_s: Seconds = setting(30.0, "Time for a request's body.")
    idle_s: Seconds = setting(75.0, "Time after which a connection is closed that sends no further request.")
    write_s: Seconds = setting(
        30.0, "Time for which a client may not read what is sent; then its connection and request end."
    )
    answer_s: Seconds = setting(600.0, "Maximum time for an answer, with its wait for room.")
    comment_s: Seconds = setting(10.0, "Time without output after which a stream carries a comment line.")
    abandoned_s: Seconds = setting(
        30.0,
        "Time for which an answer with an Idempotency-Key runs on when its client has gone, for a request "
        "that joins it.",
    )
    joinable_s: Seconds = setting(300.0, "Time for which such an answer is kept when it is complete.")
    drain_s: float = setting(
        20.0,
        "Time for running answers to end when the gateway is told to stop; systemd's TimeoutStopSec must be "
        "10 s longer.",
        ge=0,
        le=3600,
    )


class GatewaySettings(BaseModel):
    """What a gateway is run with."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    http: ListenSettings = ListenSettings()
    pipelines: PoolSettings = PoolSettings()
    access: AccessSettings = AccessSettings()
    limits: GatewayLimits = GatewayLimits()
    deadlines: GatewayDeadlines = GatewayDeadlines()
    security: SecuritySettings = SecuritySettings()
    log: LogSettings = LogSettings()


GATEWAY_FORM = ConfigDeclaration(
    GatewaySettings, "flowedge serve", Path("/etc/flowedge/serve.toml"), SERVE_PREFIX
)
GATEWAY_DOCUMENTS = ConfigDocuments(
    GATEWAY_FORM,
    "How this machine's FlowEdge gateway runs",
    Path("device_agents/serve.toml"),
    Path("docs/gateway.md"),
    ("http", "listen"),
)

if __name__ == "__main__":
    GATEWAY_DOCUMENTS.write()
