"""Whether the last stage draws tokens, decided there by what it measures. Imports torch and transformers."""

from __future__ import annotations

from flowedge.agent.holding.stage_content import LayerSlice
from flowedge.core.errors import CapacityError
from flowedge.core.pipeline_config import LAST_STAGE, LINK_BYTES_PER_S, faster_sampler
from flowedge.device.memory import MemorySettings, read_memory_of
from flowedge.engine.executors.block_executor import BlockExecutor
from flowedge.engine.executors.out_of_memory import within_memory
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.files.config_support import max_positions
from flowedge.models.quant.quant_cache import QuantCache
from flowedge.models.sampling.draw_timing import draw_seconds
from flowedge.planning.fit import admit

SAVED_ROWS = 14  # of a segment of 16, which do not cross the last link if the last stage draws


def choose_head(
    device: str,
    settings: MemorySettings,
    executor: BlockExecutor,
    content: LayerSlice,
    checkpoint: Checkpoint,
    draft_node_s: float,
    quant_cache: QuantCache | None,
) -> str:
    """Give a last stage the LM head if it fits, and draws tokens faster here than the draft node does.

    Args:
        device: the name of this device; executor: of the stage, without the head.
        draft_node_s: seconds in which the draft node draws the tokens after a few rows.
        quant_cache: the cache that a quantised head is taken from and put into.

    Returns:
        The choice, in words for the user.
    """
    block = executor.block
    try:
        admit(
            f"the LM head of {content.config.model}",
            device,
            weights=content.head_bytes(checkpoint, str(block.device)),
            row_bytes=executor.cache_row_bytes,
            max_rows=max_positions(checkpoint.config),
            settings=settings,
            memory=read_memory_of(str(block.device), settings),
        )
        head = within_memory(
            f"the LM head of {content.config.model} does not fit on device {device}",
            block.device,
            lambda: content.load_head(checkpoint, block, quant_cache),
            lambda: None,
        )
    except CapacityError as error:
        return f"the draft node verifies: {error}"
    here_s = draw_seconds(head)
    row_bytes = executor.handed_width * block.dtype.itemsize
    place = faster_sampler(draft_node_s, here_s, SAVED_ROWS * row_bytes / LINK_BYTES_PER_S)
    if place == LAST_STAGE:
        executor.head = head
    return (
        f"{'the last stage' if place == LAST_STAGE else 'the draft node'} verifies: drawing takes "
        f"{1e3 * here_s:.2f} ms here, {1e3 * draft_node_s:.2f} ms there"
    )
