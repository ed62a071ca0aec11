"""Wrong options, types and prompts are refused by name, before anything is sent."""

from __future__ import annotations

import asyncio
import dataclasses
import http.server
import json
import pydoc
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import flowedge
from flowedge.client import AsyncClient, Client
from flowedge.client.request import prompt_request
from flowedge.core.errors import BadRequestError, ProtocolError
from flowedge.core.generate_options import GenerateOptions
from tests.support.commands import run_command


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"temprature": 1}, "there is no option temprature; did you mean temperature?"),
        ({"max_tokens": 1}, "there is no option max_tokens; did you mean max_new_tokens?"),
        ({"colour": 1}, "there is no option colour; the options are strategy, "),
        ({"stop": [1]}, "stop is [1] (list); it must be a list of strings"),
        ({"stop": "x"}, "stop is 'x' (str); it must be a list of strings"),
        ({"stop": ["x", ""]}, "stop string 2 is empty"),
        ({"stop": ["\udc80"]}, "stop string 1 is not valid UTF-8: its character 1 is byte 0x80"),
        ({"strategy": 3}, "strategy is 3 (int); it must be text"),
        ({"max_new_tokens": 2.5}, "max_new_tokens is 2.5 (float); it must be an integer"),
        ({"max_new_tokens": True}, "max_new_tokens is True (bool); it must be an integer"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0; it must be from 1 to 2147483647"),
        ({"max_new_tokens": 2**31}, "max_new_tokens is 2147483648; it must be from 1 to 2147483647"),
        ({"temperature": "warm"}, "temperature is 'warm' (str); it must be a number"),
        ({"temperature": -1.0}, "temperature is -1.0; it must be 0, or finite and 1e-06 or more"),
        ({"temperature": float("nan")}, "temperature is nan; it must be 0, or finite and 1e-06 or more"),
        ({"top_p": 0.0}, "top_p is 0.0; it must be above 0 and at most 1"),
        ({"top_p": "1"}, "top_p is '1' (str); it must be a number"),
        ({"top_k": 1.0}, "top_k is 1.0 (float); it must be an integer"),
        ({"top_k": -1}, "top_k is -1; it must be from 0 to 2147483647"),
        ({"seed": -1}, "seed is -1; it must be from 0 to 9223372036854775807"),
        ({"seed": 2**63}, "seed is 9223372036854775808; it must be from 0 to 9223372036854775807"),
        ({"seed": "7"}, "seed is '7' (str); it must be an integer or None"),
        ({"strategy_options": [1]}, "strategy_options is [1] (list); it must be a dict of numbers"),
        (
            {"strategy_options": {"a": "b"}},
            "strategy_options is {'a': 'b'} (dict); it must be a dict of numbers",
        ),
        ({"noise": "loud"}, "noise is 'loud'; it must be plain or shared"),
        ({"noise": 3}, "noise is 3 (int); it must be text"),
        ({"priority": 3}, "priority is 3 (int); it must be text"),
        ({"priority": "urgent"}, "priority is 'urgent'; it must be interactive, normal or batch"),
        ({"ignore_eos": "no"}, "ignore_eos is 'no' (str); it must be True or False"),
        ({"system": 3}, "system is 3 (int); it must be text or None"),
        ({"system": " "}, "the system message is empty"),
        ({"timeout_s": 0}, "timeout_s is 0; it must be finite and above 0"),
        ({"timeout_s": "9"}, "timeout_s is '9' (str); it must be a number of seconds"),
        ({"request_id": 3}, "request_id is 3 (int); it must be text"),
        ({"options": {"seed": 3}}, "options is {'seed': 3} (dict); it must be GenerateOptions"),
        ({"prompt": 3}, "prompt is 3 (int); it must be text; give token ids as prompt_ids"),
        ({"prompt": "ab\udcff"}, "the prompt is not valid UTF-8: its character 3 is byte 0xff"),
        ({"prompt": None, "prompt_ids": "ab"}, "prompt_ids is 'ab' (str); it must be one or more token ids"),
        ({"prompt": None, "prompt_ids": 3}, "prompt_ids is 3 (int); it must be one or more token ids"),
        ({"prompt": None, "prompt_ids": [1, 1.5]}, "prompt_ids[1] is 1.5 (float); it must be an integer"),
        ({"prompt": None}, "give either prompt or prompt_ids or text"),
        ({"prompt_ids": [1]}, "give either prompt or prompt_ids or text"),
        ({"prompt": " \n"}, "the prompt is empty"),
        ({"prompt": None, "prompt_ids": []}, "prompt_ids is empty; it must be one or more token ids"),
        ({"prompt": None, "prompt_ids": [-1]}, "prompt_ids[0] is -1; it must be from 0 to 2147483647"),
    ],
)
def test_what_is_wrong_is_named(arguments: dict[str, Any], complaint: str) -> None:
    async def ask() -> None:
        async with AsyncClient("127.0.0.1:1") as client:
            client.generate(**arguments)

    arguments = {"prompt": "Hi"} | arguments
    with Client("127.0.0.1:1") as client, pytest.raises(BadRequestError) as caught:
        client.generate(**arguments)
    assert str(caught.value).startswith(complaint)
    with pytest.raises(BadRequestError) as caught:
        asyncio.run(ask())
    assert str(caught.value).startswith(complaint)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"address": 7070}, "must be text of the form host:port"),
        ({"address": "a:1", "timeout_s": -1}, "timeout_s is -1"),
        ({"address": "a:1", "silence_s": None}, "silence_s is None"),
        ({"address": "a:1", "cluster_dir": "/missing"}, "/missing holds no credentials"),
    ],
)
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_client_checks_its_own_settings(kind: Any, arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises(BadRequestError, match=complaint):
        kind(**arguments)


def test_numbers_of_numpy_are_numbers() -> None:
    options = GenerateOptions(max_new_tokens=np.int64(3), temperature=np.float32(0.5), seed=np.int64(7))  # type: ignore[arg-type]
    request = prompt_request(options, None, np.array([3, 4]))  # type: ignore[arg-type]
    sent = json.loads(request.options)
    assert (sent["max_new_tokens"], sent["temperature"], sent["seed"]) == (3, 0.5, 7)
    assert list(request.prompt_ids.ids) == [3, 4]


@contextmanager
def _web_server() -> Iterator[str]:
    class Quiet(http.server.BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 (the name is http.server's)
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def test_a_web_server_at_the_address_is_a_protocol_error() -> None:
    async def describe(address: str) -> None:
        async with AsyncClient(address) as client:
            await client.describe()

    async def ask(address: str) -> None:
        async with AsyncClient(address) as client:
            await client.generate("Hi").result()

    with _web_server() as address, Client(address) as client:
        for attempt in (
            client.describe,
            lambda: client.generate("Hi").result(),
            lambda: asyncio.run(describe(address)),
            lambda: asyncio.run(ask(address)),
        ):
            with pytest.raises(ProtocolError, match=f"{address} is not a FlowEdge agent"):
                attempt()


def test_a_system_message_makes_a_conversation() -> None:
    assert prompt_request(GenerateOptions(), "Hi").WhichOneof("input") == "prompt"
    request = prompt_request(GenerateOptions(system="Be brief."), "Hi")
    assert request.WhichOneof("input") == "conversation"
    assert [message.content for message in request.conversation.messages] == ["Be brief.", "Hi"]
    with pytest.raises(BadRequestError, match="goes with a prompt"):
        prompt_request(GenerateOptions(system="Be brief."), None, [1, 2])


@pytest.mark.parametrize("method", [flowedge.Client.generate, flowedge.AsyncClient.chat])
def test_help_shows_each_option_with_its_default_its_range_and_its_meaning(method: Any) -> None:
    shown = pydoc.plain(pydoc.render_doc(method))
    assert (
        "temperature: float | None = None" in shown
        and "max_new_tokens: int = 256" in shown
        and "seed: int | None = None" in shown
    )
    assert "top_p (above 0, at most 1): Probability mass" in shown
    for option in dataclasses.fields(GenerateOptions):
        assert f"{option.name}: " in shown or f"{option.name} (" in shown
        assert option.metadata["description"] in shown


def test_completion_shows_the_public_names_before_they_are_imported() -> None:
    code = "import sys, flowedge; print('Client' in dir(flowedge), 'flowedge.client' in sys.modules)"
    assert run_command([sys.executable, "-c", code], check=True).stdout == "True False\n"
    assert dir(flowedge) == sorted(flowedge.__all__)


def test_a_client_shows_what_it_asks() -> None:
    assert repr(flowedge.Client("kitchen:7070", name="kitchen")) == "Client('kitchen:7070', name='kitchen')"
