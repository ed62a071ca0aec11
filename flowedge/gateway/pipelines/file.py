"""The file of pipelines that a gateway is to serve."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, TomlConfigSettingsSource

from flowedge.core.errors import BadRequestError
from flowedge.core.pipeline_config import PipelineConfig
from flowedge.core.settings_group import checked_by
from flowedge.network.address import checked_address


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


_MOST_BYTES = 1 << 20
_Address = Annotated[str, checked_by(checked_address)]
_Name = Annotated[str, Field(min_length=1, max_length=200)]


class DeclaredPipeline(PipelineConfig):
    """A pipeline of the file: a draft node that has its pipeline, or agents for one, or stages to start here.

    Attributes:
        name: of the model, for clients. Default: as the draft node tells.
        aliases: further names of the model.
        label: of the pipeline, in metrics and logs. Default: the draft node's address.
        draft_node: address of a draft node whose pipeline others set up.
        agents: addresses of the draft node and then of the stages, which the gateway sets up.
        stages: number of stages to start on this machine.
        certificate: name that the draft node's certificate must have. Default: any name of the cluster.
        standby: address of the agent that leads the pipeline when the draft node is lost. A draft node that
            answers tells its own.

    The settings are of a pipeline that the gateway sets up.
    """

    name: _Name | None = None
    aliases: tuple[_Name, ...] = ()
    label: _Name | None = None
    draft_node: _Address | None = None
    agents: tuple[_Address, ...] = ()
    stages: Annotated[int, Field(ge=1, le=64)] | None = None
    certificate: _Name | None = None
    standby: _Address | None = None

    def check(self) -> None:
        """Check that it says where the pipeline is.

        Raises:
            BadRequestError: when it says it twice or not at all, or has settings that change nothing.
        """
        places = [name for name in ("draft_node", "agents", "stages") if getattr(self, name)]
        if len(places) != 1:
            found = " and ".join(places) or "none of them"
            raise BadRequestError(f"give one of draft_node, agents and stages; there is {found}")
        if len(self.agents) == 1:
            raise BadRequestError("agents names one agent; name the draft node and then at least one stage")
        useless = sorted(self.model_fields_set & set(PipelineConfig.model_fields))
        if self.draft_node and useless:
            raise BadRequestError(
                f"{', '.join(useless)}: the pipeline of draft_node is set up already; leave this out, or "
                "name its agents instead"
            )


class _PipelinesFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    pipelines: Annotated[tuple[DeclaredPipeline, ...], Field(min_length=1, max_length=256)]


def read_pipelines(path: Path) -> tuple[DeclaredPipeline, ...]:
    """Return the pipelines of a file.

    Raises:
        BadRequestError: when the file cannot be read, a key is unknown, or a value is wrong.
    """
    content = parse_toml(path, _MOST_BYTES)
    try:
        declared = _PipelinesFile.model_validate(content).pipelines
    except ValidationError as error:
        found = [_explained(detail) for detail in error.errors(include_url=False)]
        raise BadRequestError(f"{path}: {'; '.join(found)}") from error
    for number, pipeline in enumerate(declared, 1):
        try:
            pipeline.check()
        except BadRequestError as error:
            raise BadRequestError(f"{path}: pipeline {number}: {error}") from error
    _check_labels(path, declared)
    return declared


def _check_labels(path: Path, declared: tuple[DeclaredPipeline, ...]) -> None:
    """Check that no two pipelines have the same draft node or label."""
    seen: set[str] = set()
    for pipeline in declared:
        address = pipeline.draft_node or (pipeline.agents[0] if pipeline.agents else "")
        for name in filter(None, {pipeline.label or "", address}):
            if name in seen:
                raise BadRequestError(f"{path}: {name} is there twice; each pipeline has its own draft node")
            seen.add(name)


def _explained(detail: ErrorDetails) -> str:
    """Return what is wrong, with the place: the number of the pipeline, from 1, and the key."""
    path: tuple[Any, ...] = detail["loc"]
    where, key = "", ".".join(map(str, path))
    if path[0] == "pipelines" and len(path) > 1:
        where, key = f"pipeline {int(path[1]) + 1}: ", ".".join(map(str, path[2:]))
    if detail["type"] == "extra_forbidden":
        known = list(_PipelinesFile.model_fields if not where else DeclaredPipeline.model_fields)
        close = difflib.get_close_matches(key, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
        return f"{where}there is no key {key}; {hint}"
    if detail["type"] == "missing":
        return f"{where}{key} is missing; write [[pipelines]] for each pipeline"
    message = detail["msg"].removeprefix("Value error, ")
    return f"{where}{key} is {detail['input']!r}: {message[:1].lower()}{message[1:]}"
