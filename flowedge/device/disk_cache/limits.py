"""The directory and the size limit of the weight cache."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from flowedge.core.errors import BadRequestError
from flowedge.core.settings_group import SettingsGroup, setting
from flowedge.device.files import expand_home

DIRECTORY_VARIABLE = "FLOWEDGE_CACHE_DIR"
SIZE_VARIABLE = "FLOWEDGE_CACHE_GIB"
DEFAULT_GIB = 16.0


class CacheSettings(SettingsGroup):
    """Weights on disk: what was fetched, and what was quantised on this device."""

    dir: str | None = setting(
        None,
        "Directory to keep weights in. Default: ~/.cache/flowedge.",
        min_length=1,
        examples=["/var/cache/flowedge"],
    )
    gib: float | None = setting(
        None,
        f"Maximum size of that directory in GiB. Default: {DEFAULT_GIB:g}; 0 turns the cache off.",
        ge=0,
        examples=[DEFAULT_GIB],
    )


@dataclass(frozen=True)
class CacheLimits:
    """The cache directory, and the limit in bytes for all its files together."""

    root: Path
    max_bytes: int

    @classmethod
    def configured(cls, directory: str | None = None, gib: float | None = None) -> CacheLimits:
        """Return the limits of this process.

        Arguments that are None are taken from the environment (FLOWEDGE_CACHE_DIR, FLOWEDGE_CACHE_GIB), then
        from the defaults: ~/.cache/flowedge, or flowedge below XDG_CACHE_HOME, and 16 GiB.

        Raises:
            BadRequestError: when the size is no number, infinite or below 0.
        """
        if gib is None:
            text = os.environ.get(SIZE_VARIABLE, "")
            try:
                gib = float(text) if text else DEFAULT_GIB
            except ValueError as error:
                raise BadRequestError(f"{SIZE_VARIABLE} is {text!r}; give a number of GiB") from error
        if not 0 <= gib < float("inf"):
            raise BadRequestError(f"a cache of {gib:g} GiB is not possible; 0 turns it off")
        root = directory or os.environ.get(DIRECTORY_VARIABLE)
        if not root:
            base = os.environ.get("XDG_CACHE_HOME") or str(expand_home("~/.cache"))
            root = str(Path(base) / "flowedge")
        return cls(expand_home(root), int(gib * 2**30))
