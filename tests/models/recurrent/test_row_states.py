"""What a session holds of its rows in recurrent layers: which rows, where, and in how much memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flowedge.core.errors import PrefixLostError, ProtocolError
from flowedge.models.families.parts import ShortConvolution
from flowedge.models.recurrent.row_states import RowStates, session_bytes

NET = ShortConvolution(row_values=2, inputs=3, layers=(True, True))


def begun(rows: int) -> RowStates:
    """States of two layers, with so many draft rows; each row is held as its number from 1 on."""
    states = RowStates(NET, 2, "cpu")
    states.steps(0, rows, np.arange(rows) - 1)
    states.recent[:, states.index_of(0) : states.index_of(rows)] = torch.arange(1.0, rows + 1)[:, None]
    return states


def held(states: RowStates, rows: int) -> list[float]:
    """The rows before the state's, and `rows` rows since."""
    values = states.recent[:, : 2 + rows]
    assert (values == values[:1, :, :1]).all(), "layers and values alike"
    return values[0, :, 0].tolist()


def test_committed_rows_stay_as_far_as_later_rows_read_them() -> None:
    states = begun(6)
    states.take(4)
    assert states.taken == 4
    assert held(states, 2) == [3, 4, 5, 6]
    states.take(4)
    assert held(states, 2) == [3, 4, 5, 6]


def test_a_state_cannot_be_taken_back() -> None:
    states = begun(6)
    states.take(4)
    with pytest.raises(ProtocolError, match="a context of 3 rows, and the state is behind row 4"):
        states.take(3)


def test_rows_that_were_never_computed_are_no_context() -> None:
    with pytest.raises(ProtocolError, match="a context of 7 rows, of which 6 were computed"):
        begun(6).steps_to(7)


def test_rows_that_a_prune_retains_follow_each_other() -> None:
    states = begun(8)
    states.take(2)
    states.gather(3, np.array([5, 7]))
    assert held(states, 3) == [1, 2, 3, 6, 8]
    states.gather(3, np.array([], dtype=np.int64))
    states.take(3)
    assert held(states, 0) == [2, 3]


def test_another_session_begins_with_rows_that_the_state_is_not_beyond() -> None:
    source, states = begun(6), RowStates(NET, 2, "cpu")
    source.take(3)
    with pytest.raises(PrefixLostError, match=r"2 rows are asked for, and the state .* is behind row 3"):
        states.copy(source, np.arange(2))
    states.copy(source, np.array([0, 1, 2, 4]))
    assert (states.taken, held(states, 1)) == (3, [2, 3, 5])
    with torch.inference_mode():
        states.recent[:] = 0
    assert held(source, 3) == [2, 3, 4, 5, 6], "a copy"


def test_the_memory_of_a_chunk_of_a_prompt_is_given_back() -> None:
    states = begun(128)
    assert states.nbytes > 5 * 2 * session_bytes(NET)
    states.take(128)
    assert states.nbytes <= 1.2 * 2 * session_bytes(NET)
    assert held(states, 0) == [127, 128]
