"""Compares live runs of the bundled pair on this machine with the simulation of it."""
