"""What the sections of the configuration are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict

from flowedge.core.errors import BadRequestError

T = TypeVar("T")


class Section(BaseModel):
    """A table of the configuration file; every field has a description, its one comment there.

    A field without a default also has `examples`, of which the shipped file shows the first.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def checked_by(check: Callable[[T], T]) -> Any:
    """For Annotated: `check` returns the value to use, or raises the BadRequestError that says why not."""

    def validate(value: T) -> T:
        try:
            return check(value)
        except BadRequestError as error:
            raise ValueError(str(error)) from error

    return AfterValidator(validate)
