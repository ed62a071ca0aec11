"""The layers of a block, computed by the kernels of flowedge.native."""
