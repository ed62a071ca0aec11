"""What a server takes: calls at the same time, the size of a request, the time of a caller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from flowedge.core.settings_group import Seconds, SettingsGroup, setting

GENERATE = "/flowedge.v1.Generation/Generate"
KIB = 1 << 10
MIB = 1 << 20
Count = Annotated[int, Field(ge=1, le=1 << 31)]


class CallLimits(SettingsGroup):
    """How many calls are taken at the same time.

    A caller is the member of a certificate; in plaintext, a host.
    """

    calls: Count = setting(512, "Maximum number of concurrent calls, streams included.")
    reserved_calls: int = setting(
        128,
        "Calls reserved for pipelines and admins, a quarter of them for admins alone; at most half of all.",
        ge=0,
        le=1 << 31,
    )
    calls_per_caller: Count = setting(
        64, "Maximum number of concurrent calls of one caller, and as many again for pipelines."
    )
    streams_per_peer: Count = setting(64, "Maximum number of open streams of one caller.")
    sessions_per_caller: Count = setting(
        16, "Maximum number of concurrent generations of one caller, waiting ones included."
    )


class CallDeadlines(SettingsGroup):
    """How long a caller may take."""

    receive_s: Seconds = setting(10.0, "Time for a caller to send its whole request.")
    read_s: Seconds = setting(30.0, "Time for a caller to read each reply.")


@dataclass(frozen=True)
class MethodRule:
    """What a server takes of one method.

    Attributes:
        request_bytes: most bytes of a request; of each message of a stream of requests.
        per_caller: most calls that one caller may have going on; None for no limit of its own.
        of_clients: most calls of all callers that may not use the reserve; None for no limit of its own.
        for_pipelines: whether pipelines need the method, so that devices' calls of it may use the reserve.
        lasts: whether a call lasts as long as the link that it opens; it counts as a stream.
    """

    request_bytes: int = 4 * KIB
    per_caller: int | None = None
    of_clients: int | None = None
    for_pipelines: bool = False
    lasts: bool = False


_UNKNOWN = MethodRule()
_MEMBERSHIP = MethodRule(16 * KIB)

RULES: Mapping[str, MethodRule] = {
    "/flowedge.v1.Agent/Describe": MethodRule(),
    "/flowedge.v1.Agent/Membership": MethodRule(),
    "/flowedge.v1.Agent/Clock": MethodRule(),
    "/flowedge.v1.Agent/Timeline": MethodRule(per_caller=8),
    "/flowedge.v1.Agent/BecomeStage": MethodRule(256 * KIB, per_caller=4, for_pipelines=True),
    "/flowedge.v1.Agent/BecomeDraftNode": MethodRule(256 * KIB, per_caller=4),
    "/flowedge.v1.Agent/StandBy": MethodRule(256 * KIB, per_caller=4, for_pipelines=True),
    "/flowedge.v1.Agent/Prepare": MethodRule(per_caller=4, for_pipelines=True),
    "/flowedge.v1.Agent/Release": MethodRule(for_pipelines=True),
    GENERATE: MethodRule(192 * KIB),  # and the prompt, see `rules_for`
    "/flowedge.v1.Generation/Watch": MethodRule(per_caller=8),
    "/flowedge.v1.Measure/MeasureDevice": MethodRule(64 * KIB, per_caller=4, for_pipelines=True),
    "/flowedge.v1.Measure/MeasureLink": MethodRule(per_caller=4, for_pipelines=True),
    "/flowedge.v1.Measure/Sink": MethodRule(256 * KIB, per_caller=4, for_pipelines=True),
    "/flowedge.v1.Measure/Ping": MethodRule(per_caller=4, for_pipelines=True),
    "/flowedge.v1.Pipeline/InBand": MethodRule(for_pipelines=True, lasts=True),
    "/flowedge.v1.Pipeline/Express": MethodRule(for_pipelines=True, lasts=True),
    "/flowedge.v1.Weights/Have": MethodRule(1 * MIB, per_caller=8, for_pipelines=True),
    "/flowedge.v1.Weights/Read": MethodRule(per_caller=4, for_pipelines=True),
    "/flowedge.v1.Weights/Catalogue": MethodRule(per_caller=2),
    "/flowedge.v1.Weights/Look": MethodRule(8 * KIB, per_caller=8, for_pipelines=True),
    "/grpc.health.v1.Health/Check": MethodRule(),
    "/grpc.health.v1.Health/Watch": MethodRule(per_caller=4),
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": MethodRule(per_caller=2),
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": MethodRule(per_caller=2),
    "/flowedge.v1.Enrolment/Authority": _MEMBERSHIP,
    "/flowedge.v1.Enrolment/Join": _MEMBERSHIP,
    "/flowedge.v1.Enrolment/Revoked": _MEMBERSHIP,
    "/flowedge.v1.Renewal/Renew": _MEMBERSHIP,
}

_READ = "/flowedge.v1.Weights/Read"
_ADMIN_SESSIONS = 4  # that clients leave to admins
_TOKEN_BYTES = 5  # most bytes of a token id in a message


def rules_for(
    *, prompt_bytes: int, prompt_tokens: int, generations: int, sessions_per_caller: int, sending: int
) -> Mapping[str, MethodRule]:
    """Return the rules of an agent that takes such prompts, so many generations and streams of weights."""
    generate, read = RULES[GENERATE], RULES[_READ]
    return {
        **RULES,
        GENERATE: replace(
            generate,
            request_bytes=generate.request_bytes + max(prompt_bytes, prompt_tokens * _TOKEN_BYTES),
            per_caller=sessions_per_caller,
            of_clients=generations - min(_ADMIN_SESSIONS, generations // 8),
        ),
        _READ: replace(read, of_clients=max(1, sending // 2)),
    }


def rule_of(rules: Mapping[str, MethodRule], method: str) -> MethodRule:
    """Return the rule of a method, given by its full name; an unknown method gets the strictest."""
    return rules.get(method, _UNKNOWN)
