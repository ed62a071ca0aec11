"""The identity that this process acts under: an agent's, or that of the person who runs a command."""

from __future__ import annotations

import datetime
import logging
import threading
from collections.abc import Iterable
from pathlib import Path

from flowedge.core.errors import AccessError, BadRequestError
from flowedge.net.address import is_loopback, join_address
from flowedge.security.credentials.certificate_role import LEADERS, CertificateRole
from flowedge.security.credentials.certificates import check_time
from flowedge.security.credentials.credentials import CredentialStore
from flowedge.security.settings import SecuritySettings
from flowedge.system.state_dir import state_dir

_log = logging.getLogger(__name__)


class Security:
    """What is shown to others, and asked of them. Without a store there is no identity."""

    def __init__(self, store: CredentialStore | None, *, insecure: bool = False) -> None:
        self.store = store
        self.insecure = insecure

    @classmethod
    def load(cls, settings: SecuritySettings) -> Security:
        """The identity of a directory, if there is one. AccessError when its files are no good."""
        state = Path(settings.cluster_dir) if settings.cluster_dir else state_dir()
        if settings.insecure:
            _log.warning(
                "--insecure: all connections are in plaintext; whoever is on the network can read them and "
                "use this device"
            )
            return cls(None, insecure=True)
        if CredentialStore.exists(state):
            return cls(CredentialStore.open(state))
        if settings.cluster_dir:
            raise BadRequestError(
                f"there is no identity in {state}; `flowedge join TOKEN --dir {state}` makes one"
            )
        return cls(None)

    @property
    def cluster(self) -> str:
        """The id of the cluster; empty without one."""
        return self.store.identity.cluster_id if self.store is not None else ""

    @property
    def role(self) -> CertificateRole | None:
        return self.store.identity.holder.member.role if self.store is not None else None

    def listen_host(self, asked: str | None) -> str:
        """The address to listen on: the one asked for, or loopback until a cluster is joined.

        Raises AccessError for another one in plaintext, unless that is allowed.
        """
        host = asked or ("0.0.0.0" if self.store is not None else "127.0.0.1")
        if self.store is None and not self.insecure and not is_loopback(join_address(host, 1)):
            raise AccessError(
                f"this device has joined no cluster, so it does not listen on {host}: join one "
                "(flowedge join TOKEN), listen on 127.0.0.1, or say --insecure here and at those who connect"
            )
        return host

    def device_name(self, asked: str | None) -> str | None:
        """The agent's name: that of its certificate. BadRequestError when another is asked for."""
        if self.store is None:
            return asked
        name = self.store.identity.holder.member.name
        if asked not in (None, name):
            raise BadRequestError(
                f"this device joined its cluster as {name}, so it cannot be named {asked}; leave the name "
                f"away, or revoke {name} and join as {asked}"
            )
        return name

    def check_leads(self) -> None:
        """AccessError when this device's certificate does not let it lead a pipeline."""
        if self.role is not None and self.role not in LEADERS:
            raise AccessError(
                f"the certificate of this device is for the role {self.role.value}, so it cannot be a draft "
                "node; join it again with a token that was made with --role draft-node"
            )

    def check_plaintext(self, address: str) -> None:
        """AccessError when there is no identity and plaintext may not be spoken to this address."""
        if not (self.insecure or is_loopback(address)):
            raise AccessError(
                f"{address} is another machine, and this one has joined no cluster: join it (flowedge join "
                "TOKEN), or say --insecure here and there"
            )

    def check_valid(self, now: datetime.datetime) -> CredentialStore:
        """The identity, which is valid now. AccessError when it is not."""
        if self.store is None:
            raise AccessError("this machine has joined no cluster; join one: flowedge join TOKEN")
        try:
            check_time(self.store.identity.holder, now)
        except AccessError as error:
            raise AccessError(f"{error}; join again: flowedge join TOKEN --replace") from error
        return self.store

    def foreign(self, name: str, cluster: str) -> str | None:
        """Why a device that advertises a cluster (empty: none) is none of ours; None when it is."""
        if cluster == self.cluster or self.insecure:
            return None
        theirs = f"belongs to cluster {cluster}" if cluster else "has joined no cluster"
        ours = f"this machine to {self.cluster}" if self.cluster else "this machine to none"
        return f"device {name} {theirs}, {ours}"


_lock = threading.Lock()
_current: Security | None = None
_own_agents: set[str] = set()


def use(security: Security) -> Security:
    """Has this process act under an identity from now on."""
    global _current  # noqa: PLW0603
    with _lock:
        _current = security
    return security


def current() -> Security:
    """What this process acts under: what it was told to use, else the state directory's.

    AccessError when the files there are no good.
    """
    global _current  # noqa: PLW0603
    with _lock:
        if _current is None:
            _current = Security.load(SecuritySettings())
        return _current


def speak_plaintext_to(addresses: Iterable[str]) -> None:
    """This process has started the agents at these addresses itself, without identities."""
    _own_agents.update(addresses)


def own_agents() -> frozenset[str]:
    """The addresses of agents that this process has started itself."""
    return frozenset(_own_agents)


def security_for(address: str, chosen: Security | None) -> Security:
    """What to use towards an address: agents that this process has started have no identity."""
    if chosen is None and address in _own_agents:
        return _OF_OWN_AGENTS
    return chosen or current()


_OF_OWN_AGENTS = Security(None, insecure=True)
