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

    calls: Count = setting(512, "Calls going on at the same time, streams included.")
    reserved_calls: int = setting(
        128,
        "Calls kept free for pipelines and admins, a quarter of them for admins alone; at most half of all.",
        ge=0,
        le=1 << 31,
    )
    calls_per_caller: Count = setting(
        64, "Calls that one caller may have going on, and as many again for pipelines."
    )
    streams_per_peer: Count = setting(64, "Streams that one caller may hold open.")
    sessions_per_caller: Count = setting(16, "Generations that one caller may have going on.")


class CallDeadlines(SettingsGroup):
    """How long a caller may take."""

    receive_s: Seconds = setting(10.0, "A caller has to send its whole request within this.")
    read_s: Seconds = setting(30.0, "A caller has to take each reply that it is sent within this.")
