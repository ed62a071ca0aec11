"""An answer as a request begins it: the prompt as tokens, and what the caller has of the answer."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from google.protobuf.unknown_fields import UnknownFieldSet

from flowedge.agent.agent_config import AgentLimits
from flowedge.agent.services.decoding_rules import eos_of, rules_of
from flowedge.agent.services.outgoing_answer import OutgoingAnswer
from flowedge.core.errors import BadRequestError, ProtocolError
from flowedge.core.generate_options import GenerateOptions
from flowedge.core.ids import check_request_id, session_of
from flowedge.core.request import DEFAULT_STRATEGY, Request
from flowedge.core.sampling import SamplingParams
from flowedge.strategies.choice import AUTOREGRESSIVE
from flowedge.v1 import generation_pb2 as pb

if TYPE_CHECKING:
    from flowedge.engine.executors.draft_models import DraftModels


@dataclass(frozen=True)
class BegunAnswer:
    """A request, and its answer on its way to the client.

    Attributes:
        outgoing: has taken in the text of the tokens that the caller has.
        ended: why the answer ends with these tokens; None where it goes on.
        prompt_text: "" if nobody asked for it.
        system_folded: whether system messages stand in messages of the user.
        answers_as: what its tokens depend on beside the request; see DraftNodeRole.answers_as.
    """

    request: Request
    outgoing: OutgoingAnswer
    ended: str | None
    prompt_text: str
    system_folded: bool
    answers_as: str = ""


def read_request(
    message: pb.GenerateRequest, models: DraftModels, limits: AgentLimits, caller: str
) -> BegunAnswer:
    """Return the answer that a message asks for, with the prompt as tokens and with a seed.

    caller: who sends the message; tenants of different callers are different.

    Raises:
        BadRequestError: when the message makes no sense.
        CapacityError: when its prompt is longer than the limits.
        ProtocolError: when it is of another version.
    """
    if len(UnknownFieldSet(message)):
        raise ProtocolError(
            "the request has fields that are not known here; install the same version of FlowEdge on both"
        )
    strategy = DEFAULT_STRATEGY if models.has_drafter else AUTOREGRESSIVE
    options = GenerateOptions.from_json(message.options, strategy=strategy).with_sampling(models.sampling)
    from flowedge.agent.services import prompt_preparation  # noqa: PLC0415 (not for idle agents)

    prompt = prompt_preparation.read_prompt(message, models, limits, options.grammar, echo=options.echo)
    scores_prompt = options.echo and options.logprobs is not None
    rules = rules_of(options, models, prompt.ids, prompt.forced)
    request = Request(
        session=session_of(check_request_id(message.request_id)),
        prompt=prompt.ids,
        sampling=SamplingParams(
            **options.drawing(),
            seed=secrets.randbits(32) if options.seed is None else options.seed,
        ),
        max_new_tokens=options.max_new_tokens,
        eos=eos_of(options, models, rules),
        stop=tuple(options.stop),
        strategy=options.strategy,
        strategy_options=dict(options.strategy_options),
        noise=options.noise,
        priority=options.priority,
        shown_tokens=prompt.shown,
        rules=rules,
        fit_context=options.fit_context,
        min_tokens=options.min_tokens,
        scores_prompt=scores_prompt and not message.answered,
        reuses_prefix=not scores_prompt,
        answered=_answered(message, options, models.vocab_size),
        tenant=f"{caller} {options.tenant}",
    )
    outgoing = OutgoingAnswer(prompt.parser(), models.token_bytes)
    said = prompt_preparation.answered_text(request, models)
    outgoing.pass_over(said.text)
    return BegunAnswer(
        request, outgoing, said.reason, prompt.text if options.echo else "", prompt.system_folded
    )


def _answered(message: pb.GenerateRequest, options: GenerateOptions, vocab_size: int) -> tuple[int, ...]:
    """Return the tokens of the answer that the caller has.

    Raises:
        BadRequestError: when they cannot be the beginning of the answer.
    """
    tokens = tuple(message.answered)
    if len(tokens) > options.max_new_tokens:
        raise BadRequestError(
            f"{len(tokens)} tokens are answered already, and max_new_tokens is {options.max_new_tokens}"
        )
    if tokens and max(tokens) >= vocab_size:
        raise BadRequestError(
            f"an answered token is {max(tokens)}, the model has tokens 0 to {vocab_size - 1}"
        )
    if tokens and options.seed is None and options.temperature:
        raise BadRequestError(
            "an answer that was begun goes on with its seed alone: give the one that Started had"
        )
    return tokens
