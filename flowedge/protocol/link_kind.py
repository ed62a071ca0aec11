"""The ways by which a message reaches a device."""

from __future__ import annotations

from enum import Enum


class LinkKind(str, Enum):
    """A way by which a message reaches a device."""

    IN_BAND = "InBand"  # from the device before it in the pipeline
    EXPRESS = "Express"  # from the draft node
    REPLY = "Reply"  # back from the device after it, such as a credit

    @property
    def label(self) -> str:
        return self.name.lower()
