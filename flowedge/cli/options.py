"""Options that several commands share, and checks of their values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from flowedge.core.errors import BadRequestError
from flowedge.core.pipeline_config import NO_DRAFTER, PipelineConfig, drafter_names
from flowedge.core.request import DEFAULT_STRATEGY
from flowedge.device.files import expand_home
from flowedge.drafting import choice
from flowedge.models.gguf.split_files import SUFFIX
from flowedge.network.address import checked_address
from flowedge.strategies.choice import AUTOREGRESSIVE, WITHOUT_DRAFTER, checked_strategy

BUNDLED = choice.BUNDLED
MODEL_HELP = PipelineConfig.model_fields["model"].description or ""
INSECURE_HELP = (
    "Use plaintext, also over the network: anyone there can read and use it. The other side must allow it "
    "too."
)
ClusterDir = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR", help="Directory of this machine's credentials. Default: the state directory."
    ),
]
Insecure = Annotated[bool, typer.Option("--insecure", help=INSECURE_HELP)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
AskPeers = Annotated[
    str | None,
    typer.Option("--peers", metavar="HOST:PORT,...", help="Ask these agents instead of searching."),
]


Wait = Annotated[
    float,
    typer.Option(
        "--wait",
        min=0,
        metavar="SECONDS",
        help="Maximum time to wait for the draft node of --peers to set its pipeline up.",
    ),
]
WAIT_S = 120.0


def split_peers(text: str) -> list[str]:
    """Return the addresses of a text "host:port,host:port".

    Raises:
        BadRequestError: when an address is malformed.
    """
    return [checked_address(part.strip()) for part in text.split(",")]


def pipeline_peers(text: str) -> tuple[str, ...]:
    """Return the addresses of a text "host:port+,host:port": the draft node, then the stages.

    With a plus sign the draft node is the first stage as well; named again, it is the stage of that place.

    Raises:
        BadRequestError: when an address is malformed.
    """
    first, *others = [part.strip() for part in text.split(",")]
    named = [first.removesuffix("+"), *others]
    if first.endswith("+"):
        named.insert(1, named[0])
    return tuple(map(checked_address, named))


def split_names(text: str) -> list[str]:
    """Return the names of a text "kitchen,attic".

    Raises:
        BadRequestError: when there is none.
    """
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise BadRequestError(f"{text!r} names no device; give a name, as flowedge devices lists them")
    return names


Peers = Annotated[
    str | None,
    typer.Option(
        "--peers",
        metavar="HOST:PORT,...",
        help="Agents to use: the draft node, then the stages in layer order. With + behind its address "
        "the draft node is the first stage as well, and named again it is the stage of that place.",
    ),
]


@dataclass(frozen=True)
class DraftingChoice:
    """How to draft.

    Attributes:
        drafter: names of the drafters to join (see drafter_names); empty for no drafter, None where no model
            is named: whichever the pipeline has.
        notice: what to tell the user of a choice that the command line does not make; "" for nothing.
    """

    drafter: tuple[str, ...] | None
    strategy: str
    notice: str = ""


def choose_drafting(model: str, given: str | Sequence[str] | None, strategy: str) -> DraftingChoice:
    """Return the drafters and the strategy for a model.

    Without --drafter they are those of `default_drafter`. Without any drafter, "auto" is plain decoding.

    Raises:
        BadRequestError: when the names cannot be joined, or there is no drafter and the strategy needs one.
    """
    needs_drafter = checked_strategy(strategy) not in WITHOUT_DRAFTER
    if not given and not model:
        return DraftingChoice(None, strategy)
    if not given and not needs_drafter:
        return DraftingChoice((BUNDLED,) if model == BUNDLED else (), strategy)
    if not given:
        default, notice = choice.default_drafter(model), ""
        if default == choice.NGRAM:
            notice = (
                f"no --drafter is given for {model}: drafting by lookup in the text ({default}); a head of "
                f"its own is faster, or {choice.MTP} if a layer that predicts further tokens comes with it"
            )
        return DraftingChoice((default,), strategy, notice)
    drafter = choose_drafter(model, given)
    if drafter or not needs_drafter:
        return DraftingChoice(drafter, strategy)
    if strategy == DEFAULT_STRATEGY:
        return DraftingChoice((), AUTOREGRESSIVE)
    raise BadRequestError(
        f"--strategy {strategy} needs a drafter, and --drafter {NO_DRAFTER} excludes all; name one "
        f"({choice.NGRAM} needs no weights), or leave out --strategy for plain decoding"
    )


def choose_drafter(model: str, given: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of --drafter with local paths made absolute; without the option, the bundled model's.

    Raises:
        BadRequestError: when the names cannot be joined.
    """
    if not given:
        return (BUNDLED,) if model == BUNDLED else ()
    return tuple(map(local_path, drafter_names(given)))


def local_path(source: str) -> str:
    """Return a model's name, with a path of this machine made absolute."""
    path = expand_home(source)
    is_local = path.is_dir() or (path.suffix == SUFFIX and path.is_file())
    return str(path.resolve()) if source not in choice.WORDS and is_local else source
