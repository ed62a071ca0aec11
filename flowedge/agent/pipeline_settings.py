"""The pipeline that an agent keeps up by itself, as its draft node."""

from __future__ import annotations

from dataclasses import dataclass

from flowedge.core.errors import BadRequestError
from flowedge.net.address import split_address


@dataclass(frozen=True)
class PipelineSettings:
    """What to assemble; nothing without a model. BadRequestError for values that cannot be used."""

    model: str = ""  # directory or hub id that all its devices can read, or "bundled"
    drafter: tuple[str, ...] = ("bundled",)  # names of the drafters to join; empty for none
    quant: str = "none"  # of the layers
    stages: tuple[str, ...] = ()  # host:port in the order of the layers; empty: idle agents that are found
    count: int = 0  # of stages, where none are named; 0 takes all that are found
    split: tuple[int, ...] = ()  # layers of each stage; empty: as even as possible
    look_s: float = 5.0  # between two looks at whether it still stands

    def __post_init__(self) -> None:
        for address in self.stages:
            split_address(address)
        if self.count < 0 or any(layers < 1 for layers in self.split):
            raise BadRequestError(f"count is {self.count} and split {list(self.split)}; both count from 1 on")
        if self.stages and self.count:
            raise BadRequestError("give either the stages of the pipeline or their count")
        named = self.stages_wanted
        if self.split and len(self.split) != named:
            raise BadRequestError(
                f"split has {len(self.split)} stages, but {named or 'any number'} are asked for"
            )
        if not self.look_s > 0:
            raise BadRequestError(f"look_s is {self.look_s:g}; it must be above 0")

    @property
    def stages_wanted(self) -> int:
        """How many stages it must have; 0 for any number."""
        return len(self.stages) or self.count
