"""Flags that set settings: their types, bounds and help are those of the settings."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from flowedge.agent.config.loading import ConfigDeclaration, Flags


@dataclass(frozen=True)
class SettingFlags:
    """The flags of a command.

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
