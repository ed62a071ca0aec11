"""SpecPipe: a fixed-width speculative tree, one level a pipeline step (specpipe.txt)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from flowedge.strategies.levels.levels import LevelByLevel
from flowedge.strategies.settings import LevelSettings


@dataclass(frozen=True)
class SpecPipeSettings(LevelSettings):
    """The testbed chooses the width for the pipeline (see specpipe_width); this is the paper's own."""

    width: int = 64  # w (section 1: the best on its testbed)


class SpecPipe(LevelByLevel):
    """Section by section, and where a choice had to be made:

    - Dynamic speculative tree (3.2): layer appending at the bottom, and to-subtree pruning.
    - Token source (3.3.1): the session's drafter, one level a step, drafted beside the stages' computing. It
      goes on in its own branch on a hit and gets true features after a flush.
    - Pipeline step (3.3.2): computation, pruning propagation, transmission. The runtime's prunes do not wait
      for the end of a step, and transfers overlap with computing (the paper overlaps them with pruning). A
      level is appended when the first stage is due to accept it, hence after the pruning of that step.
    - Refill (3.3.2): on a miss everything under way dies and the root enters at once. When only the lower
      levels die, those stages idle and the next level is built below the deepest one that lives (a partial
      refill).
    - Fixed width (3.3.3): `width` is equation 1's or 2's best, chosen from the profile by specpipe_width; it
      is an option, because a strategy does not know the profile. `children` is the number that our copy of
      section 4.1 has lost; 16, beyond which PipeDec, by the same authors, gained nothing (pipedec, 4.3.1).
    - Several levels a step, and dynamic batching of requests (3.4, SpecPipe-DB): not built; the paper found
      the first slower, and the second is for several requests.
    """

    name: ClassVar[str] = "specpipe"
