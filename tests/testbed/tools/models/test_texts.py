"""What the bundled target is trained on: every call fits its tool, every function is a program."""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence

from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.text.system_message import takes_system
from flowedge.text.template_tools import capabilities_of
from flowedge.text.tokenizer import render_messages
from testbed.tools.models.texts.conversation import Conversation, with_system, written
from testbed.tools.models.texts.everyday import everyday
from testbed.tools.models.texts.tool_chats import tool_chats
from testbed.tools.models.train_tokenizer import CHAT_TEMPLATE, load_with_template

PLAIN = [Conversation.asked("Hm?", "Yes.")]


def called(conversations: Sequence[Conversation]) -> list[Conversation]:
    return [each for each in conversations if any("tool_calls" in message for message in each.messages)]


def test_every_called_tool_is_there_with_all_its_arguments() -> None:
    chats = called(tool_chats(300, 1, PLAIN))
    assert len(chats) > 100
    for chat in chats:
        tools = {tool["function"]["name"]: tool["function"] for tool in chat.tools}
        (call,) = [each["tool_calls"][0]["function"] for each in chat.messages if "tool_calls" in each]
        assert list(call["arguments"]) == tools[call["name"]]["parameters"]["required"]
        question = next(each["content"] for each in chat.messages if each["role"] == "user")
        assert all(str(value) in question for value in call["arguments"].values())


def test_some_tools_do_not_help() -> None:
    chats = tool_chats(1000, 1, PLAIN)
    assert all(chat.tools for chat in chats)
    assert len(chats) - len(called(chats)) > 100


def test_the_python_functions_are_programs() -> None:
    for task, python, _ in written("everyday.yaml")["functions"]:
        (*_, function) = ast.parse(python).body
        assert isinstance(function, ast.FunctionDef), task


def test_a_system_message_is_put_before_some() -> None:
    said = with_system([Conversation.asked("Hi", "Hello")] * 200, seed=1)
    assert 10 < sum(each.begins for each in said) < 60
    for each in everyday(500, 1):
        assert sum(message["role"] == "system" for message in each.messages) <= 1


def test_the_template_has_system_messages_tools_and_calls() -> None:
    tokenizer = load_with_template(Checkpoint.open("bundled").directory)
    (chat, *_) = called(tool_chats(50, 1, PLAIN))
    text = render_messages(tokenizer, chat.under("Be brief.").messages, answered=True, tools=chat.tools)
    (call,) = [each["tool_calls"][0]["function"] for each in chat.messages if "tool_calls" in each]
    assert text.startswith("<s>Be brief.\n\nTools:\n")
    assert f'<tool_call>\n{{"name": "{call["name"]}", "arguments": {json.dumps(call["arguments"])}}}' in text
    assert text.endswith(f"<|assistant|>{chat.messages[-1]['content']}</s>")
    assert capabilities_of(tokenizer) == ("tools",)
    assert takes_system(CHAT_TEMPLATE, "here")
