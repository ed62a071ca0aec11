"""Mixes of boards, made of this machine: each agent has a share of a core and a rate at which it sends."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from flowedge.agent.local_cluster import LocalCluster
from flowedge.device.process import module_command
from flowedge_testbed.paced import namespaces

PERIOD_US = 4000  # in which a group has its share: short beside a layer, so that its times are even
_CPU = Path("/sys/fs/cgroup/cpu")


@dataclass(frozen=True)
class Mix:
    """Boards in order: the draft node, then the stages.

    Attributes:
        cores: the share of a core that each has.
        mbps: at which each sends.
        memory_gib: what a board may use, by its place; others use all.
    """

    title: str
    cores: tuple[float, ...]
    mbps: float = 1000.0
    memory_gib: Mapping[int, float] = field(default_factory=dict)

    @property
    def stages(self) -> int:
        return len(self.cores) - 1


MIXES = (
    Mix("two alike", (0.4, 0.7, 0.7)),
    Mix("one twice as fast", (0.4, 1.0, 0.5)),
    Mix("one three times as fast", (0.4, 0.9, 0.3)),
    Mix("three alike", (0.4, 0.5, 0.5, 0.5)),
    Mix("one fast, two slow", (0.4, 0.8, 0.4, 0.4)),
    Mix("the fast one has little memory", (0.4, 1.0, 0.5), memory_gib={1: 0.62}),
    Mix("three alike at 100 Mbit/s", (0.4, 0.5, 0.5, 0.5), mbps=100.0),
    Mix("two alike at 20 Mbit/s", (0.4, 0.7, 0.7), mbps=20.0),
)


def why_not() -> str | None:
    """Return why shares of cores and of a network cannot be given here; None if they can."""
    there = (_CPU / "cgroup.procs").exists()
    return namespaces.why_not() if there else "control groups of version 1 with the cpu controller are needed"


@contextmanager
def running(mix: Mix, folder: Path) -> Iterator[Sequence[str]]:
    """Yield the addresses of a mix's agents, which have measured nothing yet."""
    with ExitStack() as stack:
        network = stack.enter_context(namespaces.Namespaces(len(mix.cores)))

        def command(place: int, name: str) -> list[str]:
            config = folder / f"{name}.toml"
            lines = ["[security]", "insecure = true"]
            if place in mix.memory_gib:
                lines += ["[memory]", f"limit_gib = {mix.memory_gib[place]}", "reserve_gib = 0.05"]
            config.write_text("\n".join(lines) + "\n")
            agent = [*module_command("flowedge.cli.main"), "agent", "--host", network.hosts[place]]
            agent += ["--port", "0", "--name", name, "--config", str(config), "--no-advertise"]
            state = f"FLOWEDGE_STATE_DIR={folder / name}"
            return network.enter(place, ["env", state, *agent, "--exit-with-parent"])

        cluster = stack.enter_context(LocalCluster(mix.stages, name="mix", threads=1, command=command))
        for place, (agent, share) in enumerate(zip(cluster.agents, mix.cores, strict=True)):
            network.limit(place, mix.mbps)
            stack.enter_context(_share(agent.name, agent.pid, share))
        yield cluster.addresses


@contextmanager
def _share(name: str, pid: int, cores: float) -> Iterator[None]:
    """Hold a process to a share of a core."""
    group = _CPU / f"flowedge-{name}"
    group.mkdir()
    try:
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(int(PERIOD_US * cores)))
        (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for member in (group / "cgroup.procs").read_text().split():
            (_CPU / "cgroup.procs").write_text(member)
        group.rmdir()
