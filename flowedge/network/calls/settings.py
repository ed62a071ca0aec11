"""How many calls a server takes, and how long a caller may take over one."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from flowedge.core.settings_group import Seconds, SettingsGroup, setting

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
