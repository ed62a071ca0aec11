"""PipeDec: a dynamic prediction tree, fed one layer a timestep (pipedec.txt)."""

from __future__ import annotations

from typing import ClassVar

from flowedge.strategies.levels.levels import LevelByLevel


class PipeDec(LevelByLevel):
    """Section by section, and where a choice had to be made:

    - Groups (3.1): each stage is a group, so as many layers are under way as there are stages.
    - Tree initialization (3.3.2): a root, which is sent at once while its children are drafted (appendix B,
      rules 2 and 3).
    - Tree update (3.3.3): c candidates a node, the w with the best cumulative probabilities make the layer.
      16 a layer as in FlowSpec's comparison (flowspec, appendix A.1); the paper's own are w = 32, c = 16
      (4.3.1), `width=32, children=16` here. The FlowSpec paper does not say its c; it is left at 16.
    - Tree pruning (3.3.4): on a hit the subtree stays; "an additional update operation" follows the pruning,
      so a layer is chosen after it. On a miss the tree begins anew. Where nothing of the newest layer lives,
      the paper says no more than that invalid output does not flow on; here the next layer is built below the
      deepest one that does live, from candidates that are known already.
    - Two-level cache (3.2, 3.4.2): the runtime's context and draft tail are its "past" and "predict"; a hit
      moves the root's row from one to the other without computing it again. The drafter goes on in its own
      branch likewise, and gets true features at a re-initialization only: the tree expands at the bottom
      alone.
    - Timesteps (3.4): steps follow the layers that come back, without a barrier or a central scheduler of
      transfers (appendices A and B); transfers overlap with computing, as all of this runtime's do.
    """

    name: ClassVar[str] = "pipedec"
