"""The configuration of a pipeline that the agent keeps up by itself."""

from __future__ import annotations

from pydantic import Field, model_validator

from flowedge.agent.config.section import Section
from flowedge.agent.pipeline_settings import PipelineSettings
from flowedge.core.errors import BadRequestError
from flowedge.drafting.choice import drafter_names, drafter_value

_PIPELINE = PipelineSettings()


class PipelineSection(Section):
    """What this device is the draft node of."""

    model: str = Field(
        default=_PIPELINE.model,
        description="Keep a pipeline of this model up, with this device as its draft node: a directory or "
        'hub id that all its devices can read, or "bundled". Empty: none, until someone asks for one.',
    )
    drafter: str | list[str] = Field(
        default=drafter_value(_PIPELINE.drafter),
        description='Its drafter: a directory or hub id, "bundled", "ngram" or "none". Several to join are a '
        'list: ["bundled", "ngram"].',
    )
    quant: str = Field(default=_PIPELINE.quant, description="Quantisation of the layers.")
    stages: list[str] = Field(
        default=list(_PIPELINE.stages),
        description="Its stages, host:port in the order of the layers. Empty: idle agents that are found.",
    )
    count: int = Field(
        default=_PIPELINE.count, ge=0, description="How many stages to find; 0 takes all idle agents."
    )
    split: list[int] = Field(
        default=list(_PIPELINE.split), description="Layers of each stage; empty: as even as possible."
    )
    look_s: float = Field(
        default=_PIPELINE.look_s, gt=0, description="Seconds between looks at whether it still stands."
    )

    def settings(self) -> PipelineSettings:
        """What the agent is run with."""
        return PipelineSettings(
            model=self.model,
            drafter=drafter_names(self.drafter),
            quant=self.quant,
            stages=tuple(self.stages),
            count=self.count,
            split=tuple(self.split),
            look_s=self.look_s,
        )

    @model_validator(mode="after")
    def _makes_sense(self) -> PipelineSection:
        try:
            self.settings()
        except BadRequestError as error:
            raise ValueError(str(error)) from error
        return self
