"""Compares live runs of a model on this machine with the simulation of it."""
