"""Measures FlowEdge beside llama.cpp and its RPC backend, on one machine and in turns."""
