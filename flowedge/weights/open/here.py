"""Whether a model is on the disk of this device as a directory."""

from __future__ import annotations

import logging

from flowedge.core.errors import CheckpointError
from flowedge.drafting.choice import BUNDLED_FOLDERS
from flowedge.models.checkpoint.model_source import BUNDLED, model_directory
from flowedge.weights.manifest.manifest import CONFIG
from flowedge.weights.settings import WeightsSettings

_log = logging.getLogger(__name__)


def is_here(model: str, settings: WeightsSettings) -> bool:
    """Whether a model can be opened without fetching anything."""
    if not settings.directories:
        return False
    if model in (BUNDLED, *BUNDLED_FOLDERS):
        return True
    try:
        return (model_directory(model, hub=False) / CONFIG).is_file()
    except (CheckpointError, RuntimeError, OSError) as error:  # "~nobody" has no home
        _log.info("%s is not on this device: %s", model, error)
        return False
