"""FlowEdge on a host without unpacking wheels: it runs this process's interpreter, packages and checkout.

The proof installs wheels; this is for a test that boots a host with every change.
"""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

from testbed.tools.nspawn.boards import CHECKOUT, WHEELS
from testbed.tools.nspawn.host import Host
from testbed.tools.nspawn.waiting import check

_PYTHON, _PACKAGES, _PREFIX = "/opt/python", "/opt/packages", "/opt/flowedge"
_SHIM = f"""#!/bin/sh
export PYTHONPATH={CHECKOUT}:{CHECKOUT}/testbed:{_PACKAGES} PYTHONDONTWRITEBYTECODE=1
export LD_LIBRARY_PATH={_PYTHON}/lib  # a shared libpython is found by a path that the services cannot read
exec {_PYTHON}/bin/python{sys.version_info.major}.{sys.version_info.minor} -m flowedge.cli.main "$@"
"""
_INSTALL = f"{CHECKOUT}/device_agents/install.sh"
# What install.sh would note about the folder of wheels, computed by its own function.
_STAMP = f"""
source <(sed -n '/^stamp()/,/^}}/p' {_INSTALL})
python=/usr/bin/python3 wheels={WHEELS}
stamp >{_PREFIX}/stamp
"""
_SAME = "has just this version"


def shared() -> dict[str, Path]:
    """Return the directories of this machine that hosts need, by their place in the hosts."""
    return {_PYTHON: Path(sys.base_prefix), _PACKAGES: Path(sysconfig.get_path("purelib"))}


def write_wheels(directory: Path) -> None:
    """Write a folder that install.sh takes for a folder of wheels."""
    (directory / "flowedge-0-py3-none-any.whl").write_text("installed already\n", encoding="utf-8")


def prepare(host: Host) -> None:
    """Have install.sh set up users, units and settings for a FlowEdge that is there already."""
    binary = host.root / _PREFIX.removeprefix("/") / "bin" / "flowedge"
    binary.parent.mkdir(parents=True)
    binary.write_text(_SHIM, encoding="utf-8")
    binary.chmod(0o755)
    host.run(["bash", "-c", _STAMP])
    said = host.run([_INSTALL, "--offline", WHEELS, "--no-start"]).stdout
    check(_SAME in said, f"install.sh did not take what is there for installed: {said}")
