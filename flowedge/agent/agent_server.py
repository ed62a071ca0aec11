"""The gRPC server of an agent."""

from __future__ import annotations

from flowedge.agent.agent_config import AgentConfig
from flowedge.cluster.process import Security
from flowedge.cluster.tls.call_admission import CallAdmission
from flowedge.cluster.tls.guard import Guard
from flowedge.cluster.tls.renewable_server import RenewableServer
from flowedge.cluster.tls.serving import check_of, new_server


def agent_server(config: AgentConfig, security: Security, guard: Guard | None) -> RenewableServer:
    """Return the server of an agent, without services; it admits calls as the configuration says.

    guard: see `guard_of`.
    """
    check = check_of(security, guard)
    admission = CallAdmission(check, config.limits, config.call_rules, config.deadlines.receive_s)
    return new_server(config.server_options, security, guard, admission)
