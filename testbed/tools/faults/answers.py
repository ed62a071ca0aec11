"""Clients that ask while devices fail, and hold each answer against the one without a fault."""

from __future__ import annotations

import http.client
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from flowedge.client import Client
from flowedge.cluster.process import Security
from flowedge.core.errors import FlowEdgeError
from flowedge.core.grammar import Grammar
from testbed.tools.faults import streams

NOTICED_S = 1.0  # a pause from which on an answer counts as broken off
HANG_S = 60.0
RECOVERY_S = 120.0
_SCHEMA = {"type": "object", "properties": {"eggs": {"type": "integer"}, "kind": {"type": "string"}}}
_LONG = {"ignore_eos": True}
_WARM = {"temperature": 1.0}
REQUESTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("Tell me a long story about a hen.", {**_LONG, "max_new_tokens": 400}),
    ("How do you bake bread?", {**_LONG, "max_new_tokens": 200}),
    ("Write a poem about the sea.", {**_LONG, **_WARM, "max_new_tokens": 250, "seed": 1}),
    ("What is a bridge?", {**_LONG, **_WARM, "max_new_tokens": 300, "top_p": 0.9, "seed": 2}),
    (
        "Describe a goose.",
        {**_WARM, "max_new_tokens": 120, "seed": 3, "grammar": Grammar.json_schema(_SCHEMA)},
    ),
    ("Count to a hundred.", {**_LONG, "max_new_tokens": 64, "strategy": "flowspec"}),
)


@dataclass(frozen=True)
class Expected:
    """An answer without a fault."""

    prompt: str
    options: dict[str, Any]
    tokens: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class Answer:
    """What became of one answer.

    Attributes:
        began, ended: on time.monotonic().
        pauses: those of more than NOTICED_S, each with its beginning and its seconds.
        error: by which it ended; "" if it came to its end.
        equal: whether it is the one without a fault.
    """

    began: float
    ended: float
    pauses: tuple[tuple[float, float], ...]
    error: str
    equal: bool


def expected_answers(address: str) -> list[Expected]:
    """Ask for each answer once, without a fault."""
    with Client(address, security=Security(None, insecure=True), timeout_s=300) as client:
        client.await_ready(120)
        found = []
        for prompt, options in REQUESTS:
            answer = client.generate(prompt, **options).result()
            found.append(Expected(prompt, options, tuple(answer.token_ids), answer.text))
    return found


def expected_streams(gateway: str) -> list[Expected]:
    """Ask a gateway for each of its answers once, without a fault; they have a text alone."""
    return [
        Expected(asked["prompt"], asked, (), "".join(streams.pieces(gateway, asked)))
        for asked in streams.REQUESTS
    ]


@dataclass
class Askers:
    """Clients that ask, each in a thread, until `end`: by turns of the draft node and of the gateway.

    Attributes:
        address: of the draft node; gateway: of the gateway.
        expected, expected_texts: the answers without a fault, of the draft node and of the gateway.
        answers: all that have ended.
        crashes: errors that are none of an answer, and by which a client has ended.
    """

    address: str
    gateway: str
    expected: Sequence[Expected]
    expected_texts: Sequence[Expected]
    number: int
    seed: int
    answers: list[Answer] = field(default_factory=list)
    crashes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(
                target=self._noting_crashes,
                args=(self._stream if place % 2 else self._run, self.seed + place),
                name=f"client-{place}",
            )
            for place in range(self.number)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> bool:
        """Let the running answers end; return whether all did."""
        self._ended.set()
        until = time.monotonic() + RECOVERY_S + HANG_S
        for thread in self._threads:
            thread.join(max(until - time.monotonic(), 0.0))
        return not any(thread.is_alive() for thread in self._threads)

    def _noting_crashes(self, run: Callable[[int], None], seed: int) -> None:
        try:
            run(seed)
        except Exception as raised:
            self.crashes.append(f"{type(raised).__name__}: {raised}")
            raise

    def _run(self, seed: int) -> None:
        chance = random.Random(seed)
        settings: dict[str, Any] = {"timeout_s": 600, "retries": 1000, "recovery_s": RECOVERY_S}
        with Client(self.address, security=Security(None, insecure=True), **settings) as client:
            while not self._ended.is_set():
                answer = ask(client.generate, chance.choice(self.expected))
                with self._lock:
                    self.answers.append(answer)

    def _stream(self, seed: int) -> None:
        chance = random.Random(seed)
        while not self._ended.is_set():
            answer = ask_gateway(self.gateway, chance.choice(self.expected_texts))
            with self._lock:
                self.answers.append(answer)


def ask(generate: Callable[..., Any], expected: Expected) -> Answer:
    """Ask for an answer and read it to its end."""
    pauses, error, tokens, text = Pauses(), "", (), ""
    try:
        running = generate(expected.prompt, **expected.options)
        for _ in running:
            pauses.note()
        tokens, text = tuple(running.token_ids), running.text
    except FlowEdgeError as raised:
        error = f"{type(raised).__name__}: {raised}"
    return pauses.ended(error, (tokens, text) == (expected.tokens, expected.text))


def ask_gateway(gateway: str, expected: Expected) -> Answer:
    """Ask a gateway for an answer and read its stream to the end."""
    pauses, error, text = Pauses(), "", ""
    try:
        for piece in streams.pieces(gateway, expected.options):
            pauses.note()
            text += piece
    except (FlowEdgeError, OSError, http.client.HTTPException, ValueError) as raised:
        error = f"by HTTP: {type(raised).__name__}: {raised}"
    return pauses.ended(error, text == expected.text)


class Pauses:
    """Notes when parts of an answer come, from now on."""

    def __init__(self) -> None:
        self._began = self._moved = time.monotonic()
        self._long: list[tuple[float, float]] = []

    def note(self) -> None:
        """Note that a part has come, or the end."""
        now = time.monotonic()
        if now - self._moved > NOTICED_S:
            self._long.append((self._moved, now - self._moved))
        self._moved = now

    def ended(self, error: str, equal: bool) -> Answer:
        """Return the answer that has just ended."""
        self.note()
        return Answer(self._began, self._moved, tuple(self._long), error, equal)
