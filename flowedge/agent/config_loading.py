"""Reading the configuration: flags go before the environment, the environment before the file."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from flowedge.agent.agent_config import AgentConfig
from flowedge.core.errors import BadRequestError
from flowedge.core.settings_group import SettingsGroup
from flowedge.device.disk_cache.limits import DIRECTORY_VARIABLE, SIZE_VARIABLE

Config = TypeVar("Config", bound=BaseModel)
DEFAULT_FILE = Path("/etc/flowedge/agent.toml")
PREFIX = "FLOWEDGE_"
SERVE_PREFIX = "FLOWEDGE_SERVE_"  # of the gateway's variables
DELIMITER = "__"
# Older names, which commands without an agent's configuration read too.
ALIASES = {DIRECTORY_VARIABLE: ("cache", "dir"), SIZE_VARIABLE: ("cache", "gib")}

Sections = Mapping[str, type[SettingsGroup]]
SettingPath = tuple[str | int, ...]
"""Section, key and index in an array; the index, or the key as well, may be absent."""
Flags = Mapping[str, tuple[str, str, Any]]
"""By flag, such as "--port": section, key and value; None when the flag was not given."""
Source = tuple[Mapping[str, Any], Callable[[SettingPath], str]]
"""Values by section, and what to call the origin of the value at a path."""


_MULTI_LINE_STRING = re.compile(r"\"\"\".*?\"\"\"|'''.*?'''", re.DOTALL)
_HEADER_OR_KEY = re.compile(r"""\s*(\[*)[\s\w."'-]+[]=]""")


@dataclass(frozen=True)
class ConfigDeclaration(Generic[Config]):
    """How the configuration of a program is declared, and where its values are looked for.

    Attributes:
        model: a pydantic model whose fields are the sections of the file, each a SettingsGroup with defaults.
        command: of the program, such as "flowedge agent".
        default_file: read if no file is named, and this one exists.
        prefix: of environment variables.
        others: longer prefixes, of variables that belong to other programs.
        aliases: section and key that further environment variables set.
    """

    model: type[Config]
    command: str
    default_file: Path
    prefix: str
    others: tuple[str, ...] = ()
    aliases: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def sections(self) -> dict[str, type[SettingsGroup]]:
        """The model of each section, in the order of the file."""
        return {name: type(field.default) for name, field in self.model.model_fields.items()}

    @cached_property
    def sources(self) -> type[BaseSettings]:
        """The configuration as pydantic-settings looks for it in the environment and in a file."""
        config = SettingsConfigDict(
            env_prefix=self.prefix, env_nested_delimiter=DELIMITER, env_ignore_empty=True
        )
        return type("Sources", (BaseSettings, self.model), {"model_config": config, "__module__": __name__})


@dataclass(frozen=True)
class EffectiveConfig(Generic[Config]):
    """The configuration in force.

    Attributes:
        origins: by section and key, where each value comes from that is not the default.
        file: the file that was read; None without one.
    """

    config: Config
    origins: Mapping[SettingPath, str]
    file: Path | None


AGENT_FORM = ConfigDeclaration(
    AgentConfig, "flowedge agent", DEFAULT_FILE, PREFIX, others=(SERVE_PREFIX,), aliases=ALIASES
)


def load_config(
    flags: Flags | None = None, path: Path | None = None, *, default_file: Path = DEFAULT_FILE
) -> EffectiveConfig[AgentConfig]:
    """Return the configuration of an agent that is started here and now; see `load`."""
    return load(AGENT_FORM, flags, path, default_file=default_file)


def load(
    form: ConfigDeclaration[Config],
    flags: Flags | None = None,
    path: Path | None = None,
    *,
    default_file: Path | None = None,
) -> EffectiveConfig[Config]:
    """Return the configuration of a program that is started here and now.

    Args:
        path: the configuration file; without one, the default file is read if there is such a file.
        default_file: in place of the form's.

    Raises:
        BadRequestError: for everything that is unknown or wrong, with its place in the file, its environment
            variable or its flag.
    """
    default_file = default_file or form.default_file
    if path is None and _is_there(default_file):
        path = default_file
    aliases = {name: (*place, os.environ.get(name) or None) for name, place in form.aliases.items()}
    sources = [_named(flags or {}, "flag"), _environment(form), _named(aliases, "environment variable")]
    if path is not None:
        sources.append(_file(form, path))
    merged: dict[str, Any] = {}
    origins: dict[SettingPath, str] = {}
    for values, origin in reversed(sources):
        for section, given in values.items():
            keys, lower = given if isinstance(given, dict) else (), merged.get(section)
            merged[section] = lower | given if isinstance(given, dict) and isinstance(lower, dict) else given
            origins |= {place: origin(place) for place in [(section,), *((section, key) for key in keys)]}
    try:
        config = form.model.model_validate(merged)
    except ValidationError as error:
        raise _complain(form, error, lambda wrong: origins.get(wrong[:2]) or origins[wrong[:1]]) from error
    return EffectiveConfig(config, {place: name for place, name in origins.items() if len(place) > 1}, path)


def _named(settings: Mapping[str, tuple[str, str, Any]], kind: str) -> Source:
    """Return a source whose values have names: flags, and environment variables that follow no rule."""
    values: dict[str, dict[str, Any]] = {}
    names: dict[SettingPath, str] = {}
    for name, (section, key, value) in settings.items():
        if value is not None:
            values.setdefault(section, {})[key] = value
            names[section,] = names[section, key] = f"{kind} {name}"
    return values, names.__getitem__


def _environment(form: ConfigDeclaration[Any]) -> Source:
    prefix, sections = form.prefix, form.sections
    for variable in os.environ:
        name = variable.upper()
        section, delimiter, _ = name.removeprefix(prefix).lower().partition(DELIMITER)
        if (
            name.startswith(prefix)
            and not name.startswith(form.others)
            and delimiter
            and section not in sections
        ):
            raise BadRequestError(f"environment variable {variable}: {_unknown_section(sections, section)}")
    try:
        values = EnvSettingsSource(form.sources)()
    except SettingsError as error:
        raise BadRequestError(f"the environment's {prefix}... cannot be used: {error}") from error

    def origin(place: SettingPath) -> str:
        section, key = str(place[0]), str(place[1]) if len(place) > 1 else "*"
        name = f"{section}{DELIMITER}{key}" if isinstance(values[section], dict) else section
        return f"environment variable {prefix}{name.upper()}"

    return values, origin


def _file(form: ConfigDeclaration[Any], path: Path) -> Source:
    """Return what a file says. Each value has to be of the exact type, and right by itself."""
    try:
        # Reading another device, or a pipe, might never end.
        if _is_there(path) and not path.is_file() and path != Path(os.devnull):
            kind = "a directory" if path.is_dir() else "not a regular file"
            raise BadRequestError(f"the configuration {path} is {kind}; name a TOML file")
        text = path.read_text(encoding="utf-8")
        values = TomlConfigSettingsSource(form.sources, path).toml_data
    except PermissionError as error:
        raise _not_permitted(path) from error
    except OSError as error:
        raise BadRequestError(f"the configuration {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise BadRequestError(f"{path}:{line}: not UTF-8; save the file in it") from error
    except ValueError as error:  # of the TOML parser
        found = re.fullmatch(r"(.*) \(at line (\d+), column (\d+)\)", str(error), re.DOTALL)
        place, reason = (f"{path}:{found[2]}:{found[3]}", found[1]) if found else (path, error)
        raise BadRequestError(f"{place}: not valid TOML: {reason}") from error
    places = _find_positions(text)

    def origin(place: SettingPath) -> str:
        found = places.get(place[:2]) or places.get(place[:1])
        return f"{path}:{found}" if found else str(path)

    try:
        form.model.model_validate_json(json.dumps(values, default=str), strict=True)
    except ValidationError as error:
        raise _complain(form, error, origin) from error
    return values, origin


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except PermissionError as error:
        raise _not_permitted(path) from error


def _not_permitted(path: Path) -> BadRequestError:
    return BadRequestError(
        f"the configuration {path} may not be read by this user; change its permissions, or run the command "
        "as another user"
    )


def _find_positions(text: str) -> Mapping[SettingPath, str]:
    """Return the "line:column" of each section header and each key that begins a line of a TOML file."""
    text = _MULTI_LINE_STRING.sub(lambda string: "\n" * string[0].count("\n"), text)
    places: dict[SettingPath, str] = {}
    section: SettingPath = ()
    for number, line in enumerate(text.split("\n"), 1):
        if begun := _HEADER_OR_KEY.match(line):
            path = () if begun[1] else section
            for word in re.finditer(r"[\w-]+", begun[0]):
                path = (*path, word[0])
                places.setdefault(path, f"{number}:{word.start() + 1}")
            section = path if begun[1] else section
    return places


def _complain(
    form: ConfigDeclaration[Any], error: ValidationError, origin: Callable[[SettingPath], str]
) -> BadRequestError:
    """Return the error that names everything pydantic found wrong, each with the origin of the value."""
    found = []
    sections = form.sections
    for detail in error.errors(include_url=False):
        path = detail["loc"]
        if detail["type"] == "extra_forbidden":
            reason = _unknown(sections, *map(str, path))
        elif detail["type"] in ("model_type", "model_attributes_type", "dict_type"):
            reason = f"{path[0]} is a section; write [{path[0]}], and its settings below it"
        else:
            reason = sections[str(path[0])].explain(detail, path[1:])
        found.append(f"{origin(path)}: {reason}")
    return BadRequestError("; ".join(found))


def _unknown_section(sections: Sections, name: str) -> str:
    return f"there is no section {name}{_suggest(name, sections)}"


def _unknown(sections: Sections, section: str, key: str | None = None) -> str:
    word = section if key is None else key
    homes = [name for name, group in sections.items() if word in group.model_fields]
    if key is None:
        return f"{word} belongs below [{homes[0]}]" if homes else _unknown_section(sections, word)
    if homes:
        return f"[{section}] has no setting {key}; it belongs below [{homes[0]}]"
    return f"there is no setting {section}.{key}{_suggest(key, sections[section].model_fields)}"


def _suggest(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else f"; known are {', '.join(known)}"
