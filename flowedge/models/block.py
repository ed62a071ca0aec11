"""A run of a model's layers, as one device holds it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from flowedge.core.errors import BadRequestError
from flowedge.device.kernel_library import is_switched_off, missing_reason
from flowedge.models.architecture import Architecture
from flowedge.models.attention.kv_cache import KVCache
from flowedge.models.attention.kv_store import (
    KvFormat,
    check_kv,
    kv_row_bytes,
    saved_rows,
    session_row_bytes,
)
from flowedge.models.attention.ordered import AttentionSizes
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.decoder_layer import DecoderLayer
from flowedge.models.exact.exactness import Exactness, try_exactness
from flowedge.models.families.parts import KeyHeads
from flowedge.models.host.copies import to_device, to_host
from flowedge.models.host.lazy_zeros import takes_memory_as_written
from flowedge.models.host.shared_pages import most_sharing
from flowedge.models.kernels.block import MOST_ROWS, KernelBlock
from flowedge.models.kernels.layer import NoKernelError
from flowedge.models.lm_head import (
    LayerInputs,
    embed,
    embedding_multiplier,
    layer_input_bytes,
    load_embedding,
)
from flowedge.models.loading import LayerLoader, checkpoint_quant, layer_bytes, load_norm
from flowedge.models.quant.quant_cache import QuantCache
from flowedge.models.quant.quantize import check_available, module_bytes
from flowedge.models.recurrent.recurrent_layer import RecurrentLayer
from flowedge.models.recurrent.row_states import RowStates, session_bytes
from flowedge.models.rotary import Rotary
from flowedge.models.row_columns import BlockColumns, RowColumns, as_columns, divided
from flowedge.models.row_counts import ANY_COUNT, RowCounts, pad_rows
from flowedge.models.row_functions import RmsNorm
from flowedge.models.session_rows import (
    SessionRows,
    SessionsAttention,
    StaticDecoding,
    batches,
    joined_inputs,
)
from flowedge.models.token_table import TokenTable, table_bytes
from flowedge.text.json_object import errors_of_file

_log = logging.getLogger(__name__)

# The kernels compute any number of rows; a forward of more rows takes too much memory at once.
KERNEL_EXACTNESS = Exactness(RowCounts(tuple(range(1, MOST_ROWS + 1))), AttentionSizes(1, None))


@dataclass(eq=False, repr=False)
class LayerBlock:
    """Layers [start, stop) of a model. The first block has the embedding, the last block the final norm.

    Attributes:
        windows: the number of positions that a row of each layer sees; None for all positions, and for a
            recurrent layer.
        embedding: the token embedding, whose result is multiplied by `embedding_multiplier`.
        layer_inputs: what makes the rows that layers are given of tokens, in the first block; None where
            layers are given none.
        dtype: the dtype of hidden rows.
        kv: the format of the sessions' KV caches.
        exactness: the sizes with which a row's bits depend on its own path alone; None when they depend on
            the rows beside it and on the layout of the cache as well.
        inexact_reason: why the block is not exact although that was asked for; empty otherwise.
        decoding: computes small forwards over static tensors; None where every forward is computed layer by
            layer.
        kernels: computes the layers by the compiled kernels; None where torch computes them.
        no_kernels_reason: why torch computes them; empty for a GPU.
    """

    config: Any
    start: int
    stop: int
    _: KW_ONLY
    layers: list[DecoderLayer]
    windows: Sequence[int | None]
    rotary: Rotary
    embedding: nn.Embedding | None
    embedding_multiplier: float
    norm: RmsNorm | None
    dtype: torch.dtype
    device: torch.device
    kv: KvFormat = "native"
    exactness: Exactness | None = None
    inexact_reason: str = ""
    decoding: StaticDecoding | None = None
    kernels: KernelBlock | None = None
    no_kernels_reason: str = ""
    layer_inputs: LayerInputs | None = None

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
        packs_embedding: bool = True,
    ) -> LayerBlock:
        """Read the block's tensors from the checkpoint, a few rows at a time, and no other tensor.

        Args:
            quant: the quantisation of linear layers; "none" loads a quantised checkpoint as it is.
            dtype: the dtype of all other weights.
            quant_cache: the cache that quantised weights are taken from and put into.
            exact: make a row's bits depend on its own tokens and positions alone, whatever other rows are
                computed or cached. Where the device cannot, `inexact_reason` of the block says why.
            kv: the format of KV caches; "int8" needs an exact block.
            packs_embedding: whether the embedding follows the quantisation (see load_table).

        Raises:
            BadRequestError: when the range, the quantisation or the KV format does not exist, or cannot run
                on the device.
            CheckpointError: when a tensor is missing or does not fit the config.
        """
        device, quant, config = torch.device(device), checkpoint_quant(checkpoint, quant), checkpoint.config
        check_available(quant, device)
        _check_range(start, stop, config.num_hidden_layers)
        architecture = checkpoint.architecture
        check_kv(architecture.cached_heads(start, stop), dtype, kv, exact)
        embedding, layer_inputs, form = None, None, quant if packs_embedding else None
        if start == 0:
            embedding = load_embedding(
                checkpoint, dtype=dtype, device=device, quant=form, quant_cache=quant_cache
            )
            if architecture.layer_input:
                layer_inputs = LayerInputs.load(checkpoint, dtype, device, form, quant_cache)
        loader = LayerLoader(checkpoint, quant, dtype, device, quant_cache)
        with errors_of_file(checkpoint.place, "the rotary positions of config.json cannot be computed"):
            rotary = Rotary(config, range(start, stop), device, partial_rotary=architecture.partial_rotary)
        block = cls(
            config,
            start,
            stop,
            layers=loader.load_all(start, stop),
            windows=architecture.windows[start:stop],
            rotary=rotary,
            embedding=embedding,
            embedding_multiplier=embedding_multiplier(architecture, dtype),
            norm=load_norm(checkpoint, dtype, device) if stop == config.num_hidden_layers else None,
            dtype=dtype,
            device=device,
            kv=kv,
            layer_inputs=layer_inputs,
        )
        block.prepare(exact)
        return block

    def prepare(self, exact: bool) -> None:
        """Choose how the layers are computed; `exact` and what is raised as in `load`."""
        if self.device.type == "cpu":
            self._use_kernels()
        if not exact:
            return
        self._find_exactness()
        if self.kv != "native" and self.exactness is None:
            raise BadRequestError(
                f"a KV cache in {self.kv} needs exact attention, which this device cannot compute "
                f"({self.inexact_reason}); leave out the KV cache format"
            )

    def _use_kernels(self) -> None:
        self.no_kernels_reason = missing_reason()
        if not self.no_kernels_reason:
            try:
                self.kernels = KernelBlock(self.layers, self.windows, self.rotary, self.dtype, self.norm)
            except NoKernelError as error:
                self.no_kernels_reason = str(error)
        if self.kernels is None:
            _log.log(
                logging.INFO if is_switched_off() else logging.WARNING,
                "layers %d to %d are computed by torch, which is slower than FlowEdge's kernels: %s",
                self.start,
                self.stop - 1,
                self.no_kernels_reason,
            )

    def _find_exactness(self) -> None:
        if self.kernels is not None:
            self.exactness = KERNEL_EXACTNESS
        elif self.device.type == "cpu":
            self.inexact_reason = f"a CPU computes exact rows by FlowEdge's kernels; {self.no_kernels_reason}"
        else:
            self._test_exactness()

    def _test_exactness(self) -> None:
        others = [] if self.layer_inputs is None else [self.layer_inputs.projection]
        trial = try_exactness(self.layers, self.rotary, self.dtype, self.device, others)
        self.exactness, self.inexact_reason = trial.exactness, trial.reason

    @staticmethod
    def required_bytes(
        checkpoint: Checkpoint,
        start: int,
        stop: int,
        *,
        quant: str = "none",
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        packs_embedding: bool = True,
    ) -> int:
        """The bytes of weights that `load` with the same arguments takes; no tensor is read.

        Raises:
            BadRequestError: when the range does not exist.
        """
        config = checkpoint.config
        _check_range(start, stop, config.num_hidden_layers)
        layers = (layer_bytes(checkpoint, index, [quant], dtype, device) for index in range(start, stop))
        total = sum(sizes[quant] for sizes in layers)
        if start == 0:
            form = checkpoint_quant(checkpoint, quant) if packs_embedding else None
            total += table_bytes(checkpoint, checkpoint.embedding_name, dtype, device, form)
            total += layer_input_bytes(checkpoint, dtype, form)
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
    def architecture(self) -> Architecture:
        return self.layers[0].architecture

    @property
    def hidden_size(self) -> int:
        return int(self.config.hidden_size)

    @property
    def input_width(self) -> int:
        """The width of rows that the block takes, unless it takes token ids (see session_rows)."""
        return self.architecture.row_width(self.start)

    @property
    def output_width(self) -> int:
        """The width of rows that it returns, without what is tapped."""
        return self.architecture.row_width(self.stop)

    @cached_property
    def columns(self) -> BlockColumns:
        """What rows bring beside their hidden state, and what they carry on."""
        return BlockColumns(self.architecture, self.start, self.stop)

    @property
    def cached_layers(self) -> list[int]:
        """The layers of the model whose keys and values a cache of the block has."""
        return self.columns.cached_layers

    @property
    def cached_heads(self) -> list[KeyHeads]:
        """The heads of the keys of each of `cached_layers`."""
        return self.columns.cached_heads

    @property
    def row_bytes(self) -> int:
        """The bytes of the keys and values of a row in all layers of a cache."""
        return kv_row_bytes(self.cached_heads, self.dtype, self.kv)

    @property
    def vocab_size(self) -> int:
        return int(self.config.vocab_size)

    @property
    def embedding_weight(self) -> TokenTable | None:
        """The embedding [vocab, hidden] of the first block; None in other blocks."""
        return None if self.embedding is None else cast("TokenTable", self.embedding.weight)

    @cached_property  # an agent says it twice a second
    def weight_bytes(self) -> int:
        modules = [*self.layers, *filter(None, (self.embedding, self.norm))]
        inputs = self.layer_inputs
        own = [] if inputs is None else [inputs.table, inputs.projection, inputs.norm]
        return sum(module_bytes(module) for module in [*modules, *own])

    def new_cache(self, capacity_rows: int) -> KVCache:
        """A cache of one session, with `capacity_rows` rows in each of the block's layers."""
        nets = self._nets
        cache = KVCache(
            self.cached_heads,
            capacity_rows,
            self.dtype,
            self.device,
            windows=[self.architecture.windows[layer] for layer in self.cached_layers],
            ordered=None if self.exactness is None else self.exactness.attention,
            kv=self.kv,
            store=None if self.decoding is None else self.decoding.store_for(capacity_rows),
            states=RowStates(nets[0].net, len(nets), self.device) if nets else None,
        )
        if self.decoding is not None:
            self.decoding.reclaim(cache)
        return cache

    @property
    def caches_on_demand(self) -> bool:
        """Whether caches take memory as their rows are written."""
        return self.decoding is None and takes_memory_as_written(self.device)

    @property
    def cache_row_bytes(self) -> int:
        """Most bytes that a row of a session's capacity takes."""
        if self.decoding is not None:
            return self.decoding.cache_row_bytes
        return session_row_bytes(self.architecture, self.start, self.stop, self.dtype, self.kv)

    def page_saving(self, rows: int) -> int:
        """Return how many rows' memory a session saves where it shares a page of `rows` rows with another.

        They are fewer in a format whose scales are copied, and 0 where memory cannot be shared by such pages.
        """
        if not self.caches_on_demand or not self.cached_heads:
            return 0
        return min(saved_rows(own, rows, self.dtype, self.kv) for own in self.cached_heads)

    @property
    def most_sharing(self) -> int:
        """How many sessions can share pages at once."""
        return most_sharing(sum(2 * own.count for own in self.cached_heads) or 1)

    @property
    def session_bytes(self) -> int:
        """Bytes that a session takes beside its rows, for the states of recurrent layers."""
        return sum(session_bytes(net.net) for net in self._nets)

    @cached_property
    def _nets(self) -> list[RecurrentLayer]:
        """The recurrent layers' own parts, in order."""
        return [layer.linear_attn for layer in self.layers if layer.is_recurrent]

    @property
    def decoding_bytes(self) -> int:
        """The bytes of static tensors, and of caches that wait for the next session."""
        return 0 if self.decoding is None else self.decoding.nbytes

    @torch.inference_mode()
    def forward(
        self,
        inputs: torch.Tensor,
        positions: npt.NDArray[np.int64],
        cache: KVCache,
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
            Rows [n, output_width + hidden * taps], or None after an abort, when the slots from `cached` on
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
            Rows [n, output_width + hidden * taps] for each part, or None after an abort, when the slots of
            all parts from `cached` on have no valid content.

        Raises:
            ProtocolError: as of `forward`, before the rows of any part are stored.
            CapacityError: likewise.
        """
        if len(parts) == 1:
            found = self._forward_alone(parts[0], should_abort, taps)
            return None if found is None else [found]
        for part in parts:
            self._check(part)
            part.check_paths(placed=self.kernels is not None)
        return self._forward_batches(parts, should_abort, taps) if parts else []

    def _check(self, part: SessionRows) -> None:
        part.check(None if self.embedding is None else self.vocab_size, self.input_width, self.dtype)

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
        if self.kernels is not None:
            return KERNEL_EXACTNESS.row_counts
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
        if self.kernels is not None:
            return self._by_kernels(self.kernels, inputs, parts, should_abort, taps)
        rows = len(inputs)
        padded = self._row_counts.padded(rows)
        attention = SessionsAttention(parts, padded, copied=self.columns.carried)
        entered = self._entered(pad_rows(inputs, padded), parts)
        hidden = entered.hidden
        for place, keys_values in self.columns.received(entered):
            attention.store_rows(place, keys_values)
        positions = np.pad(np.concatenate([part.positions for part in parts]), (0, padded - rows), "edge")
        (on_device,) = to_device(self.device, positions)
        rotations = self.rotary(on_device, positions, self.dtype)
        if self._nets:
            attention.take_in(self._nets)
        tapped: list[torch.Tensor] = []
        for index, layer, rotation in zip(range(self.start, self.stop), self.layers, rotations, strict=True):
            if should_abort():
                return None
            if index in taps:
                tapped.append(hidden)
            hidden = layer(hidden, attention, rotation, self.columns.given(entered, index))
        if self.norm is not None:
            hidden = self.norm(hidden)
        own = {self.cached_layers[place]: as_columns(each) for place, each in attention.copies.items()}
        beside = self.columns.beside_hidden(entered, own)
        return (torch.cat((hidden, *beside, *tapped), dim=-1) if beside or tapped else hidden)[:rows]

    def _by_kernels(
        self,
        kernels: KernelBlock,
        inputs: torch.Tensor,
        parts: Sequence[SessionRows],
        should_abort: Callable[[], bool],
        taps: Sequence[int],
    ) -> torch.Tensor | None:
        """Compute `_forward_batch` without padding."""
        sessions = [
            kernels.cached_rows(part.paths, part.cached, part.cache.store, part.updated) for part in parts
        ]
        entered = self._entered(inputs, parts)
        for place, keys_values in self.columns.received(entered):
            own = keys_values.split_with_sizes([part.count for part in parts], 2)
            for part, written in zip(parts, own, strict=True):
                part.cache.store.write_both(place, part.cached, written)
        hidden = entered.hidden
        if self.embedding is None and (len(parts) == 1 or self.input_width > self.hidden_size):
            hidden = hidden.clone(memory_format=torch.contiguous_format)  # it is overwritten
        carried = self.columns.space(len(inputs), hidden)
        found = kernels.forward(
            hidden,
            sessions,
            should_abort,
            [tap - self.start for tap in taps],
            None if entered.given is None else entered.given.contiguous(),
            {layer - self.start: own for layer, own in carried.items()},
        )
        beside = self.columns.beside_hidden(entered, carried)
        if found is None or not beside:
            return found
        return torch.cat((found[:, : self.hidden_size], *beside, found[:, self.hidden_size :]), dim=1)

    def _entered(self, inputs: torch.Tensor, parts: Sequence[SessionRows]) -> RowColumns:
        """The columns of the rows that enter the first layer, of the inputs of all parts with padding."""
        if self.embedding is None:
            return divided(self.architecture, self.start, inputs)
        hidden = embed(self.embedding, self.embedding_multiplier, inputs)
        if self.layer_inputs is None:
            return RowColumns(hidden)
        tokens = np.concatenate([to_host(part.inputs)[0] for part in parts])
        return RowColumns(hidden, self.layer_inputs(np.pad(tokens, (0, len(inputs) - len(tokens))), hidden))


def _check_range(start: int, stop: int, num_layers: int) -> None:
    if not 0 <= start < stop <= num_layers:
        raise BadRequestError(f"layers [{start}, {stop}) are not within [0, {num_layers})")
