"""The default strategy, FlowEdge's own: every decision aims at tokens revealed per time."""
