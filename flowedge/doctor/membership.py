"""Whether this device and the agents around it accept each other's certificates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flowedge.client.survey import Refusal
from flowedge.doctor.clocks import Validity
from flowedge.doctor.finding import ERROR, INFO, WARNING, Finding

_AGAIN = (
    "`flowedge cluster token --role ROLES --name NAME` where the cluster was made, then `flowedge join "
    "--replace` {where} (`sudo flowedge join --replace` for the agent of the service), and restart the agent."
)
NOT_JOINED = WARNING(
    "not-joined",
    "this device has joined no cluster, so that no other device reaches its agent, which listens on loopback",
    "Join one: `flowedge cluster token` where the cluster was made, then `flowedge join` here (`sudo "
    "flowedge join` for the agent of the service), and restart the agent.",
)
REVOKED = ERROR(
    "certificate-revoked",
    "a certificate of this device was revoked, so that no other device talks to it",
    f"If the device may take part again: {_AGAIN.format(where='here')}",
)
DAMAGED = ERROR(
    "identity-damaged",
    "an identity of this device cannot be used, because its files are damaged or may be read by others",
    f"If the files cannot be mended: {_AGAIN.format(where='here')}",
)
NOT_ACCEPTED = ERROR(
    "not-accepted",
    "an agent does not accept the certificate of this device",
    f"Join again: {_AGAIN.format(where='here')}",
)
PEER_NOT_ACCEPTED = ERROR(
    "peer-not-accepted",
    "this device does not accept the certificate of an agent: it was revoked, expired or is of another "
    "cluster",
    f"If the agent belongs here, join it again: {_AGAIN.format(where='there')}",
)
OLD_LIST = ERROR(
    "revocation-list-old",
    "the CA's revocation list is older than a list that members have, so that revocations have no effect",
    "The CA was restored from an older copy. Run `flowedge cluster restore` on its machine.",
)
OTHER_CLUSTER = INFO(
    "other-cluster",
    "agents on the network belong to another cluster or to none, and are left alone",
    "Nothing, if they are not yours. To have one in this cluster: `flowedge cluster token` where the cluster "
    "was made, then `flowedge join` there.",
)
KINDS = (NOT_JOINED, REVOKED, DAMAGED, NOT_ACCEPTED, PEER_NOT_ACCEPTED, OLD_LIST, OTHER_CLUSTER)
_KIND = {Refusal.BY_AGENT: NOT_ACCEPTED, Refusal.BY_CALLER: PEER_NOT_ACCEPTED}
_MOST_NAMED = 5  # agents of other clusters


@dataclass(frozen=True)
class HeldCertificate:
    """A certificate of this device or of its user.

    Attributes:
        member: its name and roles.
        serves: whether it is for a device that serves, not only for a client or admin.
        revoked: whether it is on the revocation list that this device has.
    """

    member: str
    validity: Validity
    revoked: bool
    serves: bool = True


@dataclass(frozen=True)
class RefusalFacts:
    """An agent with which no call is possible, because one side does not accept the other.

    Attributes:
        own: whether the agent runs on this device.
    """

    agent: str
    refusal: Refusal
    reason: str
    own: bool = False


def judge_membership(
    own: Sequence[HeldCertificate], refusals: Sequence[RefusalFacts], device: str
) -> list[Finding]:
    """Judge the own certificates and the refusals.

    Refusals that follow from a revoked certificate, or from having none, are no findings of their own.
    """
    if refusals and not own:
        more = f", and {len(refusals) - 1} more agents" if len(refusals) > 1 else ""
        return [Finding(NOT_JOINED, device, f"{refusals[0].reason}{more}")]
    revoked = [Finding(REVOKED, device, f"the certificate of {each.member}") for each in own if each.revoked]
    refused = [
        Finding(_KIND[facts.refusal], facts.agent, facts.reason)
        for facts in refusals
        if facts.refusal is not Refusal.FOREIGN
        and not (revoked and (facts.own or facts.refusal is Refusal.BY_AGENT))
    ]
    foreign = sorted(facts.agent for facts in refusals if facts.refusal is Refusal.FOREIGN)
    return revoked + refused + ([Finding(OTHER_CLUSTER, device, _listed(foreign))] if foreign else [])


def judge_damaged(reasons: Sequence[str], device: str) -> list[Finding]:
    """Judge why identities of this device cannot be used."""
    return [Finding(DAMAGED, device, reason) for reason in reasons]


@dataclass(frozen=True)
class ListFacts:
    """The revocation list of this device, which it has fetched just now if the CA's machine is on.

    Attributes:
        number: 0 if no cluster was joined.
        doubt: why the CA's list is older than it should be; "" if nothing is wrong.
    """

    number: int = 0
    doubt: str = ""


def judge_lists(own: ListFacts, others: Sequence[tuple[str, int]], device: str) -> list[Finding]:
    """Judge the revocation lists; others: the name of each agent, with the number of its list."""
    if own.doubt:
        return [Finding(OLD_LIST, device, own.doubt)]
    return [
        Finding(OLD_LIST, name, f"its list has number {number}, the list of this device number {own.number}")
        for name, number in others
        if own.number and number > own.number
    ][:1]


def _listed(agents: Sequence[str]) -> str:
    more = f" and {len(agents) - _MOST_NAMED} more" if len(agents) > _MOST_NAMED else ""
    return f"{', '.join(agents[:_MOST_NAMED])}{more} on this network"
