"""A forward as the kernels are told: the rows of one session or several, and the layers' memory."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from flowedge.device.kernel_library import library
from flowedge.models.kernels.rotation_table import RotationTable
from flowedge.models.kernels.row_paths import RowPaths
from flowedge.models.kernels.structures import CacheFields, RunFields, SessionRowsFields


@dataclass(frozen=True, eq=False)
class KernelRows:
    """Consecutive rows of a session.

    Attributes:
        slot: where the keys and values of the first row are stored.
        caches: the session's keys and values in each layer.
    """

    paths: RowPaths
    slot: int
    caches: ctypes.Array[CacheFields]

    @property
    def count(self) -> int:
        return self.paths.positions.size


class KernelRun:
    """Computes layers: products over the rows of all sessions, attention over the cache of each."""

    def __init__(
        self, layers: Any, rotations: RotationTable, hidden: torch.Tensor, sessions: Sequence[KernelRows]
    ) -> None:
        """Prepare the calls of a forward.

        Args:
            layers: an array of pointers to LayerFields.
            hidden: [rows, hidden], the rows of the sessions in their order, which are overwritten.
        """
        self._layers = layers
        self._fields = (SessionRowsFields * len(sessions))(*map(_fields, sessions))
        last = max([int(rows.paths.positions.max()) for rows in sessions])
        cosines, sines, angles = rotations.addresses(last)
        self._kept = (hidden, sessions, cosines, sines, angles)  # memory that the structure refers to
        self._run = RunFields(
            len(hidden),
            hidden.data_ptr(),
            ctypes.addressof(self._fields),
            len(sessions),
            ctypes.addressof(cosines),
            ctypes.addressof(sines),
        )
        self._threads = torch.get_num_threads()

    def compute(self, first: int, stop: int) -> None:
        """Compute the layers [first, stop)."""
        library().flowedge_layers(
            self._layers,
            ctypes.c_int64(first),
            ctypes.c_int64(stop),
            ctypes.byref(self._run),
            self._threads,
        )


def _fields(rows: KernelRows) -> SessionRowsFields:
    paths = rows.paths
    return SessionRowsFields(
        rows.count,
        rows.slot,
        paths.positions.ctypes.data,
        paths.linear.ctypes.data,
        paths.offsets.ctypes.data,
        paths.slots.ctypes.data,
        ctypes.addressof(rows.caches),
    )
