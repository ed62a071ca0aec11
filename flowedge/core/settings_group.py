"""The base class of the groups of settings that a user may change."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from flowedge.core.errors import BadRequestError

T = TypeVar("T")
Seconds = Annotated[float, Field(gt=0)]


class SettingsGroup(BaseModel):
    """A frozen group of settings, each a field with its bounds, its default and a one-line description.

    A field whose default is None has `examples` as well. A constant that no user may change is a ClassVar.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise self.refused(error) from error

    # Pydantic then takes this for its own __init__, and does not call it for a group inside another model:
    # the error of that model has to say where the field is.
    functools.update_wrapper(__init__, BaseModel.__init__)

    @classmethod
    def refused(cls, error: ValidationError) -> BadRequestError:
        """Return the error that names everything pydantic found wrong with a group."""
        found = [cls.explain(detail, detail["loc"]) for detail in error.errors(include_url=False)]
        return BadRequestError("; ".join(found))

    @classmethod
    def explain(cls, detail: ErrorDetails, path: tuple[str | int, ...]) -> str:
        """Return what pydantic found wrong at a path: a field and an index, or empty for the whole group."""
        place = ".".join(map(str, detail["loc"]))
        message = detail["msg"].removeprefix("Value error, ")
        message = message[:1].lower() + message[1:]
        field = cls.model_fields.get(str(path[0])) if path else None
        if detail["type"] == "value_error" or (field is not None and "Secret" in str(field.annotation)):
            return f"{place}: {message}" if place else message
        return f"{f'{place} is ' if place else ''}{detail['input']!r:.200}: {message}"


@dataclasses.dataclass(frozen=True)
class DeclaredSetting:
    """What the documents and the command line are told of a setting.

    Attributes:
        types: the types of its values, such as (int, NoneType) for `int | None`.
        default: None where it has none.
    """

    name: str
    types: tuple[Any, ...]
    default: Any
    description: str


def declared_settings(group: type[Any]) -> list[DeclaredSetting]:
    """Return the settings of a SettingsGroup, or of a dataclass whose fields have a "description"."""
    if issubclass(group, SettingsGroup):
        return [
            DeclaredSetting(name, types_of(each.annotation), each.default, each.description or "")
            for name, each in group.model_fields.items()
        ]
    types, defaults = get_type_hints(group), group()
    return [
        DeclaredSetting(
            each.name,
            types_of(types[each.name]),
            getattr(defaults, each.name),
            each.metadata["description"],
        )
        for each in dataclasses.fields(group)
    ]


def types_of(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the one type, without what Annotated adds."""
    if get_origin(annotation) is Annotated:
        return types_of(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return tuple(each for member in get_args(annotation) for each in types_of(member))
    return (annotation,)


def setting(default: T, description: str, **constraints: Any) -> T:
    """Declare a field of a group; its type may have bounds too, and `constraints` are arguments of Field."""
    return cast(T, Field(default=default, description=description, **constraints))


def checked_by(check: Callable[[T], T]) -> Any:
    """Return the annotation of a field whose value `check` returns, or refuses with a BadRequestError."""

    def validate(value: T) -> T:
        try:
            return check(value)
        except BadRequestError as error:
            raise ValueError(str(error)) from error

    return AfterValidator(validate)
