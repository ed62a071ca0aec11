"""The command that runs a module of this installation in a process of its own."""

from __future__ import annotations

import sys

# `python -m` imports from the current directory first, where a file of any user may be called like a module
# of a library. The option against that, -P, is missing in Python 3.10.
_RUN = (
    "import sys; sys.path[:] = filter(None, sys.path); import runpy; "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def module_command(module: str) -> list[str]:
    """Return the command that runs a module, which imports nothing from the current directory."""
    return [sys.executable, "-c", _RUN, module]
