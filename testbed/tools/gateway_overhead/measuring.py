"""The measurements."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median

import psutil

from flowedge.client import Client
from flowedge.network.address import split_address
from testbed.tools.gateway_overhead.asking import AskedTimes, ask_directly, http_asker

STREAMS = 64  # at once
IDLE = 1000  # connections that do nothing
_CONNECT_S = 30.0


@dataclass(frozen=True)
class Overhead:
    """Medians over pairs of requests, in seconds; `added` are medians of the differences of pairs."""

    direct: AskedTimes
    served: AskedTimes
    added: AskedTimes


def measure_overhead(draft_node: str, gateway: str, pairs: int, tokens: int) -> Overhead:
    """Ask through HTTP and directly, in turns; which of them is first changes with each pair."""
    direct: list[AskedTimes] = []
    served: list[AskedTimes] = []
    with Client(draft_node) as client, http_asker(gateway) as asker:
        asker.ask("warm", tokens)
        ask_directly(client, "warm", tokens)
        for pair in range(pairs):
            turns = [
                lambda prompt: direct.append(ask_directly(client, prompt, tokens)),
                lambda prompt: served.append(asker.ask(prompt, tokens)),
            ]
            for turn in turns if pair % 2 else reversed(turns):
                turn(f"{len(direct) + len(served)} def count_vowels(text):")  # no prefix that is kept
    added = [
        AskedTimes(through.first - beside.first, through.between - beside.between)
        for through, beside in zip(served, direct, strict=True)
    ]
    return Overhead(_medians(direct), _medians(served), _medians(added))


def measure_memory(gateway: str, pid: int, rounds: int, tokens: int) -> list[float]:
    """Have STREAMS clients ask at once; return MiB of the gateway before and after each round."""
    process = psutil.Process(pid)

    def ask(place: int) -> None:
        with http_asker(gateway) as asker:
            asker.ask(f"{place} def", tokens)

    found = [_mib(process)]
    with ThreadPoolExecutor(STREAMS) as pool:
        for _ in range(rounds):
            list(pool.map(ask, range(STREAMS)))
            found.append(_mib(process))
    return found


@dataclass(frozen=True)
class Latency:
    """Medians in seconds: of a small page, and of the first token of an answer."""

    page: float
    first: float


def measure_idle(gateway: str, rounds: int, asked: int) -> tuple[Latency, Latency]:
    """Return the latency without other connections and with IDLE ones that do nothing, measured in turns."""
    pages: tuple[list[float], list[float]] = ([], [])
    firsts: tuple[list[float], list[float]] = ([], [])
    for number in range(2 * rounds):
        with _idle_connections(gateway, IDLE if number % 2 else 0), http_asker(gateway) as asker:
            for place in range(asked):
                pages[number % 2].append(asker.get("/health/live"))
                firsts[number % 2].append(asker.ask(f"{number} {place} def", 2).first)
    without, beside = (
        Latency(median(page), median(first)) for page, first in zip(pages, firsts, strict=True)
    )
    return without, beside


@contextmanager
def _idle_connections(address: str, number: int) -> Iterator[None]:
    with ExitStack() as opened:
        for _ in range(number):
            opened.enter_context(socket.create_connection(split_address(address), _CONNECT_S))
        yield


def _medians(times: list[AskedTimes]) -> AskedTimes:
    return AskedTimes(median(each.first for each in times), median(each.between for each in times))


def _mib(process: psutil.Process) -> float:
    return float(process.memory_info().rss) / (1 << 20)
