"""Products of rows with weights by the kernels of flowedge.native."""
