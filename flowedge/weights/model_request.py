"""What a role needs of a model, and the model that was opened for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from flowedge.core.errors import ProtocolError
from flowedge.device.disk_cache.digest import is_digest
from flowedge.device.disk_cache.pins import Pin
from flowedge.v1 import agent_pb2 as pb
from flowedge.weights.fetch.source import SourceAddress
from flowedge.weights.known_models import printable_name

if TYPE_CHECKING:
    from flowedge.models.checkpoint.checkpoint import Checkpoint
    from flowedge.weights.quantised_weights import QuantisedRequest

MAX_SOURCES = 64


@dataclass(frozen=True)
class ModelRequest:
    """The part of a model that a role needs.

    Attributes:
        model: directory, hub id or hash, as the user named it. name: for people. manifest: the model's id.
        fingerprint: of the draft node's checkpoint.
        select: returns the stored names of the tensors to read.
        admit: refuses a model that does not fit by a FlowEdgeError; called before any tensor is fetched.
        with_tokenizer: whether the tokenizer's files are needed too.
        quantised: the id of the list of quantised weights that the draft node has, "" if it has none.
        quantisation: returns the quantisation to look for in that list.
    """

    model: str
    name: str
    manifest: str
    fingerprint: str
    sources: tuple[SourceAddress, ...]
    select: Callable[[Checkpoint], Sequence[str]]
    with_tokenizer: bool = False
    quantised: str = ""
    quantisation: Callable[[], QuantisedRequest] | None = None
    admit: Callable[[Checkpoint], None] = lambda _: None

    def __post_init__(self) -> None:
        for digest in (self.manifest, self.quantised or self.manifest):
            if not is_digest(digest):
                raise ProtocolError(f"a request names a model by {digest[:80]!r}, which is no SHA-256")

    @classmethod
    def from_proto(
        cls,
        weights: pb.WeightSources,
        model: str,
        fingerprint: str,
        select: Callable[[Checkpoint], Sequence[str]],
        quantisation: Callable[[], QuantisedRequest] | None = None,
        admit: Callable[[Checkpoint], None] = lambda _: None,
    ) -> ModelRequest:
        """The request of a role that a draft node has given to this device.

        Raises:
            ProtocolError: when a hash is not valid, or there are too many sources.
        """
        if len(weights.peers) > MAX_SOURCES:
            raise ProtocolError(
                f"a model has {len(weights.peers)} sources; at most {MAX_SOURCES} may be named"
            )
        others = [address for address in weights.peers if address != weights.draft_node]
        return cls(
            model=model,
            name=printable_name(weights.name or model),
            manifest=weights.manifest,
            fingerprint=fingerprint,
            sources=(SourceAddress(weights.draft_node, True), *map(SourceAddress, dict.fromkeys(others))),
            select=select,
            quantised=weights.quantised,
            quantisation=quantisation,
            admit=admit,
        )


@dataclass(frozen=True)
class OpenedModel:
    """A checkpoint whose requested tensors can be read, and the pin that protects them from eviction.

    Attributes:
        quantised_paths: files of quantised weights that replace plain tensors, by the digests of their keys.
    """

    checkpoint: Checkpoint
    pin: Pin | None = None
    quantised_paths: Mapping[str, Path] = field(default_factory=dict)

    def release(self) -> None:
        """Release the pin."""
        if self.pin is not None:
            self.pin.release()
