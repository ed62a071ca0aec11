"""What a stage accepts and hands on, and why it refuses to open a session."""

from __future__ import annotations

from dataclasses import dataclass

from flowedge.core.errors import CapacityError, FlowEdgeError, ProtocolError
from flowedge.core.message_limits import SEGMENT_ROWS
from flowedge.core.messages import Open
from flowedge.engine.pages import PAGE_ROWS, in_pages


@dataclass(frozen=True)
class StageSpec:
    """What a stage accepts and hands on.

    Attributes:
        is_first: whether it takes token ids, and grants credits; other stages take hidden states.
        width: values of a row of hidden states that it takes.
        tapped_before: of these, the values that stages before it have tapped. Draft rows come without them if
            stages keep what they tap (see Open.keeps_taps).
        added_width: values that it taps, by which the rows that it hands on are wider (see models/taps.py).
        carried, handed_on: values beside the hidden state that the layers of this stage or of later ones
            read, in the rows that it takes and in those that it hands on (see models/session_rows.py). The
            first stage takes no hidden states and hands on rows of width + handed_on + added_width.
        vocab_size: bound of token ids; dtype: numpy name of hidden states.
        max_rows: most rows of one segment; max_capacity: most cache rows of one session.
        max_total_capacity: most cache rows of all sessions together.
        on_demand: whether caches take memory as rows are written; then the rows that a session has written
            count, in whole pages, not its capacity.
        state_rows: cache rows that the states of recurrent layers count as, for each session.
        page_saving: cache rows by which a session counts less for each page that it shares with another; 0
            where caches share no pages.
        sharing: how many sessions can share pages at once.
        max_sessions: most sessions open at once, and most caches retained of ended sessions.
        max_queue: most segments that wait to be computed.
        draws: whether it is a last stage with the LM head, which can draw tokens (see Open.drawing).
        returns_tokens: whether it hands on a token id for each row, int32 [n], and no hidden state.
        layers: the layers that it computes, for messages.
    """

    is_first: bool
    width: int
    vocab_size: int
    dtype: str = "float32"
    max_rows: int = SEGMENT_ROWS
    max_capacity: int = 1 << 20
    max_total_capacity: int = 1 << 40
    on_demand: bool = False
    state_rows: int = 0
    page_saving: int = 0
    sharing: int = 0
    max_sessions: int = 64
    max_queue: int = 4096
    added_width: int = 0
    carried: int = 0
    handed_on: int = 0
    tapped_before: int = 0
    draws: bool = False
    returns_tokens: bool = False
    layers: str = "its layers"

    @property
    def change(self) -> int:
        """Values by which rows that are handed on are wider, without what is tapped; it may be negative."""
        return self.handed_on - self.carried

    def refusal(self, opened: Open, sessions: int, taken: int) -> FlowEdgeError | None:
        """Return the reason for which a session cannot be opened; None if it can.

        Args:
            sessions: number of open sessions; taken: cache rows of open sessions and of retained caches, less
                those that they share.
        """
        name, rows = opened.session, opened.capacity
        reused = 0 if opened.prefix is None else opened.prefix.rows
        if rows < 1 or reused >= rows:
            return ProtocolError(f"session {name} asks for {rows} cache rows, of which {reused} are a prefix")
        if rows > self.max_capacity:
            return CapacityError(
                f"session {name} asks for {rows} cache rows; this stage has room for {self.max_capacity}"
            )
        shared = 0 if opened.prefix is None else opened.prefix.shared
        if shared > reused or shared % PAGE_ROWS or (shared and not self.page_saving):
            return ProtocolError(
                f"session {name} asks for {shared} of {reused} rows in pages of another session"
            )
        first = self.held_rows(reused, rows) - shared // PAGE_ROWS * self.page_saving
        if taken + first > self.max_total_capacity:
            return CapacityError(
                f"session {name} asks for {first} cache rows; this stage has room for "
                f"{self.max_total_capacity}, of which other sessions have {taken}"
            )
        if sessions >= self.max_sessions:
            return CapacityError(f"{self.max_sessions} sessions are open here already")
        return None

    def held_rows(self, written: int, capacity: int) -> int:
        """Return by how many cache rows a session counts that has written so many."""
        return self.state_rows + (in_pages(written, capacity) if self.on_demand else capacity)
