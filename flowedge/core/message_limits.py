"""How large the messages on the links of a pipeline may be. Imports no numpy."""

from __future__ import annotations

MAX_FRAME_BYTES = 64 << 20  # most bytes of an encoded message
SEGMENT_ROWS = 4096  # most rows of one segment or batch, unless a device is set to take fewer
BATCH_SEGMENTS = 64  # most segments of a batch
