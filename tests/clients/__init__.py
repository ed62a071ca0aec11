"""Clients that were made elsewhere, each in an environment of its own, against a gateway with a real pipeline."""
