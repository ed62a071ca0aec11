"""How much an agent takes, from one peer and from all of them."""

from __future__ import annotations

from dataclasses import dataclass

from flowedge.core.errors import BadRequestError, CapacityError

MIB = 1 << 20


@dataclass(frozen=True)
class AgentLimits:
    """What is beyond one of these is refused with an error that says so."""

    sessions: int = 64  # open at once
    segment_rows: int = 4096  # of one segment
    queued_segments: int = 4096  # that wait for a stage's compute lane
    prompt_bytes: int = MIB  # of a prompt as text, before it is made tokens
    prompt_tokens: int = 1 << 17  # of a prompt; the model's own limit is often lower
    calls: int = 512  # going on at once, streams included
    streams_per_peer: int = 64  # of those, streams that one address may hold

    def __post_init__(self) -> None:
        """BadRequestError for a limit below 1."""
        for name, value in vars(self).items():
            if value < 1:
                raise BadRequestError(f"the limit {name} is {value}; it must be 1 or more")

    def check_prompt_text(self, prompt: str) -> None:
        """CapacityError for a prompt that is too long to be looked at."""
        size = len(prompt.encode())
        if size > self.prompt_bytes:
            raise CapacityError(
                f"the prompt has {size} bytes, at most {self.prompt_bytes} are taken; shorten it"
            )

    def check_prompt_tokens(self, number: int) -> None:
        """CapacityError for a prompt of too many tokens."""
        if number > self.prompt_tokens:
            raise CapacityError(
                f"the prompt has {number} tokens, at most {self.prompt_tokens} are taken; shorten it"
            )
