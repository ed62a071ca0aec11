"""Reading what a stage holds. torch is imported by the functions, in the compute lane, and not before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from flowedge.agent.config.agent_config import AgentConfig
from flowedge.core.errors import BadRequestError
from flowedge.placement.admission import admit
from flowedge.v1 import agent_pb2 as pb

if TYPE_CHECKING:
    from flowedge.engine.executors import BlockExecutor
    from flowedge.models.checkpoint.checkpoint import Checkpoint
    from flowedge.weights.open.model_request import OpenedModel
    from flowedge.weights.open.quantised import QuantisedRequest


def load_middle(
    device: str, request: pb.StageRole, config: AgentConfig, opened: OpenedModel | None
) -> BlockExecutor:
    """Reads a middle model.

    opened: what was opened for it, where it is not to be found by the model's name. Raises FlowEdgeError.
    """
    import torch  # noqa: PLC0415

    from flowedge.drafting.middles import open_middle  # noqa: PLC0415
    from flowedge.engine.middle_executor import MiddleExecutor  # noqa: PLC0415
    from flowedge.models.layers.tensors import torch_dtype  # noqa: PLC0415
    from flowedge.models.layers.whole_model import MiddleModel  # noqa: PLC0415

    torch.set_num_threads(config.agent.threads)
    checkpoint = opened.checkpoint if opened else open_middle(request.model, hub=config.weights.hub)
    _check_fingerprint(request, checkpoint.fingerprint)
    _admit_middle(device, request, config, checkpoint)
    return MiddleExecutor(MiddleModel.load(checkpoint, request.vocab_size, torch_dtype(request.dtype)))


def select_middle(
    device: str, request: pb.StageRole, config: AgentConfig, checkpoint: Checkpoint
) -> Sequence[str]:
    """The tensors it reads; CapacityError when they do not fit the memory."""
    from flowedge.weights.open.needed_tensors import whole_tensors  # noqa: PLC0415

    _admit_middle(device, request, config, checkpoint)
    return whole_tensors(checkpoint)


def load_block(
    device: str, request: pb.StageRole, config: AgentConfig, opened: OpenedModel | None
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

    torch.set_num_threads(config.agent.threads)
    checkpoint = opened.checkpoint if opened else Checkpoint.open(request.model, hub=config.weights.hub)
    _check_fingerprint(request, checkpoint.fingerprint)
    taps = check_taps(request.taps, checkpoint.config.num_hidden_layers)
    _admit_block(device, request, config, checkpoint)
    given = opened.quantised_paths if opened else {}
    cache = QuantCache.configured(config.cache.dir, config.cache.gib, given)
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
    device: str, request: pb.StageRole, config: AgentConfig, checkpoint: Checkpoint
) -> Sequence[str]:
    """The tensors it reads; CapacityError when they do not fit the memory."""
    from flowedge.weights.open.needed_tensors import block_tensors  # noqa: PLC0415

    _admit_block(device, request, config, checkpoint)
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


def _admit_middle(device: str, request: pb.StageRole, config: AgentConfig, checkpoint: Checkpoint) -> None:
    from flowedge.models.checkpoint.config_support import max_positions  # noqa: PLC0415
    from flowedge.models.layers.cache import SessionCache  # noqa: PLC0415
    from flowedge.models.layers.tensors import torch_dtype  # noqa: PLC0415
    from flowedge.models.layers.whole_model import MiddleModel  # noqa: PLC0415

    model, dtype = checkpoint.config, torch_dtype(request.dtype)
    admit(
        f"middle model {request.model}",
        device,
        weights=MiddleModel.required_bytes(checkpoint, dtype),
        row_bytes=SessionCache.bytes_per_row(model, model.num_hidden_layers, dtype),
        max_rows=max_positions(model),
        settings=config.memory,
    )


def _admit_block(device: str, request: pb.StageRole, config: AgentConfig, checkpoint: Checkpoint) -> None:
    from flowedge.models.checkpoint.config_support import max_positions  # noqa: PLC0415
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
        settings=config.memory,
    )
