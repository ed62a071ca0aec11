"""Downloads from the hub before agents start, so that the user sees how far they are."""

from __future__ import annotations

import sys

from flowedge.cli.pipelines.request import PipelineRequest
from flowedge.client.assembly import OnProgress
from flowedge.core.errors import CheckpointError
from flowedge.models.checkpoint.model_source import find_model, is_hub_model


def download_models(request: PipelineRequest, report: OnProgress, *, check: bool, quiet: bool) -> bool:
    """Download the hub models that processes of this machine are to open and that are not here yet.

    Returns whether there was a model to download.

    Args:
        report: called before each download.
        check: whether this process is to load the plain model.
        quiet: whether to show no progress bars; without a terminal there are none anyway.

    Raises:
        CheckpointError: when a model cannot be downloaded.
    """
    if request.stages is not None:
        names = [request.model, *request.drafters, *request.middles]
    else:
        names = [request.model] if check else []
    missing = [name for name in names if is_hub_model(name) and not _is_here(name)]
    if not missing:
        return False
    from huggingface_hub.utils.tqdm import disable_progress_bars  # noqa: PLC0415 (loads in half a second)

    if quiet or not sys.stderr.isatty():
        disable_progress_bars()
    for name in missing:
        report("this machine", f"downloading {name} from the hub")
        find_model(name)
    return True


def _is_here(name: str) -> bool:
    try:
        return find_model(name, hub=False).is_complete
    except CheckpointError:
        return False
