"""The vocabulary that every other package shares; it imports no other package of FlowEdge."""
