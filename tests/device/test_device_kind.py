"""The kind of a device, read from its system files."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowedge.device.board.device_kind import device_kind
from flowedge.device.memory import read_available_memory, resident_bytes


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (b"NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super\0", "Jetson Orin Nano"),
        (b"NVIDIA Jetson AGX Orin Developer Kit\0", "Jetson AGX Orin"),
        (b"Raspberry Pi 5 Model B Rev 1.0\0", "Raspberry Pi 5 Model B"),
        (b"Some Other Board\0", "Some Other Board"),
    ],
)
def test_boards_are_named_from_their_device_tree(tmp_path: Path, model: bytes, kind: str) -> None:
    file = tmp_path / "model"
    file.write_bytes(model)
    assert device_kind(file) == kind


def test_without_a_device_tree_it_is_the_architecture(tmp_path: Path) -> None:
    assert device_kind(tmp_path / "missing") in ("x86_64", "aarch64", "arm64", "AMD64")


def test_memory_adds_up() -> None:
    room = read_available_memory()
    assert 0 < resident_bytes() < room.total
    assert 0 < room.available <= room.total
