"""The models that are cached on this device and on others, and fetching them, for `flowedge models`."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flowedge.core.errors import BadRequestError, FlowEdgeError
from flowedge.device.disk_cache.digest import is_digest
from flowedge.v1 import weights_pb2 as pb
from flowedge.weights.fetch.fetcher import Fetcher
from flowedge.weights.fetch.progress import FetchProgress, OnTransfer
from flowedge.weights.fetch.source import SourceAddress
from flowedge.weights.fetch.weights_client import WeightsClient, fetch_document
from flowedge.weights.known_models import HASH_PREFIX, MIN_DIGITS, printable_name
from flowedge.weights.local_weights import LocalWeights
from flowedge.weights.manifest import parse_manifest
from flowedge.weights.service import catalogue
from flowedge.weights.settings import WeightsSettings

THIS_DEVICE = "this device"

_AT_ONCE = 32  # agents that are asked at the same time


@dataclass(frozen=True)
class HeldModel:
    """A model on a device. The names of the fields are keys of `flowedge models --json`.

    Attributes:
        device: its name, or "this device"; its address where its name is not known.
        here_bytes: bytes of the model that are on the device.
    """

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
            name=printable_name(model.name),
            quant=printable_name(model.quant),
            device=device,
            here_bytes=model.here_bytes,
            total_bytes=model.total_bytes,
            in_directory=model.in_directory,
        )


def local_models(local_weights: LocalWeights) -> list[HeldModel]:
    return [HeldModel.from_proto(THIS_DEVICE, model) for model in catalogue(local_weights).models]


async def ask_all(
    addresses: Sequence[str], names: Mapping[str, str] | None = None
) -> tuple[list[HeldModel], list[str]]:
    """Ask agents which models they have; return the models, and an error for each agent that failed.

    names: of agents, by address, as far as they are known.
    """
    called = names or {}
    settings = WeightsSettings()
    slots = asyncio.Semaphore(_AT_ONCE)

    async def ask(address: str) -> list[HeldModel] | str:
        try:
            async with slots, WeightsClient(address, settings) as client:
                models = (await client.catalogue()).models
                return [HeldModel.from_proto(called.get(address, address), model) for model in models]
        except FlowEdgeError as error:
            return str(error)

    answers = await asyncio.gather(*map(ask, addresses))
    held = [model for answer in answers if isinstance(answer, list) for model in answer]
    return held, [answer for answer in answers if isinstance(answer, str)]


def remove_model(local_weights: LocalWeights, model: str) -> int:
    """Delete a model from the cache; return how many bytes that freed.

    Objects that are in use, or belong to another model too, stay.

    Raises:
        BadRequestError: when the cache has no such model.
    """
    known_models = local_weights.known_models
    model_id = known_models.resolve(model)
    manifests = {known.manifest.id: known.manifest for known in known_models.models()}
    removed = manifests.pop(model_id, None)
    known_models.forget(model_id)
    still_needed = {digest for manifest in manifests.values() for digest in manifest.sizes}
    return local_weights.store.remove({model_id, *(removed.sizes if removed else ())} - still_needed)


def verify_models(local_weights: LocalWeights, model: str | None) -> tuple[int, int]:
    """Verify the cached objects of a model, or all if it is None; return how many are intact and damaged.

    Damaged objects are deleted.

    Raises:
        BadRequestError: when the cache has no such model.
    """
    store = local_weights.store
    digests = set(store)
    if model is not None:
        model_id = local_weights.known_models.resolve(model)
        manifest = local_weights.known_models.manifest(model_id)
        digests &= {model_id, *(manifest.sizes if manifest else ())}
    intact = sum(store.verify(digest) for digest in digests)
    return intact, len(digests) - intact


async def pull_model(
    local_weights: LocalWeights, model: str, addresses: Sequence[str], on_transfer: OnTransfer
) -> str:
    """Fetch a model, named by its hash, from agents; return its id.

    Raises:
        BadRequestError: when the hash matches no or several models of the agents.
        DeviceLostError: when the agents do not send all of it.
        CapacityError: when it does not fit the cache.
    """
    settings, device = WeightsSettings(), platform.node() or "device"
    digits = model.removeprefix(HASH_PREFIX).lower()
    held, problems = await ask_all(addresses)
    found = {known.id: known.name for known in held if known.id.startswith(digits)}
    if is_digest(digits):
        found.setdefault(digits, digits[:12])
    if len(digits) < MIN_DIGITS or len(found) != 1:
        raise BadRequestError(
            f"{model} matches {len(found)} of the models that {len(addresses)} agents have; give "
            f"{MIN_DIGITS} or more digits that match exactly one"
            + (f" ({'; '.join(problems)})" if problems else "")
        )
    [(model_id, name)] = found.items()
    sources = [SourceAddress(address) for address in addresses]
    manifest = await fetch_document(device, model_id, parse_manifest, sources, settings)
    store = local_weights.store

    async def on_progress(progress: FetchProgress) -> None:
        on_transfer(printable_name(name), progress)

    with local_weights.adding(manifest, name):
        for digest in manifest.sizes:
            if store.size(digest) is not None:
                store.verify(digest)
        await Fetcher(device, local_weights, manifest.sizes, sources, settings, on_progress).run()
    return model_id
