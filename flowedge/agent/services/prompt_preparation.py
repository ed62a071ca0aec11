"""The prompt of a request as tokens, how its answer is read, and what its caller has of the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from flowedge.agent.agent_config import AgentLimits
from flowedge.agent.services.conversation import CheckedConversation, checked_conversation
from flowedge.core.errors import BadRequestError
from flowedge.core.grammar import Grammar
from flowedge.core.request import Request
from flowedge.engine.draft_node.session_answer import Accepted, OutputText
from flowedge.text.answer_parser import AnswerParser
from flowedge.text.answer_syntax import AnswerSyntax, answer_syntax, opens_thought
from flowedge.text.known_syntaxes import HERMES, THOUGHT, ToolCallFormat, tool_call_format
from flowedge.text.system_message import folded_system, takes_system
from flowedge.text.template_tools import calls_by_itself, described_tools
from flowedge.text.tokenizer import (
    StreamDecoder,
    chat_template,
    directory_of,
    encode_text,
    render_messages,
    special_tokens,
)
from flowedge.text.tool_grammar import tool_grammar
from flowedge.v1 import generation_pb2 as pb

if TYPE_CHECKING:
    from flowedge.engine.executors.draft_models import DraftModels


@dataclass(frozen=True)
class ReadPrompt:
    """A prompt as the model sees it.

    Attributes:
        text: of the whole prompt, "" if nobody asked for it.
        form: of the answer; None where all of it is text.
        shown: special tokens that the form looks for.
        conversation: None for another kind of prompt.
        forced: a Lark grammar that has the answer call tools, or follow the request's grammar; "" where no
            call is forced, and where there is no grammar.
        system_folded: whether system messages stand in messages of the user.
    """

    ids: tuple[int, ...]
    text: str = ""
    form: AnswerSyntax | None = None
    shown: frozenset[int] = frozenset()
    conversation: CheckedConversation | None = None
    forced: str = ""
    system_folded: bool = False

    def parser(self) -> AnswerParser | None:
        """Return what separates the answer; None where all of it is text."""
        if self.form is None:
            return None
        asked = self.conversation
        if asked is None:
            return AnswerParser(self.form, self.text)
        return AnswerParser(self.form, self.text, asked.tools, single=asked.single)


def read_prompt(
    message: pb.GenerateRequest,
    models: DraftModels,
    limits: AgentLimits,
    grammar: Grammar | None = None,
    *,
    echo: bool,
) -> ReadPrompt:
    """Turn the prompt of a request into tokens.

    Args:
        grammar: of the answer, if it has one.
        echo: whether the text of the prompt is asked for.

    Raises:
        BadRequestError: when it makes no sense, or the model cannot do what it asks for.
        CapacityError: when it is longer than the limits.
        CheckpointError: when a template of the model cannot be used.
    """
    match message.WhichOneof("input"):
        case "prompt":
            limits.check_prompt_text(message.prompt)
            asked = pb.Conversation(messages=[pb.ChatMessage(role="user", content=message.prompt)])
            read = _of_conversation(asked, message, models, limits, grammar)
        case "conversation":
            read = _of_conversation(message.conversation, message, models, limits, grammar)
        case "text":
            limits.check_prompt_text(message.text)
            read = ReadPrompt(tuple(encode_text(models.tokenizer, message.text)), message.text)
        case _:
            read = _of_ids(message, models, limits, echo=echo)
    limits.check_prompt_tokens(len(read.ids))
    return read


def _of_ids(
    message: pb.GenerateRequest, models: DraftModels, limits: AgentLimits, *, echo: bool
) -> ReadPrompt:
    limits.check_prompt_tokens(len(message.prompt_ids.ids))
    ids = tuple(message.prompt_ids.ids)
    if ids and max(ids) >= models.vocab_size:
        raise BadRequestError(
            f"a prompt token is {max(ids)}, the model has tokens 0 to {models.vocab_size - 1}"
        )
    return ReadPrompt(ids, models.tokenizer.decode(ids) if echo else "")


def _of_conversation(
    asked: pb.Conversation,
    message: pb.GenerateRequest,
    models: DraftModels,
    limits: AgentLimits,
    grammar: Grammar | None,
) -> ReadPrompt:
    conversation = checked_conversation(asked, limits)
    tokenizer = models.tokenizer
    template, place = chat_template(tokenizer), directory_of(tokenizer)
    folds = conversation.has_system and not takes_system(template, place)
    own = getattr(tokenizer, "response_template", None)
    calls, text_only = _tool_call_format(conversation, tokenizer, template, place)
    messages, tools = conversation.messages, conversation.tools
    if folds:
        messages = folded_system(messages)
    if text_only:
        own, messages, tools = None, described_tools(messages, tools), []
    text = render_messages(tokenizer, messages, tools=tools, values=conversation.values)
    if conversation.begun:
        thought_ends = f"{THOUGHT[1]}\n\n" if opens_thought(text) else ""
        text += thought_ends + conversation.begun
    form = None
    if message.parse_answer:
        form = answer_syntax(template, own, calls if conversation.tools else None, place)
    special = special_tokens(tokenizer)
    shown = [special[marker] for marker in form.markers(special)] if form is not None else []
    return ReadPrompt(
        ids=tuple(encode_text(tokenizer, text, chat=True)),
        text=text,
        form=form,
        shown=frozenset(shown),
        conversation=conversation,
        forced=_forced(conversation, calls, template, text, special, grammar),
        system_folded=folds,
    )


def _tool_call_format(
    conversation: CheckedConversation, tokenizer: Any, template: str, place: str
) -> tuple[ToolCallFormat | None, bool]:
    """Return the form of the calls, and whether tools, calls and results have to be text of messages."""
    if not conversation.tools and not conversation.has_calls:
        return None, False
    if calls_by_itself(tokenizer, template, place):
        return tool_call_format(template), False
    return HERMES, True


def _forced(
    conversation: CheckedConversation,
    calls: ToolCallFormat | None,
    template: str,
    text: str,
    special: dict[str, int],
    grammar: Grammar | None,
) -> str:
    """Return the grammar that has the answer call tools, or follow `grammar` where no call is required.

    Returns "" where the answer may be any text, and where there are no tools beside a grammar.
    """
    if not conversation.required and (grammar is None or not conversation.tools):
        return ""
    if calls is None:
        wanted = "tool_choice requires a call" if conversation.required else "a grammar is to go with tools"
        raise BadRequestError(
            f"{wanted}, and the model's chat template has calls in a form that cannot be forced; leave out "
            'tool_choice, or give "auto", without a grammar'
        )
    return tool_grammar(
        calls,
        conversation.required or conversation.tools,
        special,
        single=conversation.single,
        thinks=THOUGHT[1] in template,
        in_thought=opens_thought(text),
        instead=None if conversation.required else grammar,
    )


def answered_text(request: Request, models: DraftModels) -> Accepted:
    """Return the text of the tokens that the caller of a request has, and why the answer ends with them."""
    return OutputText(request, StreamDecoder(models.tokenizer)).push(request.answered)
