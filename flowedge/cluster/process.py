"""The credentials and rules that this process uses towards other devices.

A command and the agents that it starts for itself have a secret, without which nobody else may call these
agents. The agents get it in their environment, which other users cannot read. Calls carry it as metadata, in
plaintext: the agents are on this machine, or in network namespaces of the command.
"""

from __future__ import annotations

import datetime
import logging
import os
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path

from flowedge.cluster.certificate_role import LEADERS, CertificateRole, Roles, text_of
from flowedge.cluster.certificates import check_time
from flowedge.cluster.credentials import CredentialStore
from flowedge.cluster.identities import Identities
from flowedge.cluster.settings import SecuritySettings
from flowedge.core.errors import AccessError, BadRequestError
from flowedge.device.state_dir import command_states, state_dir
from flowedge.network.address import is_loopback, join_address

VARIABLE = "FLOWEDGE_COMMAND_SECRET"
METADATA_KEY = "flowedge-command-secret"

_log = logging.getLogger(__name__)


@cache
def process_secret() -> str:
    """Return the secret of this process, drawn at the first call."""
    return secrets.token_urlsafe(32)


def given_secret(environment: Mapping[str, str] = os.environ) -> str:
    """Return the secret of the command that has started this process; "" if no command has."""
    return environment.get(VARIABLE, "")


class Security:
    """The credentials of an agent or command, and whether it may use plaintext.

    Attributes:
        store: None if this device has joined no cluster.
        insecure: whether plaintext may be used on every network; otherwise it is used on loopback only.
        secret: of the command that has started this agent for itself, which calls in
            plaintext carry; "" for other agents.
    """

    def __init__(self, store: CredentialStore | None, *, insecure: bool = False, secret: str = "") -> None:
        self.store = store
        self.insecure = insecure
        self.secret = secret

    @classmethod
    def load(cls, settings: SecuritySettings) -> Security:
        """Read the identity that commands show, in the configured or else in the state directory."""
        states = (Path(settings.cluster_dir),) if settings.cluster_dir else command_states()
        return cls._load(settings, lambda: next(filter(None, map(_for_commands, states)), None))

    @classmethod
    def load_for_agent(cls, settings: SecuritySettings) -> Security:
        """Read the identity that an agent serves with, from the same directory.

        Raises:
            AccessError: when the only identity there may not serve.
        """
        state = Path(settings.cluster_dir) if settings.cluster_dir else state_dir()
        return cls._load(settings, lambda: Identities.open(state).for_agent())

    @classmethod
    def _load(cls, settings: SecuritySettings, read: Callable[[], CredentialStore | None]) -> Security:
        secret = given_secret()
        if secret:  # the agents of a command belong to no cluster, and the command says what it makes public
            return cls(None, insecure=settings.insecure, secret=secret)
        if settings.insecure:
            _log.warning(
                "--insecure: all connections are in plaintext; anyone on the network can read them and use "
                "this device"
            )
            return cls(None, insecure=True)
        store = read()
        if store is None and settings.cluster_dir:
            state = settings.cluster_dir
            raise BadRequestError(
                f"{state} holds no credentials; join a cluster with `flowedge join --dir {state}`"
            )
        return cls(store)

    @property
    def cluster(self) -> str:
        """The id of the cluster, empty if none was joined."""
        return self.store.credentials.cluster_id if self.store is not None else ""

    @property
    def roles(self) -> Roles:
        """The roles in the certificate; none if no cluster was joined."""
        return self.store.member.roles if self.store is not None else frozenset()

    def listen_host(self, asked: str | None) -> str:
        """The host to listen on: by default all networks for a cluster's member, or else loopback.

        Raises:
            AccessError: when `asked` is not loopback, and plaintext is not allowed there.
        """
        host = asked or ("0.0.0.0" if self.store is not None else "127.0.0.1")
        if self.store is None and not self.insecure and not is_loopback(join_address(host, 1)):
            raise AccessError(
                f"this device has joined no cluster, so it does not listen on {host}: join a cluster "
                "(flowedge join), listen on 127.0.0.1, or give --insecure here and on the callers"
            )
        return host

    def device_name(self, asked: str | None) -> str | None:
        """The name in this device's certificate, or `asked` if it has none. The two must not differ."""
        if self.store is None:
            return asked
        name = self.store.credentials.holder.member.name
        if asked not in (None, name):
            raise BadRequestError(
                f"this device joined its cluster as {name}, so it cannot be named {asked}; leave out the "
                f"name, or join again: flowedge join --replace --name {asked}"
            )
        return name

    def check_leads(self) -> None:
        """Raise AccessError if this device's certificate does not allow it to be a draft node."""
        if self.store is not None and self.roles.isdisjoint(LEADERS):
            name, roles = self.store.member.name, text_of(self.roles | {CertificateRole.DRAFT_NODE})
            raise AccessError(
                f"this device's certificate is for {self.store.member}, so it cannot be a draft node; run "
                f"`flowedge cluster token --role {roles} --name {name}` where the cluster was made, then "
                "`flowedge join --replace` on this device, and restart its agent"
            )

    def check_plaintext(self, address: str) -> None:
        """Raise AccessError if plaintext may not be used towards an address."""
        if not (self.insecure or is_loopback(address)):
            raise AccessError(
                f"{address} is another machine, and this one has joined no cluster: join it (flowedge "
                "join), or give --insecure on both"
            )

    def check_valid(self, now: datetime.datetime) -> CredentialStore:
        """The credentials; raise AccessError if there are none or they are not valid now."""
        if self.store is None:
            raise AccessError("this machine has joined no cluster; join one: flowedge join")
        try:
            check_time(self.store.credentials.holder, now)
        except AccessError as error:
            raise AccessError(f"{error}; join again: flowedge join --replace") from error
        return self.store

    def foreign(self, name: str, cluster: str) -> str | None:
        """Why an advertised device with this cluster id, or "", is not of this cluster; None if it is."""
        if cluster == self.cluster or self.insecure:
            return None
        theirs = f"belongs to cluster {cluster}" if cluster else "has joined no cluster"
        ours = f"belongs to {self.cluster}" if self.cluster else "has joined none"
        return f"device {name} {theirs}, this machine {ours}"


def _for_commands(state: Path) -> CredentialStore | None:
    return Identities.open(state).for_commands()


_lock = threading.Lock()
_current: Security | None = None
_own_agents: set[str] = set()


def use(security: Security) -> Security:
    """Set what this process uses from now on."""
    global _current  # noqa: PLW0603
    with _lock:
        _current = security
    return security


def current() -> Security:
    """Return the security of this process: set by `use`, or else read from the state directory."""
    global _current  # noqa: PLW0603
    with _lock:
        if _current is None:
            _current = Security.load(SecuritySettings())
        return _current


def speak_plaintext_to(addresses: Iterable[str]) -> None:
    """Speak plaintext, with the secret of this process, to agents that the process has started itself."""
    _own_agents.update(addresses)


def forget_started_agents(addresses: Iterable[str]) -> None:
    """Keep the secret from whoever listens at the addresses of agents that have ended."""
    _own_agents.difference_update(addresses)


def started_agents() -> frozenset[str]:
    """The addresses of agents that this process has started itself."""
    return frozenset(_own_agents)


def security_for(address: str, chosen: Security | None) -> Security:
    """Return the security towards an address: the secret to own agents, or else `chosen` or the current."""
    if chosen is None and address in _own_agents:
        return Security(None, insecure=True, secret=process_secret())
    return chosen or current()
