"""How a device proves who it is, and asks other devices to prove who they are."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from flowedge.core.settings_group import Seconds, SettingsGroup


class SecuritySettings(SettingsGroup):
    """Which credentials a device uses, and how often it renews them."""

    cluster_dir: Annotated[
        str | None,
        Field(
            min_length=1,
            description="Directory that flowedge join wrote to; the state directory if not set.",
            examples=["/var/lib/flowedge"],
        ),
    ] = None
    insecure: Annotated[
        bool,
        Field(description="Plaintext on every network, to and from anyone; the log warns at every start."),
    ] = False
    refresh_s: Annotated[
        Seconds, Field(description="Seconds between two checks of the revocation list and the certificate.")
    ] = 60.0
