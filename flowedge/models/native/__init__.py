"""Decoder layers that the kernels of flowedge.native compute, several layers a call."""
