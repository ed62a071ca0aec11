"""Reading what a stage holds. torch is imported by the functions, in the compute lane, and not before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flowedge.agent.settings import AgentSettings
from flowedge.core.errors import BadRequestError
from flowedge.placement.admission import admit
from flowedge.v1 import agent_pb2 as pb

if TYPE_CHECKING:
    from flowedge.engine.executors import BlockExecutor
    from flowedge.models.checkpoint.checkpoint import Checkpoint
    from flowedge.weights.open.model_request import OpenedModel
    from flowedge.weights.open.quantised import QuantisedRequest


def load_middle(
    device: str, request: pb.StageRole, settings: AgentSettings, opened: OpenedModel | None
) -> BlockExecutor:
    """Reads a middle model.

    opened: what was opened for it, where it is not to be found by the model's name. Raises FlowEdgeError.
    """
    import torch  # noqa: PLC0415

    from flowedge.drafting.middles import open_middle  # noqa: PLC0415
    from flowedge.engine.executors import BlockExecutor  # noqa: PLC0415
    from flowedge.models.layers.language_model import LanguageModel  # noqa: PLC0415
    from flowedge.models.layers.tensors import torch_dtype  # noqa: PLC0415

    torch.set_num_threads(settings.threads)
    checkpoint = opened.checkpoint if opened else open_middle(request.model, hub=settings.weights.hub)
    _check_fingerprint(request, checkpoint.fingerprint)
    _admit_middle(device, request, settings, checkpoint)
    model = LanguageModel.load(checkpoint, request.vocab_size, torch_dtype(request.dtype))
    return BlockExecutor(model.block, model=model)


def select_middle(
    device: str, request: pb.StageRole, settings: AgentSettings, checkpoint: Checkpoint
) -> Sequence[str]:
    """The tensors it reads; CapacityError when they do not fit the memory."""
    from flowedge.weights.manifest.needed import whole_tensors  # noqa: PLC0415

    _admit_middle(device, request, settings, checkpoint)
    return whole_tensors(checkpoint)


def load_block(
    device: str, request: pb.StageRole, settings: AgentSettings, opened: OpenedModel | None
) -> BlockExecutor:
    """Reads a block of layers.

    opened: what was opened for it, where it is not to be found by the model's name. Raises FlowEdgeError.
    """
    from flowedge.models.libraries import import_libraries  # noqa: PLC0415

    import_libraries()
    import torch  # noqa: PLC0415

    from flowedge.engine.executors import BlockExecutor  # noqa: PLC0415
    from flowedge.models.checkpoint.checkpoint import Checkpoint  # noqa: PLC0415
    from flowedge.models.layers.block import LayerBlock  # noqa: PLC0415
    from flowedge.models.layers.taps import check_taps  # noqa: PLC0415
    from flowedge.models.layers.tensors import torch_dtype  # noqa: PLC0415
    from flowedge.models.quant.quant_cache import QuantCache  # noqa: PLC0415

    torch.set_num_threads(settings.threads)
    checkpoint = opened.checkpoint if opened else Checkpoint.open(request.model, hub=settings.weights.hub)
    _check_fingerprint(request, checkpoint.fingerprint)
    taps = check_taps(request.taps, checkpoint.config.num_hidden_layers)
    _admit_block(device, request, settings, checkpoint)
    given = opened.given if opened else {}
    cache = QuantCache.configured(settings.cache_dir, settings.cache_gib, given)
    block = LayerBlock.load(
        checkpoint,
        request.layer_start,
        request.layer_stop,
        quant=request.quant or "none",
        dtype=torch_dtype(request.dtype),
        quant_cache=cache,
    )
    return BlockExecutor(block, taps)


def select_block(
    device: str, request: pb.StageRole, settings: AgentSettings, checkpoint: Checkpoint
) -> Sequence[str]:
    """The tensors it reads; CapacityError when they do not fit the memory."""
    from flowedge.weights.manifest.needed import block_tensors  # noqa: PLC0415

    _admit_block(device, request, settings, checkpoint)
    return block_tensors(checkpoint, request.layer_start, request.layer_stop)


def asked_of(request: pb.StageRole) -> QuantisedRequest:
    """The quantisation that a block is asked for in."""
    from flowedge.models.layers.tensors import torch_dtype  # noqa: PLC0415
    from flowedge.models.quant.quantize import check_quant  # noqa: PLC0415
    from flowedge.weights.open.quantised import QuantisedRequest  # noqa: PLC0415

    quant = check_quant(request.quant or "none")
    return QuantisedRequest(quant, torch_dtype(request.dtype), request.layer_start, request.layer_stop)


def _check_fingerprint(request: pb.StageRole, fingerprint: str) -> None:
    if request.fingerprint and fingerprint != request.fingerprint:
        raise BadRequestError(f"{request.model} is another model here than on the draft node")


def _admit_middle(
    device: str, request: pb.StageRole, settings: AgentSettings, checkpoint: Checkpoint
) -> None:
    from flowedge.models.checkpoint.features import max_positions  # noqa: PLC0415
    from flowedge.models.layers.cache import SessionCache  # noqa: PLC0415
    from flowedge.models.layers.language_model import LanguageModel  # noqa: PLC0415
    from flowedge.models.layers.tensors import torch_dtype  # noqa: PLC0415

    config, dtype = checkpoint.config, torch_dtype(request.dtype)
    admit(
        f"middle model {request.model}",
        device,
        weights=LanguageModel.required_bytes(checkpoint, dtype),
        row_bytes=SessionCache.bytes_per_row(config, config.num_hidden_layers, dtype),
        max_rows=max_positions(config),
        settings=settings.memory,
    )


def _admit_block(device: str, request: pb.StageRole, settings: AgentSettings, checkpoint: Checkpoint) -> None:
    from flowedge.models.checkpoint.features import max_positions  # noqa: PLC0415
    from flowedge.models.layers.block import LayerBlock  # noqa: PLC0415
    from flowedge.models.layers.cache import SessionCache  # noqa: PLC0415
    from flowedge.models.layers.tensors import torch_dtype  # noqa: PLC0415

    dtype, quant = torch_dtype(request.dtype), request.quant or "none"
    start, stop = request.layer_start, request.layer_stop
    admit(
        f"a block of layers {start} to {stop - 1} of {request.model} ({quant})",
        device,
        weights=LayerBlock.required_bytes(checkpoint, start, stop, quant=quant, dtype=dtype),
        row_bytes=SessionCache.bytes_per_row(checkpoint.config, stop - start, dtype),
        max_rows=max_positions(checkpoint.config),
        settings=settings.memory,
    )
