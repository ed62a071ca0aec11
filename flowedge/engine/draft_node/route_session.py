"""A session on a route beside the target's, which leads to a whole model that predicts tokens."""

from __future__ import annotations

from flowedge.core.errors import ProtocolError
from flowedge.core.messages import CONTEXT, Prune, Segment
from flowedge.protocol.pipeline_ledger import PipelineLedger
from flowedge.strategies.commands import Keep, SendTo
from flowedge.strategies.events import Predicted, Returned

TOKEN_DTYPE = "int32"  # numpy name of the token ids that come back


class RouteSession:
    """A chain of rows, prompt first, so that a row is its position. Each row comes back as a predicted token.

    Nothing is sent beyond the prompt, and nothing pruned, before all of the prompt has come back.

    Attributes:
        ledger: the segments in flight; ready: whether the prompt has come back.
    """

    def __init__(
        self, session: str, route: int, prompt: tuple[int, ...], capacity: int, vocab_size: int
    ) -> None:
        """capacity: cache rows; vocab_size: the target's number of token ids."""
        self.ledger = PipelineLedger(session, prompt)
        self._route = route
        self._prompt_rows = len(prompt)
        self._capacity = capacity
        self._vocab_size = vocab_size
        self._returned = 0  # live rows that have come back

    @property
    def ready(self) -> bool:
        return self._returned >= self._prompt_rows

    def segment(self, command: SendTo) -> Segment:
        """Append tokens to the chain and return the segment that carries them.

        Raises:
            ValueError: when they do not follow the chain's last token, or do not fit.
        """
        sequence, count = self.ledger.sequence, len(command.tokens)
        first = sequence.length
        if command.position != first or first + count > self._capacity or not self.ready:
            raise ValueError(
                f"{count} tokens from position {command.position} on for route {self._route}, which has "
                f"{first} and room for {self._capacity}"
            )
        rows = range(first, first + count)
        parents = tuple(row - 1 if row > sequence.context else CONTEXT for row in rows)
        return self.ledger.append(command.tokens, parents)

    def keep(self, command: Keep) -> Prune | None:
        """Shorten the chain, and make its certain rows context; None if nothing changes."""
        sequence = self.ledger.sequence
        end = min(command.end, sequence.length)
        self._returned = min(self._returned, max(end, sequence.context))
        context = max(min(command.context, self._returned), sequence.context)
        if end >= sequence.length and context == sequence.context:
            return None
        prune = sequence.keep(end, context)
        self.ledger.prune(prune)
        return prune

    def take_result(self, segment: Segment) -> Predicted | Returned | None:
        """Take in a returned segment. Return the event of its draft rows; None if it is of the prompt.

        Raises:
            ProtocolError: when the segment does not fit the session.
        """
        segment = self.ledger.take_back(segment, (), TOKEN_DTYPE)
        if not segment.num_rows:
            return Returned(route=self._route)
        tokens = segment.payload
        if not (tokens.min() >= 0 and tokens.max() < self._vocab_size):
            raise ProtocolError(
                f"segment {segment.number} came back with a token id outside 0..{self._vocab_size - 1}"
            )
        self._returned = segment.first_row + segment.num_rows
        if segment.committed:
            return None
        return Predicted(self._route, segment.first_row, tuple(tokens.tolist()))
