"""SpecPipe: a speculative tree of fixed width, one level a pipeline step (specpipe.txt)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flowedge.strategies.levels.levels import LevelByLevel
from flowedge.strategies.settings import LevelSettings, at_most


@dataclass(frozen=True)
class SpecPipeSettings(LevelSettings):
    """LevelSettings with the paper's width, the best on its testbed (specpipe, sections 1 and 4.1)."""

    width: int = at_most(512, 64)  # w


class SpecPipe(LevelByLevel):
    """LevelByLevel with SpecPipe's width, which is the only difference from PipeDec here.

    - Fixed width (3.3.3): `width` should minimise the time between tokens by the paper's equations 1 and 2. A
      strategy does not know the devices' profile, so the width is an option; `flowedge bench` computes it
      from the profile (flowedge_testbed/costs/specpipe_width.py).
    - Children (4.1): our copy of the text has lost the number; 16 is PipeDec's choice (pipedec, 4.3.1).
    - Token source (3.3.1): the session's drafter, in place of a large draft model on a device of its own.
    - Several requests (4.4): they take turns ("iteration-based scheduling"); `specpipe_db` batches them.
    - Not built: several levels a step, which the paper found slower (3.4).
    """

    name: ClassVar[str] = "specpipe"
