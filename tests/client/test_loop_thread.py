"""Coroutines for blocking code: interrupts, the end of the process, forks, callers that read slowly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import pytest

from flowedge.client import Client
from flowedge.client.loop_thread import ReadAhead
from flowedge.v1 import generation_pb2 as pb
from tests.client.fake_node import ENDED_S, EndlessAnswer, chunk, finished, serving, started

PROGRAM = """
import os, sys
from flowedge.client import Client

client = Client(sys.argv[1])
answer = client.generate("Hi")
assert next(answer).text == "Hel"
if not os.fork():
    try:
        Client(sys.argv[1]).describe()
    except Exception as error:
        print(type(error).__name__, error, flush=True)
    os._exit(0)
os.wait()
"""


def test_an_interrupt_ends_the_request() -> None:
    endless = EndlessAnswer()
    main = threading.main_thread()
    assert main is threading.current_thread()
    with serving(endless) as (_, address), Client(address) as client:
        answer = client.generate("Hi")
        interrupt = threading.Timer(0.2, signal.pthread_kill, (main.ident, signal.SIGINT))
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            answer.result()
        assert endless.ended.wait(ENDED_S)
        assert (answer.finish_reason, answer.token_ids) == ("cancelled", [5, 6])


def test_a_process_ends_in_the_middle_of_an_answer_and_a_fork_of_it_has_no_client() -> None:
    endless = EndlessAnswer()
    with serving(endless) as (_, address):
        ran = subprocess.run(
            [sys.executable, "-c", PROGRAM, address],
            env={**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "0"},  # gRPC's own handlers of a fork may crash
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert endless.ended.wait(ENDED_S)
    assert ran.returncode == 0
    assert "Traceback" not in ran.stderr
    assert ran.stdout.startswith(
        "FlowEdgeError this process was forked from a process that has used a client"
    )


def test_a_caller_that_reads_slowly_holds_up_no_draft_node() -> None:
    sent = threading.Event()

    def long(request: Any, context: Any) -> Iterator[pb.GenerateEvent]:
        yield started()
        for token in range(10_000):
            yield chunk("some text of a token", token)
        sent.set()
        yield finished()

    with serving(long) as (_, address), Client(address) as client:
        answer = client.generate("Hi")
        assert sent.wait(60)
        assert answer.token_ids == []
        assert len(answer.result().token_ids) == 10_000


def test_what_is_read_ahead_has_a_limit_and_its_end_and_error_come_last() -> None:
    read = 0

    async def numbers() -> AsyncGenerator[int, None]:
        nonlocal read
        for number in range(40):
            read += 1
            yield number
        raise ValueError("no more numbers")

    ahead = ReadAhead(numbers(), 8)
    assert next(ahead) == 0
    time.sleep(0.2)
    assert read <= 10
    taken = []
    with pytest.raises(ValueError, match="no more"):
        for number in ahead:
            taken.append(number)
    assert taken == list(range(1, 40))
