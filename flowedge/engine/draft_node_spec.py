"""What a draft node is told of its pipeline."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DraftNodeSpec:
    """What the draft node's pipeline takes and gives.

    Attributes:
        width: size of the rows that come back: the final hidden state and what was tapped on the way (see
            models/layers/taps.py); dtype: their numpy name.
        max_positions: longest sequence the model is made for.
        prefill_rows: rows of a prefill chunk.
        has_drafter: whether strategies that draft can be served.
        needs_features: whether the drafter is given the target's hidden states.
        num_stages: verification stages, by which lock-step strategies pace themselves.
        num_middles: middle models, on the routes 1 and so on; vocab_size: bound of their answers.
        max_sessions: most sessions open at once.
    """

    width: int
    dtype: str = "float32"
    max_positions: int = 1 << 20
    prefill_rows: int = 128
    has_drafter: bool = True
    needs_features: bool = True
    num_stages: int = 1
    num_middles: int = 0
    vocab_size: int = 1 << 31
    max_sessions: int = 1 << 16
