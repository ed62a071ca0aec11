"""A forward as the kernels are told: the rows of one session or several, and the layers' memory."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from flowedge.device.kernel_library import library
from flowedge.models.kernels.rotation_table import RotationTable
from flowedge.models.kernels.row_paths import RowPaths
from flowedge.models.kernels.structures import (
    CacheFields,
    RunFields,
    SessionRowsFields,
    StatesFields,
    StepsFields,
)
from flowedge.models.recurrent.row_states import RowStates
from flowedge.models.recurrent.row_steps import UpdateSteps
from flowedge.models.recurrent.updated_states import UpdatedStates


@dataclass(frozen=True, eq=False)
class KernelRows:
    """Consecutive rows of a session.

    Attributes:
        slot: where the keys and values of the first row are stored.
        caches: the session's keys and values in each layer.
        updated: what the rows update in recurrent layers; None in a block without such layers.
    """

    paths: RowPaths
    slot: int
    caches: ctypes.Array[CacheFields]
    updated: UpdatedStates | None = None

    @property
    def count(self) -> int:
        return self.paths.positions.size


class KernelRun:
    """Computes layers: products over the rows of all sessions, attention over the cache of each."""

    def __init__(
        self,
        layers: Any,
        rotations: RotationTable,
        hidden: torch.Tensor,
        sessions: Sequence[KernelRows],
        recurrent: Sequence[int] = (),
        given: torch.Tensor | None = None,
        copies: Mapping[int, torch.Tensor] | None = None,
    ) -> None:
        """Prepare the calls of a forward; committed rows are taken into the states of recurrent layers.

        Args:
            layers: an array of pointers to LayerFields.
            hidden: [rows, hidden], the rows of the sessions in their order, which are overwritten.
            recurrent: indices of the layers with states.
            given: [rows, ..], what each layer is given, in order; None where layers are given nothing.
            copies: by the index of a layer, [rows, 2 * kv_heads * head_size], where its keys and values are
                written as well.

        Raises:
            ProtocolError: as RowStates.steps_to and RowStates.take.
        """
        self._layers, self._threads = layers, torch.get_num_threads()
        self._fields = (SessionRowsFields * len(sessions))(*map(_fields, sessions))
        self._memory: list[object] = []  # that the structures refer to, beside `_kept`
        if recurrent:
            self._take_in(sessions, recurrent)
            for fields, rows in zip(self._fields, sessions, strict=True):
                updated = _updated(rows)
                steps = updated.steps(rows.count)
                self._update(fields, updated.states, steps, recurrent, updated.first)
        last = max([int(rows.paths.positions.max()) for rows in sessions])
        cosines, sines, angles = rotations.addresses(last)
        pointers = (ctypes.c_void_p * len(layers))()
        for index, memory in (copies or {}).items():
            pointers[index] = memory.data_ptr()
        # Memory that the structure refers to.
        self._kept = (hidden, sessions, cosines, sines, angles, given, copies, pointers)
        self._run = RunFields(
            len(hidden),
            hidden.data_ptr(),
            ctypes.addressof(self._fields),
            len(sessions),
            ctypes.addressof(cosines),
            ctypes.addressof(sines),
            None if given is None else given.data_ptr(),
            0 if given is None else given.stride(0),
            ctypes.addressof(pointers) if copies else None,
        )

    def _update(
        self,
        fields: SessionRowsFields,
        states: RowStates,
        steps: UpdateSteps,
        recurrent: Sequence[int],
        first: int = 0,
    ) -> None:
        """Put states and the steps that update them into the structure of a session's rows.

        Args:
            first: the place of the first row that the forward computes.
        """
        addressed = _states_fields(states, recurrent, len(self._layers))
        fields.states, fields.steps = ctypes.addressof(addressed), _steps_fields(steps, first)
        self._memory += [steps, addressed]

    def _take_in(self, sessions: Sequence[KernelRows], recurrent: Sequence[int]) -> None:
        """Take the committed rows of sessions into their states."""
        behind = [each for each in map(_updated, sessions) if each.context > each.states.taken]
        fields = (SessionRowsFields * len(behind))()
        for own, each in zip(fields, behind, strict=True):
            self._update(own, each.states, each.states.steps_to(each.context), recurrent)
        if behind:
            run = RunFields(sessions=ctypes.addressof(fields), count=len(behind))
            library().flowedge_states(
                self._layers,
                ctypes.c_int64(0),
                ctypes.c_int64(len(self._layers)),
                ctypes.byref(run),
                self._threads,
            )
        for each in map(_updated, sessions):
            each.states.take(each.context)

    def compute(self, first: int, stop: int) -> None:
        """Compute the layers [first, stop)."""
        library().flowedge_layers(
            self._layers,
            ctypes.c_int64(first),
            ctypes.c_int64(stop),
            ctypes.byref(self._run),
            self._threads,
        )


def _updated(rows: KernelRows) -> UpdatedStates:
    assert rows.updated is not None, "the block has recurrent layers"
    return rows.updated


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


def _states_fields(states: RowStates, recurrent: Sequence[int], layers: int) -> ctypes.Array[StatesFields]:
    """The states of each layer of a block, of which the layers with the indices `recurrent` have some."""
    fields = (StatesFields * layers)()
    state, recent = states.states, states.recent
    for index, layer in enumerate(recurrent):
        fields[layer] = StatesFields(
            state.data_ptr() + index * state.stride(0) * state.itemsize,
            recent.data_ptr() + index * recent.stride(0) * recent.itemsize,
        )
    return fields


def _steps_fields(steps: UpdateSteps, first: int) -> StepsFields:
    """UpdateSteps, whose arrays the caller keeps; `first` is the place of the forward's first row."""
    arrays = (steps.rows, steps.sources, steps.targets, steps.outputs)
    return StepsFields(steps.count, *(each.ctypes.data for each in arrays), steps.places, first)
