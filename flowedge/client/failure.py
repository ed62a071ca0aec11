"""Calls that fail without a status of their own."""

from __future__ import annotations

from flowedge.core.errors import DeviceLostError


def silent(address: str, silence_s: float) -> DeviceLostError:
    """The device sends nothing, not even the sign of life it owes."""
    return DeviceLostError(address, f"no sign of life for {silence_s:g} s")


def ended_early(address: str, purpose: str) -> DeviceLostError:
    """The device closed a stream before it had said everything."""
    return DeviceLostError(address, f"it ended the stream before {purpose}")
