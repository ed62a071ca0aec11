"""Values of options that several commands share."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

from flowedge.core.errors import BadRequestError
from flowedge.drafting import choice
from flowedge.net.address import split_address
from flowedge.strategies.base import HierarchicalStrategy, Strategy

BUNDLED = choice.BUNDLED


class Quant(str, Enum):
    """How the linear layers of a block are quantised (see flowedge.models.quant.quantize)."""

    NONE = "none"
    INT8 = "int8"
    NF4 = "nf4"
    FP4 = "fp4"
    NF4_DQ = "nf4-dq"
    FP4_DQ = "fp4-dq"
    INT4 = "int4"


class Dtype(str, Enum):
    """The dtype of weights that are not quantised (see flowedge.models.layers.tensors)."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


class Noise(str, Enum):
    """What drafts are ranked by above temperature 0; the names are those of flowedge.core.request."""

    PLAIN = "plain"
    SHARED = "shared"


class DraftNoise(str, Enum):
    """Which of these a benchmark runs."""

    PLAIN = "plain"
    SHARED = "shared"
    BOTH = "both"


def split_peers(text: str) -> list[str]:
    """The addresses of "host:port,host:port"; BadRequestError for one that is none."""
    addresses = [part.strip() for part in text.split(",")]
    for address in addresses:
        split_address(address)
    return addresses


def default_drafter(model: str, drafter: str | None, strategy: str) -> str:
    """The drafter that was asked for, or the model's own; BadRequestError when one is needed and unknown."""
    if drafter is not None:
        return drafter
    if model == BUNDLED:
        return BUNDLED
    if strategy == "autoregressive":
        return choice.NO_DRAFTER
    raise BadRequestError(
        f"--strategy {strategy} needs a drafter for {model}: give --drafter, and {choice.NGRAM} needs no "
        "weights, or use --strategy autoregressive"
    )


def middle_models(text: str | None, strategy: Strategy) -> tuple[str, ...]:
    """The models of --middle; BadRequestError when there are none in it, or the strategy uses none."""
    if text is None:
        return ()
    models = tuple(local_path(part.strip()) for part in text.split(",") if part.strip())
    if not models:
        raise BadRequestError("--middle names no model; give DIR or DIR,DIR with the smallest first")
    if not isinstance(strategy, HierarchicalStrategy):
        raise BadRequestError(f"--strategy {strategy.name} uses no middle models; only pipespec does")
    return models


def local_path(source: str) -> str:
    """A model's source with a path of this machine made absolute; anything else as it is."""
    path = Path(source).expanduser()
    return str(path.resolve()) if source not in choice.BUNDLED_FOLDERS and path.is_dir() else source


def local_drafter(drafter: str) -> str:
    """A drafter with paths of this machine made absolute. BadRequestError for one that cannot be read."""
    return choice.map_sources(drafter, local_path)
