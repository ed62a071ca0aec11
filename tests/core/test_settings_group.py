"""The values that a group of settings refuses, and its messages."""

from __future__ import annotations

from typing import Annotated, ClassVar

import pytest
from pydantic import BaseModel, Field, SecretStr, ValidationError, model_validator

from flowedge.core.errors import BadRequestError
from flowedge.core.settings_group import Seconds, SettingsGroup, checked_by


def even(number: int) -> int:
    if number % 2:
        raise BadRequestError(f"{number} is odd")
    return number


class Group(SettingsGroup):
    wait_s: Seconds = 1.0
    sizes: tuple[Annotated[int, checked_by(even)], ...] = ()
    password: Annotated[SecretStr | None, Field(min_length=8)] = None
    rows: ClassVar[int] = 4

    @model_validator(mode="after")
    def _fits(self) -> Group:
        if len(self.sizes) > self.wait_s:
            raise ValueError("there are more sizes than seconds")
        return self


class Sections(BaseModel):
    group: Group = Group()


def test_a_group_built_in_code_raises_the_projects_error() -> None:
    with pytest.raises(
        BadRequestError, match=r"^wait_s is -1: input should be greater than 0; sizes\.1: 3 is odd$"
    ):
        Group(wait_s=-1, sizes=(2, 3))
    with pytest.raises(BadRequestError, match=r"^there are more sizes than seconds$"):
        Group(sizes=(2, 4))
    with pytest.raises(BadRequestError, match="wait_s is inf"):
        Group(wait_s=float("inf"))


def test_a_group_inside_another_model_keeps_the_path_of_the_field() -> None:
    with pytest.raises(ValidationError) as caught:
        Sections.model_validate({"group": {"sizes": [2, 3]}})
    (detail,) = caught.value.errors()
    assert detail["loc"] == ("group", "sizes", 1)


def test_a_secret_is_not_shown() -> None:
    with pytest.raises(BadRequestError, match=r"^password: ") as caught:
        Group(password="hunter2")  # type: ignore[arg-type]
    assert "hunter2" not in str(caught.value)


def test_a_constant_is_no_setting() -> None:
    assert Group().rows == 4
    with pytest.raises(BadRequestError, match="rows is 5: extra inputs are not permitted"):
        Group(rows=5)  # type: ignore[call-arg]
