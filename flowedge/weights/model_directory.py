"""The directory of a model, or its download from the hub, on this device."""

from __future__ import annotations

import logging

from flowedge.core.errors import CheckpointError
from flowedge.device.files import expand_home
from flowedge.drafting.choice import BUNDLED_FOLDERS
from flowedge.models.checkpoint.model_source import BUNDLED, find_model
from flowedge.weights.known_models import printable_name
from flowedge.weights.settings import WeightsSettings

_log = logging.getLogger(__name__)


def is_on_disk(model: str, settings: WeightsSettings) -> bool:
    """Return whether a directory or hub id can be opened without fetching anything."""
    if not settings.directories:
        return False
    if model in (BUNDLED, *BUNDLED_FOLDERS):
        return True
    try:
        return find_model(model, hub=False).is_complete
    except (CheckpointError, RuntimeError, OSError) as error:  # RuntimeError: "~nobody" has no home directory
        _log.info("%s is not on this device: %s", model, error)
        return False


def model_name(source: str) -> str:
    """The name to show for the model of a directory or hub id."""
    path = expand_home(source)
    return printable_name(path.resolve().name if path.is_dir() else path.name)
