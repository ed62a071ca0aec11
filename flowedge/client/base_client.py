"""What the blocking client and the asyncio client have in common."""

from __future__ import annotations

import weakref
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, Generic

from flowedge.client.channel import SILENCE_S
from flowedge.client.conversation import AnswerT, BaseConversation
from flowedge.client.messages import AUTO, ChatMessage, ToolOffer, checked_messages
from flowedge.client.request import RECOVERY_S, chat_request, checked_seconds, chosen_options, prompt_request
from flowedge.client.transcript import Callbacks, OnRecovering, OnWaiting
from flowedge.cluster.process import Security
from flowedge.cluster.settings import SecuritySettings
from flowedge.core.errors import BadRequestError
from flowedge.core.generate_options import GenerateOptions, is_integer, with_options_shown
from flowedge.device.files import expand_home
from flowedge.network.address import checked_address
from flowedge.v1 import generation_pb2 as pb


@dataclass(eq=False, repr=False)
class BaseClient(Generic[AnswerT]):
    """A client of the agent at `address`.

    It connects with the first call, which raises AccessError if the peer's certificate does not fit.

    Attributes:
        timeout_s: seconds that a whole generation may take.
        silence_s: seconds without any message, signs of life included, after which a device is lost.
        retries: how often a request is sent again for which a device was lost, or which found no room and is
            expected to find some; only before its first event. With 1 or more, a request also waits for a
            pipeline that is being set up.
        recovery_s: seconds for which an answer that has begun waits to go on when the draft node, or the
            connection to it, is lost; 0 ends it with an error at once.
        alternatives: addresses of other draft nodes of the same model, such as a standby: when the draft node
            is lost, or leads no pipeline, requests go there, and answers that have begun go on there. A draft
            node names its own standby, so that one need not be given.
        name: the name that the device's certificate must have; any name of the cluster if None.
        cluster_dir: the directory of the credentials to show, as --cluster-dir; the state directory if None.
        security: credentials that are loaded already, instead of `cluster_dir`.

    Raises:
        BadRequestError: when the form of the address is not host:port, a number of seconds is wrong, or
            `cluster_dir` holds no credentials.
        AccessError: when the files of `cluster_dir` cannot be used.
    """

    address: str
    _: KW_ONLY
    timeout_s: float = 600.0
    silence_s: float = SILENCE_S
    retries: int = 0
    recovery_s: float = RECOVERY_S
    alternatives: Sequence[str] = ()
    name: str | None = None
    cluster_dir: str | Path | None = None
    security: Security | None = None
    _answers: weakref.WeakSet[AnswerT] = field(init=False, default_factory=weakref.WeakSet)

    def __post_init__(self) -> None:
        if not isinstance(self.address, str):
            raise BadRequestError(f"the address is {self.address!r}; it must be text of the form host:port")
        if isinstance(self.alternatives, str):
            raise BadRequestError("alternatives is a text; it must be a sequence of addresses")
        for address in (self.address, *self.alternatives):
            checked_address(address)
        checked_seconds("timeout_s", self.timeout_s)
        checked_seconds("silence_s", self.silence_s)
        if self.recovery_s:
            checked_seconds("recovery_s", self.recovery_s)
        if not is_integer(self.retries) or self.retries < 0:
            raise BadRequestError(f"retries is {self.retries!r}; it must be an integer of 0 or more")
        if self.cluster_dir is not None:
            if self.security is not None:
                raise BadRequestError("give either cluster_dir or security")
            directory = str(expand_home(str(self.cluster_dir)))
            self.security = Security.load(SecuritySettings(cluster_dir=directory))

    @with_options_shown
    def generate(
        self,
        prompt: str | None = None,
        *,
        prompt_ids: Sequence[int] | None = None,
        text: str | None = None,
        timeout_s: float | None = None,
        request_id: str | None = None,
        options: GenerateOptions | None = None,
        on_waiting: OnWaiting | None = None,
        on_recovering: OnRecovering | None = None,
        **arguments: Any,
    ) -> AnswerT:
        """Start an answer; iterate over the result for its chunks as they are accepted.

        Args:
            prompt: a user message, to which the model's chat template is applied.
            prompt_ids: token ids to use unchanged, instead of a prompt.
            text: text that the model continues, instead of a prompt: encoded with the tokenizer's special
                tokens, without the chat template.
            timeout_s: seconds that this generation may take; the client's limit if None.
            request_id: the name of this request in errors and in the logs of all devices; drawn if None.
            options: how to answer; `arguments` replace single fields of it.
            on_waiting: called for each new place of the request among those that wait for room, by the code
                that iterates over the result.
            on_recovering: called by the same code with a `Recovery` when a device was lost, and when more is
                known of it; with None when the answer goes on.

        Raises:
            BadRequestError: when there is no such option, or its value is wrong, before anything is sent.
            AccessError: when the peer's certificate does not fit.
        """
        seconds = self._seconds_for(timeout_s)
        chosen = chosen_options(options, arguments)
        request = prompt_request(chosen, prompt, prompt_ids, request_id, text=text)
        return self._begin(request, seconds, Callbacks(on_waiting, on_recovering))

    @with_options_shown
    def chat(
        self,
        messages: Sequence[ChatMessage | Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        tool_choice: str = AUTO,
        parallel_tool_calls: bool = True,
        template_values: Mapping[str, Any] | None = None,
        parse: bool = True,
        timeout_s: float | None = None,
        request_id: str | None = None,
        options: GenerateOptions | None = None,
        on_waiting: OnWaiting | None = None,
        on_recovering: OnRecovering | None = None,
        **arguments: Any,
    ) -> AnswerT:
        """Start the next message of a conversation; the other arguments are those of `generate`.

        Args:
            messages: the conversation, which ends with a message of the user or with the result of a tool.
                The answer continues the text of a message of the assistant behind it. Dicts have OpenAI's
                form.
            tools: what the model may call, as dicts of OpenAI's form.
            tool_choice: "auto"; "none" to hide the tools; "required" for a call of any tool; or the name of
                the tool to call.
            parallel_tool_calls: whether the answer may call several tools.
            template_values: further values for the model's chat template, such as {"enable_thinking": False}.
            parse: whether reasoning and tool calls are separated from the text of the answer.

        Raises what `generate` raises; BadRequestError also when the conversation or a tool is malformed.
        """
        seconds = self._seconds_for(timeout_s)
        offer = ToolOffer(tools, tool_choice, parallel_tool_calls, template_values)
        chosen = chosen_options(options, arguments)
        request = chat_request(chosen, checked_messages(messages), offer, request_id, parse=parse)
        return self._begin(request, seconds, Callbacks(on_waiting, on_recovering))

    @with_options_shown
    def conversation(
        self,
        *,
        system: str | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
        keeps_partial: bool = False,
        **arguments: Any,
    ) -> BaseConversation[AnswerT]:
        """Begin a conversation, which keeps its history.

        Args:
            system: a system message, for models whose chat template takes one.
            tools: what the model may call, as dicts of OpenAI's form.
            keeps_partial: whether an answer that fails or is cancelled is kept, as far as it came.
            arguments: of `chat`, for each question.
        """
        return BaseConversation(
            self.chat, system=system, tools=tools, keeps_partial=keeps_partial, **arguments
        )

    def __repr__(self) -> str:
        """Return the call that makes a client of the same agent, with what is not the default."""
        name = "" if self.name is None else f", name={self.name!r}"
        return f"{type(self).__name__}({self.address!r}{name})"

    def _seconds_for(self, timeout_s: float | None) -> float:
        """Return the seconds that a generation may take: its own limit if it has one, or the client's."""
        return self.timeout_s if timeout_s is None else checked_seconds("timeout_s", timeout_s)

    def _begin(self, request: pb.GenerateRequest, seconds: float, callbacks: Callbacks) -> AnswerT:
        """Start an answer, which is cancelled if the client is closed before the answer is complete."""
        answer = self._start(request, seconds, callbacks)
        self._answers.add(answer)
        return answer

    @abstractmethod
    def _start(self, request: pb.GenerateRequest, seconds: float, callbacks: Callbacks) -> AnswerT:
        """Send a request, whose answer may take so many seconds."""

    def _cancel_answers(self) -> None:
        for answer in list(self._answers):
            answer.close()
