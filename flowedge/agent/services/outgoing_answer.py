"""An answer on its way to the client, separated into its parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import nan

from flowedge.agent.services.decoding_rules import logprob_of, logprobs_of
from flowedge.core.request import Request, Tokens
from flowedge.core.sampling import TokenLikelihood
from flowedge.text.answer_parser import AnswerDelta, AnswerParser
from flowedge.text.token_bytes import TokenBytes
from flowedge.v1 import generation_pb2 as pb

TOOL_CALLS = "tool_calls"
_PROMPT_TOKENS = 64  # of an event, each with up to 20 others
_ENDED = ("eos", "stop")  # by itself, not cut off


class OutgoingAnswer:
    """Makes the events of an answer from what the engine puts out.

    The first of them is made elsewhere.
    """

    def __init__(self, parser: AnswerParser | None, token_bytes: TokenBytes) -> None:
        """parser: None if all of the answer is text."""
        self._token_bytes = token_bytes
        self._parser = parser
        self._told_prompt = False
        self._calls = 0

    def pass_over(self, text: str) -> None:
        """Take in text that the client has already."""
        self._read(text)

    def chunk(self, drawn: Sequence[Tokens]) -> pb.GenerateEvent:
        """Return the event for tokens that were drawn."""
        token_ids = [token for tokens in drawn for token in tokens.token_ids]
        chunk = self._read("".join(tokens.text for tokens in drawn))
        chunk.token_ids.extend(token_ids)
        chunk.logprobs.extend(logprobs_of(drawn, self._token_bytes))
        return pb.GenerateEvent(chunk=chunk)

    def of_prompt(self, request: Request, drawn: Sequence[Tokens]) -> Iterator[pb.GenerateEvent]:
        """Yield the events for the likelihoods of the prompt's tokens, a few at a time, if they are wanted.

        drawn: the answer's first tokens, or later ones, for which nothing is yielded.
        """
        if not (request.scores_prompt and drawn) or self._told_prompt:
            return
        self._told_prompt = True
        found = [TokenLikelihood(request.prompt[0], nan), *drawn[0].of_prompt]
        for at in range(0, len(found), _PROMPT_TOKENS):
            listed = [logprob_of(each, self._token_bytes) for each in found[at : at + _PROMPT_TOKENS]]
            yield pb.GenerateEvent(chunk=pb.Chunk(prompt_logprobs=listed))

    def rest(self, text: str, *, cut: bool) -> pb.GenerateEvent | None:
        """Return the last event; None if nothing is left.

        Args:
            text: was held back until now.
            cut: whether the answer was cut off by its limit.
        """
        chunk = self._read(text)
        if self._parser is not None:
            chunk.MergeFrom(self._to_chunk(self._parser.finish(cut=cut), before=chunk))
        empty = not (chunk.text or chunk.reasoning or chunk.tool_calls)
        return None if empty else pb.GenerateEvent(chunk=chunk)

    def reason(self, reason: str) -> str:
        """Return why the answer has ended, for the client."""
        return TOOL_CALLS if self._calls and reason in _ENDED else reason

    def _read(self, text: str) -> pb.Chunk:
        if self._parser is None:
            return pb.Chunk(text=text)
        return self._to_chunk(self._parser.feed(text) if text else AnswerDelta())

    def _to_chunk(self, part: AnswerDelta, before: pb.Chunk | None = None) -> pb.Chunk:
        """Return the chunk of a part; its texts follow those of `before`, into which it is merged."""
        calls = []
        for call in part.calls:
            calls.append(
                pb.ToolCallDelta(index=self._calls, id=call.id, name=call.name, arguments=call.arguments)
            )
            self._calls += 1
        text, reasoning = ("", "") if before is None else (before.text, before.reasoning)
        return pb.Chunk(text=text + part.text, reasoning=reasoning + part.reasoning, tool_calls=calls)
