"""Weights over the network: what a model is made of, who has it, and fetching just what a device needs."""
