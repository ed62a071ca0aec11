"""Reading a TOML file that a person has written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic_settings import BaseSettings, TomlConfigSettingsSource

from flowedge.core.errors import BadRequestError


def parse_toml(path: Path, most_bytes: int) -> dict[str, Any]:
    """Return the content of a file.

    Raises:
        BadRequestError: when it cannot be read, is too large, or is not TOML.
    """
    try:
        if not path.is_file():
            raise BadRequestError(f"there is no file {path}; name a TOML file")
        if path.stat().st_size > most_bytes:
            raise BadRequestError(f"{path} is larger than {most_bytes} bytes, the maximum")
        return dict(TomlConfigSettingsSource(BaseSettings, path).toml_data)
    except OSError as error:
        raise BadRequestError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # of the TOML parser, or of UTF-8
        raise BadRequestError(f"{path} is not valid TOML: {error}") from error
