"""The scripts of device_agents/, run on hosts as a person runs them."""

from __future__ import annotations

from testbed.tools.nspawn.boards import CHECKOUT, WHEELS
from testbed.tools.nspawn.host import Host
from testbed.tools.nspawn.waiting import check

INSTALL_S = 900.0  # pip unpacks a gigabyte
_INSTALL = (f"{CHECKOUT}/device_agents/install.sh", "--offline", WHEELS)
_UNINSTALL = f"{CHECKOUT}/device_agents/uninstall.sh"
_TRACES = (
    "/opt/flowedge /etc/flowedge /var/lib/flowedge* /var/cache/flowedge* /usr/local/bin/flowedge "
    "/etc/sysusers.d/flowedge.conf /etc/systemd/system/flowedge* /etc/systemd/system/*/flowedge*"
)
_SAME = "has just this version"


def install(host: Host) -> None:
    """Install on a host that has nothing of FlowEdge; no service is started."""
    found = host.run(["sh", "-c", "command -v flowedge"], check=False).stdout
    check(not found, f"{host.name} has FlowEdge before it is installed: {found}")
    # The umask of hardened images; the services' users have to read what root installs.
    hardened = ["sh", "-c", 'umask 027; exec "$@"', "sh", *_INSTALL, "--no-start"]
    said = host.run(hardened, timeout_s=INSTALL_S).stdout
    hidden = host.run(["find", "/opt/flowedge", "-not", "-perm", "-o=r"]).stdout
    check(not hidden, f"the services cannot read what install.sh wrote on {host.name}: {hidden[:500]}")
    check(_SAME not in said, f"install.sh installed nothing on {host.name}: {said}")
    version = host.run(["flowedge", "--version"]).stdout
    check(version.startswith("flowedge "), f"flowedge --version says {version!r}")


def install_again(host: Host) -> None:
    """Install on a host where the same version is installed and the agent runs."""
    said = host.run(_INSTALL).stdout
    check(_SAME in said, f"install.sh did not recognise what it had installed on {host.name}: {said}")


def install_with_gateway(host: Host) -> None:
    """Run install.sh --serve on a host where the same version is installed."""
    host.run([*_INSTALL, "--serve"])


def uninstall(host: Host) -> None:
    """Uninstall everything and check that no trace is left."""
    host.run([_UNINSTALL, "--purge"])
    look = f"ls -d {_TRACES}; getent passwd flowedge flowedge-enrol flowedge-serve"
    left = host.run(["sh", "-c", look], check=False).stdout
    check(not left, f"uninstall.sh --purge left on {host.name}: {left}")
