"""Gateways as processes: `flowedge serve` in front of pipelines that tests have."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from tests.support.processes import START_S, FlowEdgeProcess, running

ANSWER_S = 60.0  # for a request of a test


class ServedGateway(ABC):
    """A gateway that takes requests."""

    @abstractmethod
    def client(self, **options: Any) -> httpx.Client:
        """Return an HTTP client of it."""

    def samples(self, key: str = "") -> dict[str, float]:
        """Return the samples of its metrics, by name and labels."""
        with self.client(headers={"authorization": f"Bearer {key}"} if key else {}) as client:
            answer = client.get("/metrics").raise_for_status()
        lines = [line for line in answer.text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


class GatewayProcess(FlowEdgeProcess, ServedGateway):
    """A gateway on loopback, with a state directory of its own; it reads no configuration file."""

    def __init__(
        self,
        *options: str,
        peers: Sequence[str] = (),
        settings: Mapping[str, Mapping[str, Any]] | None = None,
        listen: str = "127.0.0.1:0",
        environment: Mapping[str, str] | None = None,
        **launch: Any,
    ) -> None:
        """Prepare a gateway.

        Args:
            peers: address of a draft node, with those of its stages if it has no pipeline yet.
            settings: by section.
            launch: as in FlowEdgeProcess.
        """
        self.state = tempfile.TemporaryDirectory(prefix="flowedge-gateway-")
        place = ["--peers", ",".join(peers)] if peers else []
        if len(peers) > 1 and "--model" not in options:  # the pipeline may have to be set up
            place += ["--model", "bundled"]
        super().__init__(
            *("serve", "--listen", listen, "--config", os.devnull, "--exit-with-parent", *place, *options),
            environment={
                "FLOWEDGE_STATE_DIR": self.state.name,
                **_variables(settings or {}),
                **(environment or {}),
            },
            **launch,
        )

    def await_address(self) -> str:
        """Wait until the gateway has asked its pipelines how they are, and return its address."""
        address = super().await_address()
        self.line("models: ", after=self._started_at)
        return address

    @property
    def keys_file(self) -> Path:
        return Path(self.state.name) / "gateway-keys.json"

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    @property
    def host(self) -> tuple[str, int]:
        """Where to connect to."""
        host, _, port = self.address.rpartition(":")
        return host, int(port)

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=ANSWER_S, trust_env=False, **options)


@contextlib.contextmanager
def gateway_before(
    *peers: str, options: Sequence[str] = (), settings: Mapping[str, Mapping[str, Any]] | None = None
) -> Iterator[GatewayProcess]:
    """A gateway in front of a pipeline; it has ended when the context ends.

    Args:
        peers: as in GatewayProcess.
    """
    gateway = GatewayProcess(*options, peers=peers, settings=settings)
    with running(gateway):
        yield gateway


def refused_start(gateway: GatewayProcess) -> tuple[int, list[str]]:
    """Start a gateway that is to end by itself, and return its exit code and its lines."""
    gateway.start()
    try:
        code = gateway.wait(START_S)
    finally:
        gateway.kill()
    lines = gateway.lines
    gateway.remove()
    return code, lines


def _variables(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    return {
        f"FLOWEDGE_SERVE_{section}__{key}".upper(): value if isinstance(value, str) else json.dumps(value)
        for section, values in settings.items()
        for key, value in values.items()
    }
