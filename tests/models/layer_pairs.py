"""Decoder layers of transformers beside our layers with the same weights, over caches of their own."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AutoConfig, DynamicCache

from flowedge.models.architecture import Architecture
from flowedge.models.attention.kv_cache import KVCache
from flowedge.models.attention.ordered import AttentionSizes
from flowedge.models.check.split_experts import split_experts
from flowedge.models.decoder_layer import DecoderLayer
from flowedge.models.exact.self_test_attention import attention_sizes
from flowedge.models.families.family import Family
from flowedge.models.families.parts import DeltaNet
from flowedge.models.families.table import FAMILIES
from flowedge.models.files.stored_tensors import (
    StoredTensor,
    delta_parts,
    is_by_key_head,
    is_keys_and_values,
    latent_parts,
)
from flowedge.models.quant.quantize import quantize_block, quantize_linear
from flowedge.models.recurrent.row_states import RowStates
from flowedge.models.rotary import Rotary
from flowedge.models.session_rows import SessionRows, SessionsAttention
from tests.models.tiny_families import SHARED, TINY, randomise

CPU = torch.device("cpu")
CONTEXT, TAIL = 70, 5  # committed rows, and rows of a draft tree after them
PARENTS = np.array([-1, CONTEXT, CONTEXT, -1, CONTEXT + 1])
DEPTHS = np.array([0, 1, 1, 0, 2])
ANCESTORS = ((0,), (0, 1), (0, 2), (3,), (0, 1, 4))  # of the tree's rows, themselves among them


@dataclass(frozen=True)
class LayerPair:
    """The layers of a small model by transformers, and our layers with copies of the weights."""

    family: Family
    config: Any
    architecture: Architecture
    theirs: list[Any]
    ours: list[DecoderLayer]
    dtype: torch.dtype

    @torch.inference_mode()
    def outputs(self, *, ordered: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows of a context, and of a draft tree after it, by transformers' layers and by ours.

        Args:
            ordered: whether ours attend in the order of positions.
        """
        return self._theirs().float(), self._ours(self.sizes() if ordered else None).float()

    def sizes(self) -> AttentionSizes:
        kv_heads = self.architecture.kv_heads
        group = self.architecture.heads // kv_heads
        sizes = attention_sizes(CPU, kv_heads, group, self.architecture.head_size)
        assert sizes is not None
        return sizes

    def given(self) -> torch.Tensor | None:
        """What layers are given of the rows, [CONTEXT + TAIL, layers, layer_input]."""
        architecture = self.architecture
        if not architecture.layer_input:
            return None
        generator = torch.Generator().manual_seed(8)
        given = torch.randn(CONTEXT + TAIL, len(self.ours), architecture.layer_input, generator=generator)
        return given.to(self.dtype)

    def states(self, layers: slice = slice(None)) -> RowStates | None:
        """States of a new session in the recurrent layers among some; None where there are none."""
        net, recurrent = self.architecture.recurrence, [layer.is_recurrent for layer in self.ours[layers]]
        return None if net is None else RowStates(net, sum(recurrent), CPU)

    def rows(self) -> torch.Tensor:
        """The hidden rows [CONTEXT + TAIL, hidden] that go through the layers."""
        generator = torch.Generator().manual_seed(7)
        rows = torch.randn(CONTEXT + TAIL, self.architecture.hidden, generator=generator)
        return rows.to(self.dtype)

    def _ours(self, sizes: AttentionSizes | None) -> torch.Tensor:
        cached, given = self.architecture.cached_layers(0, len(self.ours)), self.given()
        cache = KVCache(
            self.architecture.cached_heads(0, len(self.ours)),
            128,
            self.dtype,
            windows=[self.architecture.windows[index] for index in cached],
            ordered=sizes,
            states=self.states(),
        )
        partial = self.architecture.partial_rotary
        rotary = Rotary(self.config, range(len(self.ours)), CPU, partial_rotary=partial)
        rows, chain = self.rows(), np.arange(CONTEXT)
        outputs = []
        for part in (
            SessionRows(rows[:CONTEXT], chain, cache, 0, 0, chain - 1),
            SessionRows(rows[CONTEXT:], CONTEXT + DEPTHS, cache, CONTEXT, CONTEXT, PARENTS),
        ):
            attention, hidden = SessionsAttention([part], part.count), part.inputs
            rotations = rotary(torch.from_numpy(part.positions), part.positions, self.dtype)
            if nets := [layer.linear_attn for layer in self.ours if layer.is_recurrent]:
                attention.take_in(nets)
            first = sum(map(len, outputs))
            for index, (layer, rotation) in enumerate(zip(self.ours, rotations, strict=True)):
                own = None if given is None else given[first : first + part.count, index]
                hidden = layer(hidden, attention, rotation, own)
            outputs.append(hidden)
        return torch.cat(outputs)

    def _theirs(self) -> torch.Tensor:
        return self._theirs_of_tree() if self.architecture.recurrence is None else self._theirs_of_paths()

    def _theirs_of_paths(self) -> torch.Tensor:
        """Each row of the tree by its path alone: transformers computes no trees with a state."""
        path = f"transformers.models.{self.family.module}.modeling_{self.family.module}"
        module, prefix = importlib.import_module(path), self.family.text_prefix or self.family.prefix
        rotates = any(self.architecture.rotated)
        rotary = getattr(module, f"{prefix}RotaryEmbedding")(self.config) if rotates else None
        rows, outputs = self.rows(), []
        for ancestors in ((), *ANCESTORS):
            hidden = torch.cat((rows[:CONTEXT], rows[[CONTEXT + row for row in ancestors]]))[None]
            ids = torch.arange(hidden.shape[1])[None]
            mask = torch.full((1, 1, hidden.shape[1], hidden.shape[1]), torch.finfo(self.dtype).min).triu(1)
            for index, layer in enumerate(self.theirs):
                own = mask.to(self.dtype) if self.ours[index].attends else None
                angles = rotary(hidden, ids[None] if self.family.text_prefix else ids) if rotary else None
                hidden = layer(hidden, attention_mask=own, position_ids=ids, position_embeddings=angles)
            outputs.append(hidden[0, -1:] if ancestors else hidden[0])
        return torch.cat(outputs)

    def _theirs_of_tree(self) -> torch.Tensor:
        rotary = class_of(self.family, "RotaryEmbedding")(self.config)
        given = self.given()
        by_kind = hasattr(rotary, "layer_types")
        cache, outputs, rows = DynamicCache(), [], self.rows()
        positions = np.concatenate((np.arange(CONTEXT), CONTEXT + DEPTHS))
        seen = np.tri(CONTEXT + TAIL, dtype=np.bool_)
        seen[CONTEXT:, CONTEXT:] = [[row in path for row in range(TAIL)] for path in ANCESTORS]
        for span in (slice(0, CONTEXT), slice(CONTEXT, CONTEXT + TAIL)):
            hidden, ids = rows[None, span], torch.from_numpy(positions[None, span])
            shared: dict[str, Any] = {}
            for index, layer in enumerate(self.theirs):
                kind = (self.config.layer_types[index],) if by_kind else ()
                window = self.architecture.windows[index] or CONTEXT + TAIL
                near = positions > positions[:, None] - window
                visible = torch.from_numpy((seen & near)[span, : span.stop])
                mask = torch.zeros(visible.shape, dtype=self.dtype)
                # Each row alone: the longest position of a call may change the angles of all its rows.
                angles = [rotary(hidden, each, *kind) for each in torch.split(ids, 1, dim=1)]
                more = {} if given is None else {"per_layer_input": given[None, span, index]}
                if self.family.key_layers is not None:
                    more["shared_kv_states"] = shared
                hidden = layer(
                    hidden,
                    **more,
                    attention_mask=mask.masked_fill(~visible, torch.finfo(self.dtype).min)[None, None],
                    position_ids=ids,
                    past_key_values=cache,
                    position_embeddings=[torch.cat(part, 1) for part in zip(*angles, strict=True)],
                )
            outputs.append(hidden[0])
        return torch.cat(outputs)


def layer_pair(
    name: str,
    dtype: torch.dtype = torch.float32,
    quant: str = "none",
    formats: Mapping[str, str] | None = None,
    **changes: Any,
) -> LayerPair:
    """Make the layers of a model of TINY; `changes` are changes of its config.

    formats: quantisations of linear layers by what their paths contain, as "q_proj".
    """
    config = tiny_config(name, **changes)
    family = FAMILIES[config.model_type].of(config)
    architecture = Architecture.of(family, config)
    torch.manual_seed(11)
    theirs: list[Any] = []
    ours: list[DecoderLayer] = []
    for index in range(config.num_hidden_layers):
        layer = tiny_layer(config, index)
        for parameter in layer.parameters():  # a layer alone leaves the weights of experts empty
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=config.initializer_range)
        randomise(layer)
        split_experts(layer)
        place = sum(layer.is_recurrent for layer in ours)
        if architecture.attends(index):
            cached = architecture.cached_layers(0, config.num_hidden_layers)
            place = cached.index(architecture.key_layers[index])
        own = DecoderLayer(architecture, index, place)
        own.load_state_dict(own_tensors(layer.state_dict(), family, architecture))
        for each in (layer, own):
            quantize_block(each.to(dtype), quant, dtype).requires_grad_(False).eval()
            for path, linear in list(each.named_modules()):
                for within, own_quant in (formats or {}).items():
                    if within in path and isinstance(linear, nn.Linear):
                        each.set_submodule(path, quantize_linear(linear, own_quant))
        own.fuse()
        theirs.append(layer)
        ours.append(own)
    return LayerPair(family, config, architecture, theirs, ours, dtype)


def own_tensors(
    theirs: Mapping[str, torch.Tensor], family: Family, architecture: Architecture
) -> dict[str, torch.Tensor]:
    """The tensors of a layer by the names of our modules."""
    found = dict[str, torch.Tensor]()
    for name, tensor in theirs.items():
        parts = dict[str, StoredTensor]()
        shape = tuple(tensor.shape)
        if isinstance(architecture.recurrence, DeltaNet) and is_by_key_head(name):
            parts |= delta_parts(name, name, shape, architecture.recurrence)
        elif architecture.latent is not None and is_keys_and_values(name):
            parts |= latent_parts(name, name, shape, architecture.heads, architecture.latent)
        if parts:
            found |= {part: place.take(tensor) for part, place in parts.items()}
        else:
            found[family.module_name(f"model.layers.0.{name}").removeprefix("model.layers.0.")] = tensor
    return found


def tiny_config(name: str, **changes: Any) -> Any:
    """transformers' config of a model of TINY."""
    model_type, own = TINY[name]
    return AutoConfig.for_model(model_type, **(SHARED | own | changes))


def tiny_layer(config: Any, index: int) -> Any:
    """transformers' layer of a config, with its plain attention."""
    family, own = FAMILIES[config.model_type], copy.deepcopy(config)
    own._attn_implementation = "eager"  # noqa: SLF001 (there is no public way)
    own._experts_implementation = "eager"  # noqa: SLF001
    return class_of(family, "Block" if family.module == "nemotron_h" else "DecoderLayer")(own, index)


def class_of(family: Family, kind: str) -> Any:
    """transformers' class of a family's layers or rotary angles."""
    module = importlib.import_module(f"transformers.models.{family.module}.modeling_{family.module}")
    own = getattr(module, f"{family.prefix}{kind}", None)
    return getattr(module, f"{family.text_prefix}{kind}") if own is None else own
