"""`python -m flowedge_testbed.paced.agent`: the product's agent, held to the time of an emulated device.

The file of the emulated pipeline is read again whenever the agent takes a role.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from flowedge.agent.agent_config import AgentConfig, AgentLimits, DeviceSettings
from flowedge.agent.main import serve
from flowedge.cli.orphan import stop_when_input_closes
from flowedge.cluster.settings import SecuritySettings
from flowedge.live.compute_thread import ComputeThread
from flowedge.network.address import is_loopback, join_address
from flowedge_testbed.paced.emulated_time import EmulatedTime
from flowedge_testbed.paced.express_faults import parse_express_fault
from flowedge_testbed.paced.pacing import DevicePacing, PacedPipeline
from flowedge_testbed.paced.run_clock import RunClock
from flowedge_testbed.paced.timings import TimingLog


def main() -> None:
    """Serve until told to stop, or until standard input closes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--place", type=int, required=True, help="as in planning/virtual_pipeline.py")
    parser.add_argument("--pipeline", type=Path, required=True, help="file of the emulated pipeline")
    parser.add_argument("--clock", type=Path, required=True, help="file that says when a run began")
    parser.add_argument("--timings", type=Path, required=True, help="file to log each job's times in")
    parser.add_argument("--express-fault", default="", help="cut, delay:SECONDS or reorder:SECONDS")
    arguments = parser.parse_args()
    stop_when_input_closes()
    log, clock = TimingLog(arguments.timings), RunClock(arguments.clock)
    fault = parse_express_fault(arguments.express_fault)

    def make_timing(compute: ComputeThread) -> EmulatedTime:
        pipeline = PacedPipeline.read(arguments.pipeline)
        return EmulatedTime(compute, DevicePacing(pipeline, arguments.place, log, clock), fault)

    # A namespace of its own is a network that only this run's agents are on.
    security = SecuritySettings(insecure=not is_loopback(join_address(arguments.host, 1)))
    device = DeviceSettings(host=arguments.host, name=arguments.name, advertise=False)
    serve(
        # Methods are compared on the same prompts: none of them begins with the rows of another.
        AgentConfig(agent=device, security=security, limits=AgentLimits(kept_rows=0)),
        make_timing,
    )


if __name__ == "__main__":
    main()
