"""Stages that stand still during a soak, as a board does that swaps, or whose cable is loose."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Mapping

from testbed.tools.faults.schedule import LASTS


class Freezes:
    """Stops a stage for some seconds (SIGSTOP, then SIGCONT), again and again while the context lasts.

    No process ends, so that its memory can be followed over the whole time.

    Attributes:
        done: how often.
    """

    def __init__(self, processes: Mapping[str, int], every_s: float | None, seed: int) -> None:
        """Prepare.

        Args:
            processes: as of `processes_of`; those with a name of a stage are stopped.
            every_s: seconds between the end of one and the beginning of the next; None stops none.
        """
        self.done = 0
        self._stages = [pid for name, pid in sorted(processes.items()) if name.startswith("v")]
        self._every_s, self._chance = every_s, random.Random(seed)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="freezes")

    def __enter__(self) -> Freezes:
        if self._every_s is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._every_s is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._every_s):
            stage, lasts_s = self._chance.choice(self._stages), self._chance.choice(LASTS["stop"])
            os.kill(stage, signal.SIGSTOP)
            self._ended.wait(lasts_s)
            os.kill(stage, signal.SIGCONT)
            self.done += 1
