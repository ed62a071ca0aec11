"""What a draft node's pipeline takes and returns, and what its sessions may use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from flowedge.core.errors import BadRequestError, ContextLengthError
from flowedge.core.pipeline_config import DRAFT_NODE, VerificationPlace
from flowedge.core.request import Request
from flowedge.strategies.auto.measured import MeasuredPipeline
from flowedge.strategies.base import Strategy
from flowedge.strategies.registry import session_strategy


@dataclass(frozen=True)
class DraftNodeSpec:
    """What the draft node's pipeline takes and returns.

    Attributes:
        width: values of a row that comes back: the final hidden state, then what was tapped for the drafter
            (see models/taps.py); dtype: numpy name of the values.
        max_positions: longest sequence the model is made for.
        prefill_rows: rows of a prefill chunk.
        has_drafter: whether strategies that draft can be served.
        needs_features: whether the drafter is given the target's hidden states.
        looks_up: whether lookup alone can be asked of the drafter (see GrowRequest.lookup_alone).
        num_stages: verification stages, by which lock-step strategies time their steps.
        num_routes: pipelines that sessions may use: the target's, and one for each model of a hierarchy
            between the drafter and the target.
        kept_taps: for each stage that keeps what it taps of draft rows (see Open.keeps_taps), the
            column of the first of these values in a row and the column behind the last; empty where they
            come with the rows.
        verification: where the target's tokens are drawn; requests for rows only have nothing to draw.
        vocab_size: bound of the token ids that come back.
        max_sessions: most sessions open at once.
        drafter_name: for messages.
        keeps_drafter: whether the drafter copies true rows from session to session (see DraftPrefix).
        kept_rows: most cache rows of ended sessions that stages keep for later prompts; 0 keeps none, and no
            session begins with rows of another.
        whole_prefixes: whether a session can begin with all rows of an ended one alone, since the states of
            recurrent layers are behind its last row.
        one_host: whether devices of the pipeline share a processor, and so slow each other down.
        least_prefix: a prompt that shares fewer rows with another session is computed from its start.
    """

    width: int
    dtype: str = "float32"
    max_positions: int = 1 << 20
    prefill_rows: int = 128
    has_drafter: bool = True
    needs_features: bool = True
    looks_up: bool = False
    num_stages: int = 1
    num_routes: int = 1
    kept_taps: tuple[tuple[int, int], ...] = ()
    verification: VerificationPlace = DRAFT_NODE
    vocab_size: int = 1 << 31
    max_sessions: int = 1 << 16
    drafter_name: str = "in use"
    keeps_drafter: bool = False
    kept_rows: int = 0
    whole_prefixes: bool = False
    one_host: bool = False
    least_prefix: int = 16

    def session_strategies(self) -> Callable[[Request], Strategy]:
        """Return what makes the strategy of each session of a pipeline, which share what they measure."""
        measured = MeasuredPipeline(one_host=self.one_host, looks_up=self.looks_up)
        return partial(session_strategy, measured=measured)

    def sequence_rows(self, request: Request) -> int:
        """Return the tokens of a request's prompt and answer together.

        Raises:
            BadRequestError: when the request cannot be served by any pipeline.
            ContextLengthError: when they are more than the model takes.
        """
        prompt, new_tokens = len(request.prompt), 0 if request.rows_only else request.max_new_tokens
        if not prompt:
            raise BadRequestError("the prompt has no tokens")
        if new_tokens < 1 and not request.rows_only:
            raise BadRequestError(f"max_new_tokens is {request.max_new_tokens}; it must be 1 or more")
        wanted = prompt + new_tokens
        if wanted > self.max_positions:
            raise ContextLengthError(
                f"{prompt} prompt tokens and {new_tokens} new ones make {wanted}; "
                f"the model takes {self.max_positions}: shorten the prompt or lower max_new_tokens"
            )
        return wanted
