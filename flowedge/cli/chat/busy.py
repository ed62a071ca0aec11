"""How busy the devices of a pipeline are while an answer is written."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from flowedge.client import Client
from flowedge.client.activity import PipelineActivity
from flowedge.core.errors import FlowEdgeError

WINDOW_S = 2.0  # over which shares are taken
_NAME = 12  # characters of a device's name
_log = logging.getLogger(__name__)


class BusyShares:
    """The share of the last seconds in which each device computed, from a pipeline's activity.

    Attributes:
        tokens_per_segment: over the last seconds; 0 where it is not known.
    """

    def __init__(self) -> None:
        self.tokens_per_segment = 0.0
        self._spans: dict[str, list[tuple[float, float]]] = {}
        self._begun: float | None = None
        self._now = 0.0

    def add(self, activity: PipelineActivity) -> None:
        """Take in the next message of a watch."""
        self._now = activity.now
        if self._begun is None:
            self._begun = activity.now
        if activity.state is not None:
            self.tokens_per_segment = activity.state.tokens_per_segment
            for link in activity.state.links:
                self._spans.setdefault(link.sender, [])
        for computed in activity.computed:
            self._spans.setdefault(computed.device, []).append((computed.start, computed.end))
        first = self._now - WINDOW_S
        self._spans = {
            name: [span for span in spans if span[1] > first] for name, spans in self._spans.items()
        }

    def shares(self) -> dict[str, float]:
        """Return the share, 0 to 1, of each device in pipeline order; nothing before some time has passed."""
        first = max(self._now - WINDOW_S, self._now if self._begun is None else self._begun)
        if self._now <= first:
            return {}
        seconds = self._now - first
        return {name: _covered(spans, first, self._now) / seconds for name, spans in self._spans.items()}

    def text(self) -> str:
        """Return the devices with their shares, such as "kitchen 41% attic 80%"."""
        shares = self.shares()
        # Names often begin alike (board-1, board-2), and their ends tell them apart.
        beginnings = {name.rpartition("-")[0] for name in shares}
        beginning = beginnings.pop() if len(shares) > 1 and len(beginnings) == 1 else ""
        skipped = len(beginning) + 1 if beginning else 0
        return " ".join(f"{name[skipped:][:_NAME]} {share:.0%}" for name, share in shares.items())


class BusyIndicator:
    """Watches the pipeline of an answer in a thread of its own. If the watch fails, the answer goes on."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._shares = BusyShares()
        self._ended = threading.Event()

    @contextmanager
    def running(self) -> Iterator[BusyIndicator]:
        """Watch until the context is left; the thread ends with the next message, within a second or so."""
        threading.Thread(target=self._run, name="flowedge-busy", daemon=True).start()
        try:
            yield self
        finally:
            self._ended.set()

    def figures(self) -> tuple[float, str]:
        """Return the tokens for each segment, 0 where they are not known, and the text of the devices."""
        with self._lock:
            return self._shares.tokens_per_segment, self._shares.text()

    def _run(self) -> None:
        try:
            for activity in self._client.watch():
                if self._ended.is_set():
                    return
                with self._lock:
                    self._shares.add(activity)
        except (FlowEdgeError, ValueError) as error:  # gRPC: ValueError on a client that has been closed
            if not self._ended.is_set():
                _log.info("the devices are not shown: %s", error)
                with self._lock:
                    self._shares = BusyShares()


def _covered(spans: Iterable[tuple[float, float]], first: float, last: float) -> float:
    """Return the seconds from `first` to `last` that lie in some span; spans may overlap."""
    total, reached = 0.0, first
    for start, end in sorted(spans):
        begin, stop = max(start, reached), min(end, last)
        if stop > begin:
            total += stop - begin
            reached = stop
    return total
