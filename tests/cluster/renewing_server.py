"""A server whose certificate is renewed whenever its input says so: argument DIRECTORY, of a cluster.

Prints its address, the DNS name of its first certificate and a line for each renewal; it ends with its input.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from grpc_health.v1 import health, health_pb2_grpc

from flowedge.cluster.authority import Authority
from flowedge.cluster.certificates import pem_of
from flowedge.cluster.revocation import read_list
from flowedge.cluster.tls.call_admission import CallAdmission
from flowedge.cluster.tls.connection_limits import ConnectionBounds
from flowedge.cluster.tls.guard import Guard
from flowedge.cluster.tls.renewable_server import RenewableServer, ServerIdentity
from flowedge.cluster.tls.serving import server_credentials
from tests.cluster.clusters import now


async def main(authority: Authority) -> None:
    made = []

    def identify() -> ServerIdentity:
        key, certificate, holder = authority.service_credentials(now())
        made.append(holder)
        tls = server_credentials(key, certificate, pem_of(authority.certificate), require_client=True)
        return ServerIdentity(tls, holder.not_after)

    guard = Guard(lambda: read_list(authority.revocation_list(now()), authority.certificate))
    guard.connections.bounds = ConnectionBounds(unproven=1_000)  # all attackers have one address
    server = RenewableServer((), CallAdmission(guard), identify, guard.connections)
    health_pb2_grpc.add_HealthServicer_to_server(health.aio.HealthServicer(), server)
    port = server.listen("127.0.0.1:0", "this one")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    print(made[0].dns_name, flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        await server.renew()
        print("renewed", flush=True)
    await server.stop(0.5)


if __name__ == "__main__":
    asyncio.run(main(Authority.open(Path(sys.argv[1]) / "ca")))
