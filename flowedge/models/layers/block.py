"""A run of a model's layers, as one device holds it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from flowedge.core.errors import BadRequestError, ProtocolError
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.families import FINAL_NORM
from flowedge.models.checkpoint.features import layer_windows
from flowedge.models.layers.cache import SessionCache
from flowedge.models.layers.head import load_embedding
from flowedge.models.layers.loading import checkpoint_quant, layer_bytes, load_layer, load_parameter
from flowedge.models.layers.rotary import Rotary
from flowedge.models.quant.quant_cache import QuantCache
from flowedge.models.quant.quantize import check_available, module_bytes


class LayerBlock:
    """Layers [start, stop) of a model; the first block has the embedding, the last the final norm."""

    def __init__(
        self,
        config: Any,
        start: int,
        stop: int,
        *,
        layers: list[nn.Module],
        windows: list[int | None],
        rotary: Rotary,
        embedding: nn.Embedding | None,
        embedding_multiplier: float,
        norm: nn.Module | None,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.config = config
        self.start = start
        self.stop = stop
        self.dtype = dtype
        self.device = device
        self._layers = layers
        self._windows = windows
        self._rotary = rotary
        self._embedding = embedding
        self._embedding_multiplier = embedding_multiplier
        self._norm = norm

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        start: int,
        stop: int,
        *,
        quant: str = "none",
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        quant_cache: QuantCache | None = None,
    ) -> LayerBlock:
        """Reads the block's own tensors, no other, a few rows at a time.

        quant: "none" for a checkpoint that is quantised already, and is then loaded as it is.
        BadRequestError for a range or a quantisation that does not exist or cannot be run on the device,
        CheckpointError for the tensors.
        """
        check_available(checkpoint_quant(checkpoint, quant), torch.device(device))
        config = checkpoint.config
        _check_range(start, stop, config.num_hidden_layers)
        device = torch.device(device)
        layers = [
            load_layer(
                checkpoint,
                index,
                index - start,
                quant=quant,
                dtype=dtype,
                device=device,
                quant_cache=quant_cache,
            )
            for index in range(start, stop)
        ]
        return cls(
            config,
            start,
            stop,
            layers=layers,
            windows=layer_windows(checkpoint.family, config)[start:stop],
            rotary=Rotary(checkpoint.family, config, range(start, stop), device),
            embedding=load_embedding(checkpoint, dtype=dtype, device=device) if start == 0 else None,
            embedding_multiplier=checkpoint.family.embedding_multiplier(config, dtype),
            norm=_load_norm(checkpoint, dtype, device) if stop == config.num_hidden_layers else None,
            dtype=dtype,
            device=device,
        )

    @staticmethod
    def required_bytes(
        checkpoint: Checkpoint,
        start: int,
        stop: int,
        *,
        quant: str = "none",
        dtype: torch.dtype = torch.float32,
    ) -> int:
        """The bytes of weights that `load` with the same arguments would hold; no tensor is read.

        BadRequestError for a range that does not exist.
        """
        config = checkpoint.config
        _check_range(start, stop, config.num_hidden_layers)
        total = sum(layer_bytes(checkpoint, index, quant, dtype) for index in range(start, stop))
        if start == 0:
            total += config.vocab_size * config.hidden_size * dtype.itemsize
        if stop == config.num_hidden_layers:
            total += config.hidden_size * dtype.itemsize
        return int(total)

    @property
    def is_first(self) -> bool:
        """Whether its inputs are token ids."""
        return self._embedding is not None

    @property
    def is_last(self) -> bool:
        """Whether its outputs are final hidden states, after the final norm."""
        return self._norm is not None

    @property
    def num_layers(self) -> int:
        """The number of layers it holds."""
        return self.stop - self.start

    @property
    def hidden_size(self) -> int:
        """The width of a hidden row."""
        return int(self.config.hidden_size)

    @property
    def vocab_size(self) -> int:
        """The number of token ids."""
        return int(self.config.vocab_size)

    @property
    def embedding_weight(self) -> nn.Parameter | None:
        """The first block's embedding [vocab, hidden]; None for the others."""
        return None if self._embedding is None else cast(nn.Parameter, self._embedding.weight)

    @property
    def weight_bytes(self) -> int:
        """The bytes of weights it holds in memory."""
        modules = [*self._layers, *filter(None, (self._embedding, self._norm))]
        return sum(module_bytes(module) for module in modules)

    def new_cache(self, capacity_rows: int) -> SessionCache:
        """A cache of one session: `capacity_rows` rows in each of the block's layers."""
        return SessionCache(
            self.config, self.num_layers, capacity_rows, self.dtype, self.device, windows=self._windows
        )

    @torch.inference_mode()
    def forward(
        self,
        inputs: torch.Tensor,
        positions: npt.NDArray[np.int64],
        cache: SessionCache,
        cached: int,
        context: int,
        tail_parents: npt.NDArray[np.int64],
        should_abort: Callable[[], bool],
        taps: Sequence[int] = (),
    ) -> torch.Tensor | None:
        """Computes n rows into slots [cached, cached + n) and returns their hidden states [n, hidden].

        inputs: token ids, int64 [n], for the first block; hidden rows [n, hidden] of the block's dtype for
        the others.
        positions: int64 [n], absolute; context plus the row's depth, so never more than the row's slot.
        context: slots below it are committed and visible to every row.
        tail_parents: int64 [cached + n - context], the parent slot of each tail row, -1 when it is the
        context's end; a tail row sees the context, its ancestors and itself. A run of committed rows is a
        chain.
        should_abort: asked before each layer; when it says yes the result is None, and slots from `cached`
        up hold nothing of use.
        taps: layers of the block, ascending, whose inputs follow the hidden state in each row of the result,
        [n, hidden * (1 + taps)].

        Raises ProtocolError for inputs that contradict the above or each other, CapacityError for rows
        beyond the cache.
        """
        self._check_inputs(inputs)
        rows = len(inputs)
        _check_indices(positions, tail_parents, cached=cached, context=context, rows=rows)
        cache.begin(cached, rows)
        masks = cache.write_masks(context, tail_parents, positions)
        hidden = self._embed(inputs.to(self.device))[None]
        position_ids = torch.from_numpy(positions).to(self.device)[None]
        rotations = self._rotary(hidden, position_ids)
        tapped: list[torch.Tensor] = []
        for index, layer, mask, rotation in zip(
            range(self.start, self.stop), self._layers, masks, rotations, strict=True
        ):
            if should_abort():
                return None
            if index in taps:
                tapped.append(hidden)
            hidden = layer(
                hidden,
                attention_mask=mask,
                position_ids=position_ids,
                past_key_values=cache,
                position_embeddings=rotation,
            )
        if self._norm is not None:
            hidden = self._norm(hidden)
        return torch.cat((hidden, *tapped), dim=-1)[0] if tapped else hidden[0]

    def _embed(self, inputs: torch.Tensor) -> torch.Tensor:
        if self._embedding is None:
            return inputs
        embedded: torch.Tensor = self._embedding(inputs)
        return embedded if self._embedding_multiplier == 1 else embedded * self._embedding_multiplier

    def _check_inputs(self, inputs: torch.Tensor) -> None:
        if self._embedding is None:
            if inputs.ndim != 2 or inputs.shape[1] != self.hidden_size or inputs.dtype != self.dtype:
                raise ProtocolError(
                    f"expected hidden rows [n, {self.hidden_size}] of {self.dtype}, "
                    f"got {list(inputs.shape)} of {inputs.dtype}"
                )
        elif inputs.ndim != 1 or inputs.dtype != torch.int64:
            raise ProtocolError(f"expected int64 token ids [n], got {list(inputs.shape)} of {inputs.dtype}")
        if not len(inputs):
            raise ProtocolError("a segment without rows cannot be computed")
        if self._embedding is not None and not 0 <= int(inputs.min()) <= int(inputs.max()) < self.vocab_size:
            raise ProtocolError(f"a token id is not within [0, {self.vocab_size})")


def _check_indices(
    positions: npt.NDArray[np.int64],
    tail_parents: npt.NDArray[np.int64],
    *,
    cached: int,
    context: int,
    rows: int,
) -> None:
    if not 0 <= context <= cached:
        raise ProtocolError(f"context {context} is not within the {cached} cached rows")
    if positions.shape != (rows,) or positions.dtype != np.int64:
        raise ProtocolError(
            f"expected {rows} int64 positions, got {list(positions.shape)} of {positions.dtype}"
        )
    if tail_parents.shape != (cached + rows - context,) or tail_parents.dtype != np.int64:
        raise ProtocolError(
            f"expected {cached + rows - context} int64 tail parents, "
            f"got {list(tail_parents.shape)} of {tail_parents.dtype}"
        )
    if (positions < context).any() or (positions > np.arange(cached, cached + rows)).any():
        raise ProtocolError(f"a position is not within [{context}, the row's slot]")


def _check_range(start: int, stop: int, num_layers: int) -> None:
    if not 0 <= start < stop <= num_layers:
        raise BadRequestError(f"layers [{start}, {stop}) are not within [0, {num_layers})")


def _load_norm(checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> nn.Module:
    config = checkpoint.config
    with torch.device("meta"):
        norm: nn.Module = checkpoint.family.norm(config.hidden_size, eps=config.rms_norm_eps)
    norm.weight = load_parameter(checkpoint, FINAL_NORM, (config.hidden_size,), dtype, device)
    return norm.eval()
