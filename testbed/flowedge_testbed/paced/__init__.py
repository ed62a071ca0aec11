"""Agents as real processes with real sockets, held to the time of the devices that they emulate."""
