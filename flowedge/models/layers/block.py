"""A run of a model's layers, as one device holds it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from flowedge.core.errors import BadRequestError
from flowedge.device.kernel_library import is_switched_off, missing_reason
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.copies import to_device
from flowedge.models.exact.attention_test import AttentionSizes
from flowedge.models.exact.row_counts import ANY_COUNT, RowCounts, pad_rows
from flowedge.models.files.config_support import layer_windows
from flowedge.models.kv.store import KvFormat, check_kv
from flowedge.models.layers.cache import SessionCache
from flowedge.models.layers.decoding import StaticDecoding
from flowedge.models.layers.exactness import Exactness, try_exactness
from flowedge.models.layers.forward_checks import check_indices, check_inputs
from flowedge.models.layers.head import embed, load_embedding
from flowedge.models.layers.joined_cache import prepared_cache
from flowedge.models.layers.loading import LayerLoader, checkpoint_quant, layer_bytes, load_norm
from flowedge.models.layers.rotary import Rotary
from flowedge.models.layers.session_rows import SessionRows, batches, joined_inputs
from flowedge.models.lean.lean_layer import LeanLayer, warn_of_odd_layers
from flowedge.models.native.native_block import MOST_ROWS, NativeBlock
from flowedge.models.native.native_layer import NotNativeError
from flowedge.models.quant.quant_cache import QuantCache
from flowedge.models.quant.quantize import check_available, module_bytes
from flowedge.text.json_object import reading

_log = logging.getLogger(__name__)

# The kernels compute any number of rows; a forward of more rows takes too much memory at once.
NATIVE_EXACTNESS = Exactness(RowCounts(tuple(range(1, MOST_ROWS + 1))), AttentionSizes(1, None))


@dataclass(eq=False, repr=False)
class LayerBlock:
    """Layers [start, stop) of a model. The first block has the embedding, the last block the final norm.

    Attributes:
        windows: the number of positions that a row of each layer sees; None for all positions.
        embedding: the token embedding, whose result is multiplied by `embedding_multiplier`.
        dtype: the dtype of hidden rows.
        kv: the format of the sessions' KV caches.
        exactness: the sizes with which a row's bits depend on its own path alone; None when they depend on
            the rows beside it and on the layout of the cache as well.
        inexact_reason: why the block is not exact although that was asked for; empty otherwise.
        decoding: computes small forwards over static tensors; None where every forward is computed layer by
            layer.
        native: computes the layers by the compiled kernels; None where torch computes them.
        not_native_reason: why torch computes them; empty for a GPU.
    """

    config: Any
    start: int
    stop: int
    _: KW_ONLY
    layers: list[nn.Module]
    windows: list[int | None]
    rotary: Rotary
    embedding: nn.Embedding | None
    embedding_multiplier: float
    norm: nn.Module | None
    dtype: torch.dtype
    device: torch.device
    kv: KvFormat = "native"
    exactness: Exactness | None = None
    inexact_reason: str = ""
    decoding: StaticDecoding | None = None
    native: NativeBlock | None = None
    not_native_reason: str = ""

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
        exact: bool = False,
        kv: KvFormat = "native",
    ) -> LayerBlock:
        """Read the block's tensors from the checkpoint, a few rows at a time, and no other tensor.

        Args:
            quant: the quantisation of linear layers; "none" loads a quantised checkpoint as it is.
            dtype: the dtype of all other weights.
            quant_cache: the cache that quantised weights are taken from and put into.
            exact: make a row's bits depend on its own tokens and positions alone, whatever other rows are
                computed or cached. Where the device cannot, `inexact_reason` of the block says why.
            kv: the format of KV caches; "int8" needs an exact block.

        Raises:
            BadRequestError: when the range, the quantisation or the KV format does not exist, or cannot run
                on the device.
            CheckpointError: when a tensor is missing or does not fit the config.
        """
        device, quant, config = torch.device(device), checkpoint_quant(checkpoint, quant), checkpoint.config
        check_available(quant, device)
        _check_range(start, stop, config.num_hidden_layers)
        check_kv(config, dtype, kv, exact)
        loader = LayerLoader(checkpoint, quant, dtype, device, quant_cache)
        with reading(checkpoint.place, "the rotary positions of config.json cannot be computed"):
            rotary = Rotary(checkpoint.family, config, range(start, stop), device)
        block = cls(
            config,
            start,
            stop,
            layers=loader.load_all(start, stop),
            windows=layer_windows(checkpoint.family, config)[start:stop],
            rotary=rotary,
            embedding=load_embedding(checkpoint, dtype=dtype, device=device) if start == 0 else None,
            embedding_multiplier=checkpoint.family.embedding_multiplier(config, dtype),
            norm=load_norm(checkpoint, dtype, device) if stop == config.num_hidden_layers else None,
            dtype=dtype,
            device=device,
            kv=kv,
        )
        warn_of_odd_layers(block.layers, start, config)
        block.prepare(exact)
        return block

    def prepare(self, exact: bool) -> None:
        """Choose how the layers are computed; `exact` and what is raised as in `load`."""
        if self.device.type == "cpu":
            self._use_kernels()
        if exact and self.native is not None:
            self.exactness = NATIVE_EXACTNESS
        elif exact:
            self._try_exactness()

    def _use_kernels(self) -> None:
        self.not_native_reason = missing_reason()
        if not self.not_native_reason:
            try:
                self.native = NativeBlock(self.layers, self.windows, self.rotary, self.dtype, self.norm)
            except NotNativeError as error:
                self.not_native_reason = str(error)
        if self.native is None and all(isinstance(layer, LeanLayer) for layer in self.layers):
            _log.log(
                logging.INFO if is_switched_off() else logging.WARNING,
                "layers %d to %d are computed by torch, which is slower than FlowEdge's kernels: %s",
                self.start,
                self.stop - 1,
                self.not_native_reason,
            )

    def _try_exactness(self) -> None:
        trial = try_exactness(self.layers, self.config, self.rotary, self.dtype, self.device)
        self.exactness, self.inexact_reason = trial.exactness, trial.reason
        if self.kv != "native" and self.exactness is None:
            raise BadRequestError(
                f"a KV cache in {self.kv} needs exact attention, which this device cannot compute "
                f"({trial.reason}); leave out the KV cache format"
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
        """The bytes of weights that `load` with the same arguments takes; no tensor is read.

        Raises:
            BadRequestError: when the range does not exist.
        """
        config = checkpoint.config
        _check_range(start, stop, config.num_hidden_layers)
        total = sum(layer_bytes(checkpoint, index, [quant], dtype)[quant] for index in range(start, stop))
        if start == 0:
            total += config.vocab_size * config.hidden_size * dtype.itemsize
        if stop == config.num_hidden_layers:
            total += config.hidden_size * dtype.itemsize
        return int(total)

    @property
    def is_first(self) -> bool:
        """Whether the block's inputs are token ids."""
        return self.embedding is not None

    @property
    def is_last(self) -> bool:
        """Whether the block's outputs are final hidden states, after the final norm."""
        return self.norm is not None

    @property
    def num_layers(self) -> int:
        return self.stop - self.start

    @property
    def hidden_size(self) -> int:
        return int(self.config.hidden_size)

    @property
    def vocab_size(self) -> int:
        return int(self.config.vocab_size)

    @property
    def embedding_weight(self) -> nn.Parameter | None:
        """The embedding [vocab, hidden] of the first block; None in other blocks."""
        return None if self.embedding is None else cast(nn.Parameter, self.embedding.weight)

    @property
    def weight_bytes(self) -> int:
        modules = [*self.layers, *filter(None, (self.embedding, self.norm))]
        return sum(module_bytes(module) for module in modules)

    def new_cache(self, capacity_rows: int) -> SessionCache:
        """A cache of one session, with `capacity_rows` rows in each of the block's layers."""
        cache = SessionCache(
            self.config,
            self.num_layers,
            capacity_rows,
            self.dtype,
            self.device,
            windows=self.windows,
            ordered=None if self.exactness is None else self.exactness.attention,
            kv=self.kv,
            store=None if self.decoding is None else self.decoding.store_for(capacity_rows),
        )
        if self.decoding is not None:
            self.decoding.reclaim(cache)
        return cache

    @property
    def cache_row_bytes(self) -> int:
        """Most bytes that a row of a session's capacity takes."""
        if self.decoding is not None:
            return self.decoding.cache_row_bytes
        return SessionCache.bytes_per_row(self.config, self.num_layers, self.dtype, self.kv)

    @property
    def decoding_bytes(self) -> int:
        """The bytes of static tensors, and of caches that wait for the next session."""
        return 0 if self.decoding is None else self.decoding.nbytes

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
        """Compute n rows, store their keys and values in slots [cached, cached + n), and return the rows.

        Args:
            inputs, positions, cache, cached, context, tail_parents: as in SessionRows.
            should_abort: called before each layer, or before each few layers of a small forward; True ends
                the forward.
            taps: layers of the block, ascending, whose inputs are appended to the rows of the result.

        Returns:
            Hidden rows [n, hidden * (1 + taps)], or None after an abort, when the slots from `cached` on
            have no valid content.

        Raises:
            ProtocolError: when the arguments contradict their description or each other.
            CapacityError: when the rows do not fit the cache.
        """
        part = SessionRows(inputs, positions, cache, cached, context, tail_parents)
        return self._forward_alone(part, should_abort, taps)

    @torch.inference_mode()
    def forward_together(
        self, parts: Sequence[SessionRows], should_abort: Callable[[], bool], taps: Sequence[int] = ()
    ) -> list[torch.Tensor] | None:
        """Compute the rows of several sessions: products over all rows, attention over each one's own cache.

        Two parts or more are computed layer by layer, where one part may be a static forward.

        Args:
            should_abort, taps: as of `forward`.

        Returns:
            Hidden rows [n, hidden * (1 + taps)] for each part, or None after an abort, when the slots of all
            parts from `cached` on have no valid content.

        Raises:
            ProtocolError: as of `forward`, before the rows of any part are stored.
            CapacityError: likewise.
        """
        if len(parts) == 1:
            found = self._forward_alone(parts[0], should_abort, taps)
            return None if found is None else [found]
        for part in parts:
            self._check(part)
            part.check_paths(placed=self.native is not None)
        return self._forward_batches(parts, should_abort, taps) if parts else []

    def _check(self, part: SessionRows) -> None:
        vocab_size = None if self.embedding is None else self.vocab_size
        check_inputs(part.inputs, vocab_size, self.hidden_size, self.dtype)
        check_indices(part.positions, part.tail_parents, part.cached, part.context, part.count)
        part.cache.check_room(part.cached, part.count)

    def _forward_alone(
        self, part: SessionRows, should_abort: Callable[[], bool], taps: Sequence[int]
    ) -> torch.Tensor | None:
        self._check(part)
        if self.decoding is not None:
            computed = self.decoding.forward(part, should_abort, taps)
            if computed is not None:
                return computed.rows
        if part.count <= self._row_counts.most:
            return self._forward_batch([part], should_abort, taps)
        found = self._forward_batches([part], should_abort, taps)
        return None if found is None else found[0]

    @property
    def exact(self) -> bool:
        """Whether a row's bits depend on its own tokens and positions alone."""
        return self.exactness is not None

    @property
    def _row_counts(self) -> RowCounts:
        if self.native is not None:
            return NATIVE_EXACTNESS.row_counts
        return ANY_COUNT if self.exactness is None else self.exactness.row_counts

    def _forward_batches(
        self, parts: Sequence[SessionRows], should_abort: Callable[[], bool], taps: Sequence[int]
    ) -> list[torch.Tensor] | None:
        """Compute `forward_together` for checked parts."""
        outputs: list[list[torch.Tensor]] = [[] for _ in parts]
        for batch in batches(parts, self._row_counts):
            rows = [piece.rows for piece in batch]
            output = self._forward_batch(rows, should_abort, taps)
            if output is None:
                return None
            own = output.split_with_sizes([each.count for each in rows]) if len(rows) > 1 else (output,)
            for piece, computed in zip(batch, own, strict=True):
                outputs[piece.part].append(computed)
        return [own[0] if len(own) == 1 else torch.cat(own) for own in outputs]

    def _forward_batch(
        self, parts: Sequence[SessionRows], should_abort: Callable[[], bool], taps: Sequence[int]
    ) -> torch.Tensor | None:
        """Compute rows that fit in a product, with padding up to an allowed number of rows."""
        inputs = joined_inputs(parts, self.device)
        if self.native is not None:
            sessions = [self.native.cached_rows(part.paths, part.cached, part.cache.store) for part in parts]
            hidden = inputs.clone() if self.embedding is None and len(parts) == 1 else self._embed(inputs)
            return self.native.forward(hidden, sessions, should_abort, [tap - self.start for tap in taps])
        rows = len(inputs)
        padded = self._row_counts.padded(rows)
        cache, masks = prepared_cache(parts, padded)
        hidden = self._embed(pad_rows(inputs, padded))[None]
        positions = np.pad(np.concatenate([part.positions for part in parts]), (0, padded - rows), "edge")
        position_ids = to_device(self.device, positions)[0][None]
        rotations = self.rotary(hidden, position_ids, positions)
        tapped: list[torch.Tensor] = []
        for index, layer, mask, rotation in zip(
            range(self.start, self.stop), self.layers, masks, rotations, strict=True
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
        if self.norm is not None:
            hidden = self.norm(hidden)
        return (torch.cat((hidden, *tapped), dim=-1) if tapped else hidden)[0, :rows]

    def _embed(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.embedding is None:
            return inputs
        return embed(self.embedding, self.embedding_multiplier, inputs)


def _check_range(start: int, stop: int, num_layers: int) -> None:
    if not 0 <= start < stop <= num_layers:
        raise BadRequestError(f"layers [{start}, {stop}) are not within [0, {num_layers})")
