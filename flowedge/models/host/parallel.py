"""Steps that several threads work off together, such as the reading of a model's weights."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch

Step = Callable[[], None]


def run_steps(steps: Sequence[Step], threads: int) -> None:
    """Run all steps, each in one of `threads` threads; begin them in order, and wait for their ends.

    A step computes with one thread of torch, so that the steps together take `threads` processors. After the
    first error no further step begins.

    Raises:
        Exception: the error of the first failed step, in the order of `steps`.
    """
    count = min(threads, len(steps))
    if count < 2:
        for step in steps:
            step()
        return
    queue = _StepQueue(steps)
    own = torch.get_num_threads()
    # Daemons, so that a process that is told to stop does not wait for all steps.
    workers = [threading.Thread(target=queue.work, name=f"steps-{n}", daemon=True) for n in range(count)]
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    finally:
        queue.stop()
        # torch gives threads that compute later the number that was set last, by any thread.
        torch.set_num_threads(own)
    queue.raise_error()


class _StepQueue:
    """Steps that are left to do, and the errors of those that failed, by their places in the order."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._left = iter(enumerate(steps))
        self._errors: dict[int, BaseException] = {}
        self._stopped = False
        self._guard = threading.Lock()

    def work(self) -> None:
        torch.set_num_threads(1)
        while (taken := self._take()) is not None:
            index, step = taken
            try:
                step()
            except BaseException as error:  # noqa: BLE001 (raised again by `raise_error`, in the caller's thread)
                self._errors[index] = error
                self.stop()

    def stop(self) -> None:
        """Let no further step begin."""
        self._stopped = True

    def raise_error(self) -> None:
        if self._errors:
            raise self._errors[min(self._errors)]

    def _take(self) -> tuple[int, Step] | None:
        with self._guard:
            return None if self._stopped else next(self._left, None)
