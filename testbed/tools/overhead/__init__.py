"""The costs of FlowEdge apart from models."""
