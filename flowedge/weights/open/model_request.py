"""What a role needs of a model, and what has become of that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from flowedge.core.errors import ProtocolError
from flowedge.storage.digest import is_digest
from flowedge.storage.pins import Pin
from flowedge.v1 import agent_pb2 as pb
from flowedge.weights.fetch.fetcher import SourceAddress
from flowedge.weights.known_models import shown

if TYPE_CHECKING:
    from flowedge.models.checkpoint.checkpoint import Checkpoint
    from flowedge.weights.open.quantised import QuantisedRequest

MAX_SOURCES = 64


@dataclass(frozen=True)
class ModelRequest:
    """What is to be opened.

    Attributes:
        model: as it was named; name: for people; manifest: its id.
        select: returns the stored names of the tensors that are needed.
        admit: refuses a model that does not fit by a FlowEdgeError; called before any tensor is fetched.
        every_file: whether the tokenizer's files are needed as well.
        quantised: the id of the list of weights that are there quantised; "" when none are.
        asked: the quantisation that is asked for; only together with `quantised`.
    """

    model: str
    name: str
    manifest: str
    fingerprint: str
    sources: tuple[SourceAddress, ...]
    select: Callable[[Checkpoint], Sequence[str]]
    every_file: bool = False
    quantised: str = ""
    asked: Callable[[], QuantisedRequest] | None = None
    admit: Callable[[Checkpoint], None] = lambda _: None

    def __post_init__(self) -> None:
        """ProtocolError for what cannot be."""
        if not is_digest(self.manifest) or not (self.quantised == "" or is_digest(self.quantised)):
            raise ProtocolError("a model goes by the SHA-256 of its manifest")


def model_request(
    weights: pb.WeightSources,
    model: str,
    fingerprint: str,
    select: Callable[[Checkpoint], Sequence[str]],
    asked: Callable[[], QuantisedRequest] | None = None,
    admit: Callable[[Checkpoint], None] = lambda _: None,
) -> ModelRequest:
    """What a role says is to be opened. ProtocolError."""
    if len(weights.peers) > MAX_SOURCES:
        raise ProtocolError(f"a model has at most {MAX_SOURCES} sources")
    others = [address for address in weights.peers if address != weights.draft_node]
    return ModelRequest(
        model=model,
        name=shown(weights.name or model),
        manifest=weights.manifest,
        fingerprint=fingerprint,
        sources=(SourceAddress(weights.draft_node, True), *map(SourceAddress, dict.fromkeys(others))),
        select=select,
        quantised=weights.quantised,
        asked=asked,
        admit=admit,
    )


@dataclass(frozen=True)
class OpenedModel:
    """A checkpoint all of whose wanted tensors can be read, and what keeps them from being dropped.

    Attributes:
        given: files of weights that are there quantised instead, by the digest of their keys.
    """

    checkpoint: Checkpoint
    pin: Pin | None = None
    given: Mapping[str, Path] = field(default_factory=dict)

    def release(self) -> None:
        """Its objects may be dropped again."""
        if self.pin is not None:
            self.pin.release()
