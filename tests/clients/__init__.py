"""Clients that were made elsewhere, each in an environment of its own, ask a gateway with a real pipeline."""
