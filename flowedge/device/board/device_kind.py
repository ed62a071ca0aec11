"""The kind of device that this process runs on."""

from __future__ import annotations

import platform
from pathlib import Path

_DEVICE_TREE_MODEL = Path("/proc/device-tree/model")
_KIND_LIMIT = 63


def device_kind(model_file: Path = _DEVICE_TREE_MODEL) -> str:
    """Return a short name: "Jetson Orin Nano", "Raspberry Pi 5 Model B", or the processor's architecture.

    model_file: holds the name of the board where there is a device tree.
    """
    try:
        model = model_file.read_bytes().split(b"\0")[0].decode("ascii", "ignore")
    except OSError:  # no device tree: a PC or a virtual machine
        model = ""
    kind = _board_name(model) or platform.machine() or "unknown"
    return kind[:_KIND_LIMIT]


def _board_name(model: str) -> str:
    printable = "".join(character for character in model if character.isprintable()).strip()
    if "Jetson" in printable:
        name = printable[printable.index("Jetson") :]
        for suffix in (" Engineering Reference Developer Kit", " Developer Kit", " Super"):
            name = name.replace(suffix, "")
        return name
    if printable.startswith("Raspberry Pi"):
        return printable.split(" Rev ")[0]
    return printable
