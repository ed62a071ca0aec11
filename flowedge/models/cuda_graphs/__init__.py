"""Decode forwards over static tensors, so that a GPU replays them as CUDA graphs."""
