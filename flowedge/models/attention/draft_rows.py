"""The draft tail of a session's cached rows: depths, and which rows see which."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from flowedge.core.errors import ProtocolError


def draft_depths(parents: npt.NDArray[np.int64], context: int) -> npt.NDArray[np.int64]:
    """The depth [tail] of each row of a draft tail, 0 for a child of the context.

    Args:
        parents: [tail], as in `visible_drafts`.

    Raises:
        ProtocolError: when a parent does not come before its child.
    """
    local = _local_parents(parents, context)
    depths = np.arange(parents.size)
    if not (local == depths - 1).all():
        for row, parent in enumerate(local.tolist()):
            depths[row] = 0 if parent == -1 else depths[parent] + 1
    return depths


def visible_drafts(parents: npt.NDArray[np.int64], context: int, rows: int) -> npt.NDArray[np.bool_]:
    """The tail rows that each of the last `rows` rows of a draft tail sees: its ancestors and itself.

    Args:
        parents: [tail], the parent slot of each tail row, -1 for the context; row i is slot context + i.

    Returns:
        Booleans [rows, tail].

    Raises:
        ProtocolError: when a parent does not come before its child.
    """
    tail = parents.size
    local = _local_parents(parents, context)
    if (local == np.arange(tail) - 1).all():
        return np.tri(rows, tail, tail - rows, dtype=np.bool_)
    seen = np.eye(tail, dtype=np.bool_)
    for row in np.flatnonzero(local >= 0):
        seen[row] |= seen[local[row]]
    return seen[tail - rows :]


def _local_parents(parents: npt.NDArray[np.int64], context: int) -> npt.NDArray[np.int64]:
    """The index [tail] of each parent in the tail, -1 for the context. Raises ProtocolError as above."""
    local = np.where(parents == -1, -1, parents - context)
    wrong = (local >= np.arange(parents.size)) | ((parents < context) & (parents != -1))
    if wrong.any():
        row = int(wrong.argmax())
        raise ProtocolError(
            f"the parent of tail row {row} is {parents[row]}, which is neither -1 nor an earlier slot from "
            f"{context} up"
        )
    return local
