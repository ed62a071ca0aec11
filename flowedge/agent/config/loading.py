"""Reading the configuration: flags go before the environment, the environment before the file."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from flowedge.agent.config.agent_config import SECTIONS, AgentConfig
from flowedge.agent.config.complaints import complain, unknown_section
from flowedge.agent.config.toml_places import SettingPath, find_places
from flowedge.core.errors import BadRequestError
from flowedge.storage.limits import DIRECTORY_VARIABLE, SIZE_VARIABLE

DEFAULT_FILE = Path("/etc/flowedge/agent.toml")
PREFIX = "FLOWEDGE_"
DELIMITER = "__"
# Older names, which commands without an agent's configuration read too.
ALIASES = {DIRECTORY_VARIABLE: ("cache", "dir"), SIZE_VARIABLE: ("cache", "gib")}

Flags = Mapping[str, tuple[str, str, Any]]
"""By flag, such as "--port": section, key and value; None when the flag was not given."""


@dataclass(frozen=True)
class EffectiveConfig:
    """The configuration in force.

    Attributes:
        origins: by section and key, where each value comes from that is not the default.
        file: the file that was read; None without one.
    """

    config: AgentConfig
    origins: Mapping[tuple[str, str], str]
    file: Path | None


def load_config(
    flags: Flags | None = None, path: Path | None = None, *, default_file: Path = DEFAULT_FILE
) -> EffectiveConfig:
    """Return the configuration of an agent that is started here and now.

    Args:
        path: the configuration file; without one, `default_file` is read if there is such a file.

    Raises:
        BadRequestError: for everything that is unknown or wrong, with its place in the file, its environment
            variable or its flag.
    """
    if path is None and default_file.exists():
        path = default_file
    aliases = {name: (*place, os.environ.get(name) or None) for name, place in ALIASES.items()}
    layers = [
        _named_layer(flags or {}, "flag"),
        _environment_layer(),
        _named_layer(aliases, "environment variable"),
    ]
    if path is not None:
        layers.append(_file_layer(path))
    values: dict[str, Any] = {}
    origins: dict[tuple[str, str], str] = {}
    for layer in reversed(layers):
        for section, given in layer.values.items():
            if isinstance(given, dict) and isinstance(values.get(section, {}), dict):
                values[section] = values.get(section, {}) | given
                origins |= {(section, key): layer.origin((section, key)) for key in given}
            else:
                values[section] = given
    try:
        config = AgentConfig.model_validate(values)
    except ValidationError as error:
        raise complain(error, lambda wrong: _origin(layers, wrong)) from error
    return EffectiveConfig(config, origins, path)


class _Sources(BaseSettings, AgentConfig):
    """The configuration as pydantic-settings looks for it in the environment and in a file."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter=DELIMITER, env_ignore_empty=True
    )


@dataclass(frozen=True)
class _Layer:
    """The values of one source by section, and what to call the origin of each."""

    values: Mapping[str, Any]
    origin: Callable[[SettingPath], str]

    def has(self, path: SettingPath) -> bool:
        section = self.values.get(str(path[0]))
        return section is not None and (len(path) == 1 or (isinstance(section, dict) and path[1] in section))


def _origin(layers: list[_Layer], path: SettingPath) -> str:
    """Return the origin of the value at a path, or of its section if the section as a whole is wrong."""
    for depth in (2, 1):
        for layer in layers:
            if layer.has(path[:depth]):
                return layer.origin(path)
    return "defaults"


def _named_layer(given: Mapping[str, tuple[str, str, Any]], kind: str) -> _Layer:
    values: dict[str, dict[str, Any]] = {}
    for section, key, value in given.values():
        if value is not None:
            values.setdefault(section, {})[key] = value
    names: dict[SettingPath, str] = {
        (section, key): f"{kind} {name}" for name, (section, key, _) in given.items()
    }
    return _Layer(values, lambda path: names.get(path[:2], kind))


def _environment_layer() -> _Layer:
    for variable in os.environ:
        name = variable.upper()
        section, delimiter, _ = name.removeprefix(PREFIX).lower().partition(DELIMITER)
        if name.startswith(PREFIX) and delimiter and section not in SECTIONS:
            raise BadRequestError(f"environment variable {variable}: {unknown_section(section)}")
    try:
        values = EnvSettingsSource(_Sources)()
    except SettingsError as error:
        raise BadRequestError(f"the environment's {PREFIX}... cannot be used: {error}") from error

    def origin(path: SettingPath) -> str:
        section, key = path[0], path[1] if len(path) > 1 else "*"
        name = f"{section}{DELIMITER}{key}" if isinstance(values[str(section)], dict) else section
        return f"environment variable {PREFIX}{str(name).upper()}"

    return _Layer(values, origin)


def _file_layer(path: Path) -> _Layer:
    """Return what a file says. Each value has to be of the exact type, and right by itself."""
    try:
        text = path.read_text(encoding="utf-8")
        values = TomlConfigSettingsSource(_Sources, path).toml_data
    except OSError as error:
        raise BadRequestError(f"the configuration {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise BadRequestError(f"{path}:{line}: not UTF-8; save the file in it") from error
    except ValueError as error:  # of the TOML parser
        found = re.fullmatch(r"(.*) \(at line (\d+), column (\d+)\)", str(error), re.DOTALL)
        reason = f"{path}:{found[2]}:{found[3]}: {found[1]}" if found else f"{path}: {error}"
        raise BadRequestError(reason) from error
    if text and not path.is_file():  # the source above reads nothing else
        raise BadRequestError(f"the configuration {path} is not a regular file; copy it to one")
    places = find_places(text)

    def origin(wrong: SettingPath) -> str:
        for depth in range(len(wrong), 0, -1):
            if wrong[:depth] in places:
                return f"{path}:{places[wrong[:depth]]}"
        return str(path)

    try:
        AgentConfig.model_validate_json(json.dumps(values, default=str), strict=True)
    except ValidationError as error:
        raise complain(error, origin) from error
    return _Layer(values, origin)
