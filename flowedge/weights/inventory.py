"""What models are cached where, for people; dropping and checking those of this device."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from flowedge.core.errors import FlowEdgeError
from flowedge.v1 import weights_pb2 as pb
from flowedge.weights.fetch.peer import Peer
from flowedge.weights.known_models import shown
from flowedge.weights.library import Library
from flowedge.weights.manifest.reference import resolve
from flowedge.weights.service import catalogue
from flowedge.weights.settings import WeightsSettings

HERE = "this device"


@dataclass(frozen=True)
class HeldModel:
    """A model on a device; `device` is an address, or "this device"."""

    id: str
    name: str
    quant: str
    device: str
    here_bytes: int
    total_bytes: int
    in_directory: bool

    @classmethod
    def from_proto(cls, device: str, model: pb.KnownModel) -> HeldModel:
        return cls(
            id=model.id.hex(),
            name=shown(model.name),
            quant=shown(model.quant),
            device=device,
            here_bytes=model.here_bytes,
            total_bytes=model.total_bytes,
            in_directory=model.in_directory,
        )


def own_models(library: Library) -> list[HeldModel]:
    """Those of this device's cache."""
    return [HeldModel.from_proto(HERE, model) for model in catalogue(library).models]


async def ask_all(addresses: Sequence[str]) -> tuple[list[HeldModel], list[str]]:
    """The models of agents, and what is wrong with those that did not answer."""
    settings = WeightsSettings()

    async def ask(address: str) -> list[HeldModel] | str:
        peer = Peer(address, settings)
        try:
            return [HeldModel.from_proto(address, model) for model in (await peer.catalogue()).models]
        except FlowEdgeError as error:
            return str(error)
        finally:
            await peer.close()

    answers = await asyncio.gather(*map(ask, addresses))
    held = [model for answer in answers if isinstance(answer, list) for model in answer]
    return held, [answer for answer in answers if isinstance(answer, str)]


def remove_model(library: Library, model: str) -> int:
    """Drop a model, apart from what others share and what is in use; returns the bytes that were freed.

    BadRequestError for a model that the cache does not know.
    """
    identity = resolve(model, library.shelf)
    known = {found.manifest.id: found.manifest for found in library.shelf.models()}
    gone = known.pop(identity, None)
    library.shelf.forget(identity)
    kept = {digest for manifest in known.values() for digest in manifest.sizes}
    return library.store.remove({identity, *(gone.sizes if gone is not None else ())} - kept)


def verify_models(library: Library, model: str | None) -> tuple[int, int]:
    """How many objects of a model, of all with None, are as their hashes say, and how many are not.

    Those are dropped. BadRequestError for a model that the cache does not know.
    """
    store = library.store
    wanted = set(store)
    if model is not None:
        identity = resolve(model, library.shelf)
        manifest = library.shelf.manifest(identity)
        wanted &= {identity, *(manifest.sizes if manifest is not None else ())}
    good = sum(store.verify(digest) for digest in wanted)
    return good, len(wanted) - good
