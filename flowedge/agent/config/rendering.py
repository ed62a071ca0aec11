"""A configuration as a TOML text that can be read back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import SecretBytes, SecretStr

from flowedge.agent.config.agent_config import section_fields
from flowedge.agent.config.loading import EffectiveConfig
from flowedge.version import VERSION


def effective_toml(effective: EffectiveConfig) -> str:
    """What is in force, each setting with what it is and where its value came from; secrets are left out."""
    lines = [f"# The configuration in force of flowedge {VERSION}; file: {effective.file or 'none'}"]
    for section, model in section_fields().items():
        lines += ["", f"[{section}]"]
        for key, field in model.model_fields.items():
            value = getattr(getattr(effective.config, section), key)
            origin = effective.origins.get((section, key), "default")
            lines += [f"# {field.description}", f"{_setting(key, value)}  # {origin}"]
    return "\n".join(lines) + "\n"


def toml_value(value: Any) -> str:
    """A text, number, truth value, path or sequence of them; TypeError for anything else."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str | Path):
        # TOML's basic strings are JSON's, but for DEL, which JSON leaves as it is.
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007F")
    if isinstance(value, Sequence):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    raise TypeError(f"a setting of type {type(value).__name__} cannot be written as TOML")


def _setting(key: str, value: Any) -> str:
    if value is None:
        return f"# {key} is not set"
    if isinstance(value, SecretStr | SecretBytes):
        return f"# {key} is set and not shown"
    return f"{key} = {toml_value(value)}"
