"""Finds code that keeps the interpreter to itself: while it runs, no link shows a sign of life.

`python -m tests.support.gil_watch ARGUMENTS` is `flowedge ARGUMENTS`, watched.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import TextIO

MOST_S = 0.1
SIGN = "held the interpreter for"  # in each finding


class GilWatch(threading.Thread):
    """Notes every stretch in which a thread computed for 0.1 s, and this one did not get the interpreter.

    The processor time of that thread is what counts, so that a busy machine causes no finding.
    """

    def __init__(self, report: Callable[[str], object]) -> None:
        super().__init__(daemon=True, name="gil watch")
        self._report = report
        self._watching, self._ended = threading.Event(), threading.Event()

    def __enter__(self) -> GilWatch:
        self.start()
        self._watching.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        used: dict[int, float] = {}
        while not self._ended.wait(0.002):
            for thread in threading.enumerate():
                ident = thread.ident
                if thread is self or ident is None:
                    continue
                with contextlib.suppress(OSError):  # it has ended meanwhile
                    now = time.clock_gettime(time.pthread_getcpuclockid(ident))
                    held = now - used.get(ident, now)
                    used[ident] = now
                    if held > MOST_S:
                        self._report(f"{thread.name} {SIGN} {held:.2f} s, then was at {_place(ident)}")
            self._watching.set()


def _place(ident: int) -> str:
    frame = sys._current_frames().get(ident)  # noqa: SLF001
    stack = traceback.extract_stack(frame)[-4:] if frame is not None else []
    return " < ".join(f"{each.filename}:{each.lineno} {each.name}" for each in reversed(stack))


def main(output: TextIO = sys.stderr) -> None:
    from flowedge.cli.main import main as flowedge

    GilWatch(lambda found: print(found, file=output, flush=True)).start()
    flowedge()


if __name__ == "__main__":
    main()
