"""Types of numpy arrays; the shape of an array is documented where it is used."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

NO_TOKEN = -1  # in an array of token ids, where there is no token

IntArray: TypeAlias = npt.NDArray[np.int64]
FloatArray: TypeAlias = npt.NDArray[np.float64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]
Payload: TypeAlias = npt.NDArray[Any]  # int32 token ids, or hidden states (bfloat16 as uint16 bit patterns)
