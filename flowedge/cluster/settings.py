"""How a device proves who it is, and asks other devices to prove who they are."""

from __future__ import annotations

from flowedge.core.settings_group import Seconds, SettingsGroup, setting


class SecuritySettings(SettingsGroup):
    """Which credentials a device uses, and how often it renews them."""

    cluster_dir: str | None = setting(
        None,
        "Directory that flowedge join wrote to. Default: the state directory.",
        min_length=1,
        examples=["/var/lib/flowedge"],
    )
    insecure: bool = setting(
        False, "Use plaintext on every network, to and from anyone; each start logs a warning."
    )
    refresh_s: Seconds = setting(
        60.0, "Seconds between checks of the revocation list and of the certificate's age."
    )
