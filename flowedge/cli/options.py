"""Options that several commands share, and checks of their values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from flowedge.core.errors import BadRequestError
from flowedge.core.request import DEFAULT_STRATEGY
from flowedge.core.verification import VerificationChoice
from flowedge.device.files import expand_home
from flowedge.drafting import choice
from flowedge.drafting.choice import drafter_names
from flowedge.drafting.draft_form import DraftQuant
from flowedge.models.gguf.split_files import SUFFIX
from flowedge.network.address import checked_address
from flowedge.planning.profile.model import Quantisation
from flowedge.strategies.choice import AUTOREGRESSIVE, WITHOUT_DRAFTER, checked_strategy

BUNDLED = choice.BUNDLED
MODEL_HELP = (
    "Checkpoint directory, GGUF file, hub id (owner/name, owner/name:Q4_K_M or owner/name/FILE.gguf), or "
    "bundled."
)
TOKENIZER_HELP = "Directory or hub id of a tokenizer to use instead of the model's."
PipelineDtype = Annotated[
    Literal["auto", "float16", "bfloat16", "float32"],
    typer.Option(
        "--dtype",
        help="Dtype of weights, KV cache and hidden states; auto: the best dtype that all devices "
        "compute fast.",
    ),
]
KvForm = Annotated[
    Literal["native", "int8"],
    typer.Option(
        "--kv", help="Format of the KV cache: the dtype (native), or 8 bits (int8), half the memory."
    ),
]
Exactness = Annotated[
    Literal["auto", "on", "off"],
    typer.Option(
        "--exact",
        help="Make each row's result independent of the rows computed with it, bit for bit; auto: "
        "where that is "
        "cheap.",
    ),
]
Verification = Annotated[
    VerificationChoice,
    typer.Option(
        "--verification",
        help="Where the model's tokens are drawn: on the draft node, or on the last stage, which then holds "
        "the LM head as well; auto: where it takes less time.",
    ),
]
DraftQuantOption = Annotated[
    DraftQuant,
    typer.Option(
        "--draft-quant",
        help="Format of drafters that are models, and of the LM head that they propose with; auto: the "
        "fastest.",
    ),
]
DraftVocabularyOption = Annotated[
    str,
    typer.Option(
        "--draft-vocabulary",
        metavar="<auto|all|N>",
        help="Number of tokens that such drafters propose, the most frequent of the model's output; auto: on "
        "a CPU a part of large vocabularies, when the draft node has seen enough.",
    ),
]
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
Split = Annotated[
    str | None,
    typer.Option(metavar="N,N,...", help="Layers of each stage, such as 2,3,3. Default: equal shares."),
]


def split_peers(text: str) -> list[str]:
    """Return the addresses of a text "host:port,host:port".

    Raises:
        BadRequestError: when an address is malformed.
    """
    return [checked_address(part.strip()) for part in text.split(",")]


DRAFTER_HELP = (
    "EAGLE head or small language model (a directory or hub id), ngram (lookup in the text), or none (plain "
    "decoding); the bundled model has bundled, bundled-small and bundled-eagle3. If omitted: bundled for the "
    "bundled model, ngram for others. Repeat the option to join several, the best first: "
    "--drafter bundled --drafter recall --drafter ngram."
)
Model = Annotated[str, typer.Option("--model", help=MODEL_HELP)]
Tokenizer = Annotated[str | None, typer.Option("--tokenizer", help=TOKENIZER_HELP)]
Drafter = Annotated[list[str] | None, typer.Option("--drafter", help=DRAFTER_HELP)]
Peers = Annotated[
    str | None,
    typer.Option(
        "--peers",
        metavar="HOST:PORT,...",
        help="Agents to use: the draft node, then the stages in layer order.",
    ),
]
LayerQuant = Annotated[Quantisation, typer.Option("--quant", help="Quantisation of the layers.")]
Temperature = Annotated[
    float,
    typer.Option("--temperature", help="Sampling temperature; 0 always picks the most likely token."),
]
TopP = Annotated[float, typer.Option("--top-p", help="Probability mass to sample from; 1 keeps all tokens.")]
TopK = Annotated[
    int, typer.Option("--top-k", help="Number of most likely tokens to sample from; 0 keeps all tokens.")
]
System = Annotated[
    str | None, typer.Option("--system", help="System message, for models whose chat template has one.")
]


@dataclass(frozen=True)
class DraftingChoice:
    """How to draft.

    Attributes:
        drafter: names of the drafters to join (see drafter_names); empty for no drafter.
        notice: what to tell the user of a choice that the command line does not make; "" for nothing.
    """

    drafter: tuple[str, ...]
    strategy: str
    notice: str = ""


def choose_drafting(model: str, given: Sequence[str] | None, strategy: str) -> DraftingChoice:
    """Return the drafters and the strategy for a model.

    Without --drafter they are the bundled head for the bundled model, and lookup (ngram) for others. Without
    any drafter, "auto" is plain decoding.

    Raises:
        BadRequestError: when the names cannot be joined, or there is no drafter and the strategy needs one.
    """
    needs_drafter = checked_strategy(strategy) not in WITHOUT_DRAFTER
    if not given and not needs_drafter:
        return DraftingChoice((BUNDLED,) if model == BUNDLED else (), strategy)
    if not given:
        if model == BUNDLED:
            return DraftingChoice((BUNDLED,), strategy)
        notice = (
            f"no --drafter is given for {model}: drafting by lookup in the text ({choice.NGRAM}); a head of "
            "its own is faster"
        )
        return DraftingChoice((choice.NGRAM,), strategy, notice)
    drafter = choose_drafter(model, given)
    if drafter or not needs_drafter:
        return DraftingChoice(drafter, strategy)
    if strategy == DEFAULT_STRATEGY:
        return DraftingChoice((), AUTOREGRESSIVE)
    raise BadRequestError(
        f"--strategy {strategy} needs a drafter, and --drafter {choice.NO_DRAFTER} excludes all; name one "
        f"({choice.NGRAM} needs no weights), or leave out --strategy for plain decoding"
    )


def choose_drafter(model: str, given: Sequence[str] | None) -> tuple[str, ...]:
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
    return str(path.resolve()) if source not in choice.BUNDLED_FOLDERS and is_local else source
