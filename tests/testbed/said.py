"""A progress display of a bench, for tests."""

from __future__ import annotations

from flowedge_testbed.bench.progress import BenchProgress


class Said(BenchProgress):
    """A progress display that keeps its lines and counts."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.begun: list[tuple[int, int]] = []
        self.done = 0

    def say(self, line: str) -> None:
        self.lines.append(line)

    def begin(self, total: int, finished: int) -> None:
        self.begun.append((total, finished))

    def advance(self, runs: int) -> None:
        self.done += runs
