"""Options that set settings: their types, bounds, defaults and help are those of the settings."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, get_args, get_origin

import typer

from flowedge.core.settings_group import DeclaredSetting, declared_settings, types_of
from flowedge.planning.split import split_counts

if TYPE_CHECKING:
    from flowedge.agent.config_loading import ConfigDeclaration, Flags

Typed: TypeAlias = dict[str, Any]
"""What a command line says of settings, by their names."""


@dataclass(frozen=True)
class OptionsOf:
    """The annotation of a command's parameter of the type `Typed`: there is an option for each setting.

    Attributes:
        group: declares the settings.
        only: the settings that have an option; empty for all.
        without: settings that have none.
        defaults: by setting, the command's own default.
    """

    group: type[Any]
    only: Sequence[str] = ()
    without: Sequence[str] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def parameters(self) -> list[inspect.Parameter]:
        """Return a parameter for each option, as Typer reads it."""
        return [self._parameter(each) for each in self._settings()]

    def read(self, values: Typed) -> Typed:
        """Take the values of the options from those of all options, and return them as settings.

        Raises:
            BadRequestError: when a list of numbers is malformed.
        """
        return {each.name: self._read(each, values.pop(each.name)) for each in self._settings()}

    def _read(self, setting: DeclaredSetting, given: Any) -> Any:
        """Return what was typed for a setting as its value; its default if nothing was typed."""
        if given is None:
            return self.defaults.get(setting.name, setting.default)
        if _numbers_in(setting.types):
            return tuple(split_counts(given))
        return tuple(given) if isinstance(given, list) else given

    def _settings(self) -> list[DeclaredSetting]:
        return [
            each
            for each in declared_settings(self.group)
            if each.name not in self.without and (not self.only or each.name in self.only)
        ]

    def _parameter(self, setting: DeclaredSetting) -> inspect.Parameter:
        default = self.defaults.get(setting.name, setting.default)
        kind, metavar = _typer_type(setting.types)
        flag = f"--{setting.name.replace('_', '-')}"
        option = typer.Option(flag, help=setting.description, metavar=metavar)
        shown = None if default in ("", ()) else default
        annotation = Annotated[kind | None, option] if shown is None else Annotated[kind, option]
        return inspect.Parameter(
            setting.name, inspect.Parameter.KEYWORD_ONLY, default=shown, annotation=annotation
        )


def with_setting_options(command: Callable[..., None]) -> Callable[..., None]:
    """Have Typer see the options of each parameter that is annotated with OptionsOf."""
    parameters: list[inspect.Parameter] = []
    groups: dict[str, OptionsOf] = {}
    for each in inspect.signature(command, eval_str=True).parameters.values():
        found = [note for note in get_args(each.annotation) if isinstance(note, OptionsOf)]
        if found:
            groups[each.name] = found[0]
            parameters += found[0].parameters()
        else:
            kind = each.kind if each.kind is each.VAR_KEYWORD else each.KEYWORD_ONLY
            parameters.append(each.replace(kind=kind))

    @functools.wraps(command)
    def run(**values: Any) -> None:
        command(**{name: group.read(values) for name, group in groups.items()}, **values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def _typer_type(types: Sequence[Any]) -> tuple[Any, str | None]:
    """Return the type of an option's value, and what the help shows in place of the value.

    types: of the setting (see DeclaredSetting).
    """
    words = [word for each in types if get_origin(each) is Literal for word in get_args(each)]
    if words and int in types:
        return str, f"<{'|'.join(words)}|N>"
    if words:
        return next(each for each in types if get_origin(each) is Literal), None
    if _numbers_in(types):
        return str, "N,N,..."
    if any(isinstance(get_origin(each), type) for each in types):  # a tuple or a sequence
        return list[str], None
    return next(each for each in (bool, int, float, str) if each in types), None


def _numbers_in(types: Sequence[Any]) -> bool:
    return any(get_origin(each) is tuple and int in types_of(get_args(each)[0]) for each in types)


@dataclass(frozen=True)
class SettingFlags:
    """The flags of a command that set the settings of a configuration file.

    Attributes:
        flags: section and key that each flag sets. A flag of an array is singular and may be repeated.
        metavars: by key, what the help shows in place of a value.
    """

    form: ConfigDeclaration[Any]
    flags: Mapping[str, tuple[str, str]]
    metavars: Mapping[str, str] = field(default_factory=dict)

    def added_to(self, command: Callable[..., None]) -> Callable[..., None]:
        """Have Typer see an option for each flag in place of the command's `**flags`."""
        signature = inspect.signature(command, eval_str=True)
        options = [self._option(flag, *setting) for flag, setting in self.flags.items()]
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        first = [each for each in own if each.kind is not each.KEYWORD_ONLY]
        rest = [each for each in own if each.kind is each.KEYWORD_ONLY]
        parameters = [*first, *options, *rest]
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return command

    def given(self, values: Mapping[str, Any]) -> Flags:
        """Return what the command line sets, of the values of the command's `**flags`."""
        return {
            flag.partition("/")[0]: (*setting, values[_parameter(flag)] or None)
            if isinstance(values[_parameter(flag)], list)
            else (*setting, values[_parameter(flag)])
            for flag, setting in self.flags.items()
        }

    def _option(self, flag: str, section: str, key: str) -> inspect.Parameter:
        """Return the parameter of a flag, which is None when the flag is not given."""
        setting = self.form.sections[section].model_fields[key]
        types = (setting.annotation, *get_args(setting.annotation))
        kind: Any = next((each for each in (bool, int, float) if each in types), str)
        if get_origin(setting.annotation) is tuple:
            kind = list[str]
        least, most = (
            next((getattr(bound, name) for bound in setting.metadata if hasattr(bound, name)), None)
            for name in ("ge", "le")
        )
        words = [word for each in types if get_origin(each) is Literal for word in get_args(each)]
        metavar = "|".join(words) or self.metavars.get(key)
        options = typer.Option(flag, help=setting.description, min=least, max=most, metavar=metavar)
        option = Annotated[kind | None, options]
        only_by_name = inspect.Parameter.KEYWORD_ONLY
        return inspect.Parameter(_parameter(flag), only_by_name, default=None, annotation=option)


def _parameter(flag: str) -> str:
    return flag.partition("/")[0].removeprefix("--").replace("-", "_")
