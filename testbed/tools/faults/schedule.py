"""Which fault comes next, of which device, and for how long: drawn from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# Seconds that a fault of each kind may last; a process that has ended starts again after 1 s, as by systemd.
LASTS = {
    "kill": (1.0,),
    "term": (1.0,),
    "stop": (1.0, 5.0, 15.0),  # SIGSTOP, then SIGCONT
    "link": (1.0, 5.0, 10.0),  # the network cable of the device
    "one_way": (5.0,),  # what the device sends to one other goes nowhere
    "resets": (0.0,),  # a share of its connections is reset
    "disk_full": (8.0,),  # it has no byte left, and the process starts again meanwhile
    "bit_flip": (1.0,),  # in a cached file of quantised weights; the process starts again
    "clock": (5.0,),  # the time of day is stepped by CLOCK_S, and back
}
NEEDS_NETWORK = ("link", "one_way", "resets", "disk_full")  # and root
SLOWS = ("clock",)  # by libfaketime, which makes each process several times slower: drawn only by name
CLOCK_S = 3600
RESET_SHARE = 0.3
GAPS = (0.5, 4.0)  # seconds without a fault between two of them, at least and at most


@dataclass(frozen=True)
class InjectedFault:
    """One fault.

    Attributes:
        lasts_s: how long; after_s: seconds between the end of the fault before and its beginning.
    """

    kind: str
    device: str
    lasts_s: float
    after_s: float


def drawn_faults(kinds: Sequence[str], devices: Sequence[str], seed: int) -> Iterator[InjectedFault]:
    """Yield faults for ever: every kind and every device in turn, in an order that the seed gives."""
    rng = random.Random(seed)
    while True:
        pairs = [(kind, device) for kind in kinds for device in devices]
        rng.shuffle(pairs)
        for kind, device in pairs:
            yield InjectedFault(kind, device, rng.choice(LASTS[kind]), rng.uniform(*GAPS))
