"""Options of a generation, checked before they go over the wire."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TypedDict

from flowedge.core.errors import BadRequestError
from flowedge.core.request import DEFAULT_STRATEGY, Noise, check_stop, parse_noise
from flowedge.core.request_id import check_request_id, new_request_id
from flowedge.core.sampling import SamplingParams
from flowedge.v1 import generation_pb2 as pb

DEFAULT_MAX_NEW_TOKENS = 256
_TOKEN_LIMIT = 2**31


class GenerateArguments(TypedDict, total=False):
    """The fields of GenerateOptions, as keyword arguments."""

    strategy: str
    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int | None
    stop: Sequence[str]
    strategy_options: Mapping[str, float]
    noise: Noise
    ignore_eos: bool
    system: str | None


@dataclass(frozen=True)
class GenerateOptions:
    """How to answer a prompt; the prompt itself comes with each call.

    Raises:
        BadRequestError: when a value is out of range.
    """

    strategy: str = DEFAULT_STRATEGY
    max_new_tokens: int = DEFAULT_MAX_NEW_TOKENS
    temperature: float = 0.0  # 0 takes the most likely token
    top_p: float = 1.0  # 1 keeps all tokens
    top_k: int = 0  # 0 keeps all tokens
    seed: int | None = None  # None: the draft node draws a seed and reports it
    stop: Sequence[str] = ()  # strings at which the text ends; they are not part of it
    strategy_options: Mapping[str, float] = field(default_factory=dict)
    noise: Noise = "shared"  # what drafts are ranked by above temperature 0; see docs/drafters.md
    ignore_eos: bool = False
    system: str | None = None  # a system message before the prompt, for models whose chat template takes one

    def __post_init__(self) -> None:
        SamplingParams(self.temperature, self.top_k, self.top_p, self.seed or 0)
        parse_noise(self.noise)
        if not 1 <= self.max_new_tokens < _TOKEN_LIMIT:
            raise BadRequestError(f"max_new_tokens is {self.max_new_tokens}; it must be 1 or more")
        if self.top_k >= _TOKEN_LIMIT:
            raise BadRequestError(f"top_k is {self.top_k}; it must be below {_TOKEN_LIMIT}")
        if isinstance(self.stop, str):
            raise BadRequestError("stop is a string; give a list of strings")
        check_stop(self.stop)
        if self.system is not None and not self.system.strip():
            raise BadRequestError("the system message is empty")

    def messages(self, prompt: str) -> list[dict[str, str]]:
        """Return the conversation that a prompt begins."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, {"role": "user", "content": prompt}]

    def to_request(
        self, prompt: str | None, prompt_ids: Sequence[int] | None, request_id: str | None = None
    ) -> pb.GenerateRequest:
        """Return the request for one prompt, given as text or as token ids.

        Args:
            request_id: drawn when it is None.

        Raises:
            BadRequestError: when prompt and prompt_ids are both given or both missing, or one is empty.
        """
        options = asdict(self)
        del options["system"]
        request = pb.GenerateRequest(
            request_id=new_request_id() if request_id is None else check_request_id(request_id),
            **options,
        )
        if (prompt is None) == (prompt_ids is None):
            raise BadRequestError("give either prompt or prompt_ids")
        if prompt is not None:
            if not prompt.strip():
                raise BadRequestError("the prompt is empty")
            if self.system is None:
                request.prompt = prompt
            else:
                request.conversation.messages.extend(pb.ChatMessage(**each) for each in self.messages(prompt))
        if prompt_ids is not None:
            if self.system is not None:
                raise BadRequestError(
                    "a system message goes with a prompt, and prompt_ids are used unchanged"
                )
            if not prompt_ids or not all(0 <= token < _TOKEN_LIMIT for token in prompt_ids):
                raise BadRequestError("prompt_ids must be one token id or more, each 0 or more")
            request.prompt_ids.ids.extend(prompt_ids)
        return request
