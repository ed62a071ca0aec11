"""PipeDec: a dynamic prediction tree, fed to the pipeline one layer a timestep (pipedec.txt)."""

from __future__ import annotations

from typing import ClassVar

from flowedge.strategies.levels.levels import LevelByLevel


class PipeDec(LevelByLevel):
    """LevelByLevel with PipeDec's sizes, which are the only difference from SpecPipe here.

    - Width (3.3.3, 4.3.1): the paper measures w = 32 and c = 16 as best on its testbed, which are
      `width=32, children=16`. The default is 16 a layer as in FlowSpec's comparison ("for PipeDec, we select
      16 tokens per layer": flowspec, appendix A.1). The FlowSpec paper does not name its c; 16 is PipeDec's.
    - Groups (3.1): the paper may join several neighbouring nodes to a group that works on one layer. Here
      each stage is a group, so that as many layers are in flight as there are stages.
    """

    name: ClassVar[str] = "pipedec"
