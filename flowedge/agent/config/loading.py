"""Putting the configuration together: flags before the environment, before the file, before the defaults."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from flowedge.agent.config.agent_config import AgentConfig, section_fields
from flowedge.agent.config.complaints import complain, unknown_section
from flowedge.agent.config.toml_file import Place, TomlFile, holds
from flowedge.core.errors import BadRequestError

DEFAULT_FILE = Path("/etc/flowedge/agent.toml")
PREFIX = "FLOWEDGE_"
DELIMITER = "__"
# Older names, which stay; the cache reads them itself too, wherever it is used without an agent.
ALIASES = {"FLOWEDGE_CACHE_DIR": ("cache", "dir"), "FLOWEDGE_CACHE_GIB": ("cache", "gib")}

Flags = Mapping[str, tuple[str, str, Any]]
"""By flag, such as "--port": section, key and value; None when the flag was not given."""


@dataclass(frozen=True)
class EffectiveConfig:
    """The configuration in force.

    Attributes:
        origins: by section and key, where a value that is not the default came from.
        file: that was read; None without one.
    """

    config: AgentConfig
    origins: Mapping[tuple[str, str], str]
    file: Path | None


def load_config(
    flags: Flags, path: Path | None = None, *, default_file: Path = DEFAULT_FILE
) -> EffectiveConfig:
    """The configuration of the agent that is being started.

    path: of the file; `default_file` is read when it is None, if there is such a file.
    BadRequestError for what is unknown or wrong, with its place in the file, its variable or its flag.
    """
    if path is None and default_file.exists():
        path = default_file
    file = None if path is None else _read(path)
    layers = _layers(flags, file)

    class Layered(BaseSettings, AgentConfig):
        model_config = _SETTINGS

        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], *_: Any, **__: Any
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return tuple(_LayerSource(settings_cls, layer.values) for layer in layers)

    try:
        layered = Layered()
    except ValidationError as error:
        raise complain(error, lambda place: _source(layers, place)) from error
    config = AgentConfig(**{section: getattr(layered, section) for section in section_fields()})
    origins = {
        (section, key): _source(layers, (section, key))
        for section, model in section_fields().items()
        for key in model.model_fields
        if any(holds(layer.values, (section, key)) for layer in layers)
    }
    return EffectiveConfig(config, origins, path)


_SETTINGS = SettingsConfigDict(
    env_prefix=PREFIX, env_nested_delimiter=DELIMITER, env_ignore_empty=True, extra="forbid", frozen=True
)


class _Environment(BaseSettings, AgentConfig):
    """What pydantic-settings is to look for in the environment."""

    model_config = _SETTINGS


class _LayerSource(PydanticBaseSettingsSource):
    """A source whose values are known already."""

    def __init__(self, settings_cls: type[BaseSettings], values: Mapping[str, Any]) -> None:
        super().__init__(settings_cls)
        self._values = values

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:  # noqa: ARG002
        """See PydanticBaseSettingsSource."""
        return self._values.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        return dict(self._values)


@dataclass(frozen=True)
class _Layer:
    """Values by section, and what to call the source of one of them."""

    values: Mapping[str, Any]
    names: Mapping[tuple[str, str], str]
    file: TomlFile | None = None

    def name(self, place: Place) -> str:
        if self.file is not None:
            return self.file.where(place)
        section, key = str(place[0]), str(place[1]) if len(place) > 1 else ""
        return self.names.get((section, key)) or f"environment variable {self._variable(section, key)}"

    def _variable(self, section: str, key: str) -> str:
        """With no key: a section that is given as one text, or several settings of it."""
        if not key and not isinstance(self.values.get(section), Mapping):
            return f"{PREFIX}{section}".upper()
        return f"{PREFIX}{section}{DELIMITER}{key or '*'}".upper()


def _source(layers: list[_Layer], place: Place) -> str:
    """The source that has the say at a place: the first that has it, or else the table it is missing from."""
    for depth in range(len(place), 0, -1):
        for layer in layers:
            if holds(layer.values, place[:depth]):
                return layer.name(place)
    return "defaults"


def _read(path: Path) -> TomlFile:
    """A file whose every value is right by itself. Lists and texts are not turned into one another there."""
    file = TomlFile.read(path)
    try:
        AgentConfig.model_validate_json(json.dumps(file.values, default=str), strict=True)
    except ValidationError as error:
        raise complain(error, file.where) from error
    return file


def _layers(flags: Flags, file: TomlFile | None) -> list[_Layer]:
    layers = [_of_flags(flags), _of_environment(), _of_aliases()]
    return layers if file is None else [*layers, _Layer(file.values, {}, file)]


def _of_flags(flags: Flags) -> _Layer:
    given = {flag: setting for flag, setting in flags.items() if setting[2] is not None}
    values: dict[str, dict[str, Any]] = {}
    for section, key, value in given.values():
        values.setdefault(section, {})[key] = value
    return _Layer(values, {(section, key): f"flag {flag}" for flag, (section, key, _) in given.items()})


def _of_environment() -> _Layer:
    for variable in os.environ:
        name = variable.upper()
        section, delimiter, _ = name.removeprefix(PREFIX).partition(DELIMITER)
        if name.startswith(PREFIX) and delimiter and section.lower() not in section_fields():
            raise BadRequestError(f"environment variable {variable}: {unknown_section(section.lower())}")
    try:
        values = EnvSettingsSource(_Environment)()
    except SettingsError as error:
        raise BadRequestError(f"the environment's {PREFIX}... cannot be used: {error}") from error
    return _Layer(values, {})


def _of_aliases() -> _Layer:
    values: dict[str, dict[str, str]] = {}
    for variable, (section, key) in ALIASES.items():
        if os.environ.get(variable):
            values.setdefault(section, {})[key] = os.environ[variable]
    return _Layer(values, {place: f"environment variable {variable}" for variable, place in ALIASES.items()})
