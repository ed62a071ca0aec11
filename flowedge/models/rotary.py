"""Rotary positions: the angles of rows, and the rotation of queries and keys by them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS, dynamic_rope_update

from flowedge.core.arrays import IntArray
from flowedge.models.families.parts import head_size
from flowedge.models.files.config_support import fixed_rope_length, rope_by_layer_type
from flowedge.models.host.copies import to_device, to_host

_BASE = 10_000.0  # of angles where a config names none, because no layer rotates
Angles = tuple[torch.Tensor, torch.Tensor]  # cosines and sines [..., rows, rotated size]


class Rotation:
    """The rotation of queries and keys of some rows, prepared once for all layers of a forward.

    Attributes:
        cos, sin: [rows, rotated size]. The rotated size may be less than the width of a head.
    """

    def __init__(self, cos: torch.Tensor, sin: torch.Tensor) -> None:
        self.cos, self.sin = cos, sin
        self.size = cos.shape[1]
        self._cos = cos.unsqueeze(1)
        # transformers negates the first half of the turned heads; here that half of the sines is negated.
        signed = sin.clone()
        signed[:, : self.size // 2].neg_()
        self._signed_sin = signed.unsqueeze(1)

    def rotate(self, heads: torch.Tensor, into: torch.Tensor) -> None:
        """Write the rotated heads to `into`; both are [rows, heads, rotated size].

        `heads` is overwritten. It may be `into`.
        """
        turned = heads.roll(self.size // 2, 2).mul_(self._signed_sin)
        torch.add(heads.mul_(self._cos), turned, out=into)


class Rotary:
    """The rotations of a run of layers, computed so that no row changes the angles of another."""

    def __init__(
        self, config: Any, layers: range, device: torch.device, *, partial_rotary: bool = False
    ) -> None:
        """Prepare the rotations of the model's layers with the indices `layers`.

        Args:
            partial_rotary: as of Architecture.
        """
        self._length = fixed_rope_length(config)
        self._device = device
        self._configs = {
            kind: config if kind is None else _of_layer_type(config, kind, rope)
            for kind, rope in rope_by_layer_type(config).items()
        }
        self._kinds = [None if None in self._configs else config.layer_types[index] for index in layers]
        self._partial_rotary = partial_rotary
        self._modules = {kind: self._make(kind) for kind in {*self._kinds}}

    def __call__(self, positions: torch.Tensor, on_host: IntArray, dtype: torch.dtype) -> Sequence[Rotation]:
        """The rotation of each layer, rounded to a dtype.

        Args:
            positions: int64 [rows] on the device; on_host: the same positions on the host.
        """
        if self.is_static:
            return self.on_device(positions, dtype)
        return self._by_layer(partial(self._rotate_on_host, on_host, dtype))

    @property
    def is_static(self) -> bool:
        """Whether the angles are computed on the device alone, by the same operations for all positions."""
        return self._length is None

    def on_device(self, positions: torch.Tensor, dtype: torch.dtype) -> Sequence[Rotation]:
        """The rotation of each layer, as above, where `is_static`."""
        like = torch.empty(0, dtype=dtype, device=positions.device)
        return self._by_layer(lambda kind: Rotation(*self._modules[kind](like, positions)))

    def _by_layer(self, rotate: Callable[[str | None], Rotation]) -> Sequence[Rotation]:
        by_kind = {kind: rotate(kind) for kind in dict.fromkeys(self._kinds)}
        return [by_kind[kind] for kind in self._kinds]

    def _make(self, kind: str | None) -> RotaryAngles:
        module = RotaryAngles(self._configs[kind], partial_rotary=self._partial_rotary)
        # Where frequencies depend on the length, the module reads positions, which would wait for a GPU.
        return module.to(self._device) if self._length is None else module

    def _rotate_on_host(self, positions: IntArray, dtype: torch.dtype, kind: str | None) -> Rotation:
        cos, sin = to_device(self._device, *to_host(*self._host_angles(positions, dtype, kind)))
        return Rotation(cos, sin)

    def _host_angles(self, positions: IntArray, dtype: torch.dtype, kind: str | None) -> Angles:
        like, ids = torch.empty(0, dtype=dtype), torch.from_numpy(positions)
        assert self._length is not None
        if int(positions.max()) < self._length:
            angles: Angles = self._modules[kind](like, ids)
            return angles
        # Beyond this length, a call gives all rows the frequencies of its longest position, and the module
        # stores them. So each row gets a module and a call of its own.
        alone = [self._make(kind)(like, each) for each in torch.split(ids, 1)]
        return torch.cat([cos for cos, _ in alone]), torch.cat([sin for _, sin in alone])


class RotaryAngles(nn.Module):
    """The angles of positions. The attributes are those that transformers' update of frequencies changes."""

    inv_freq: torch.Tensor

    def __init__(self, config: Any, *, partial_rotary: bool = False) -> None:
        """Take the rotary parameters of a config in which all layers share them.

        Args:
            partial_rotary: as of Architecture.
        """
        super().__init__()
        self.config = config
        self.max_seq_len_cached = self.original_max_seq_len = config.max_position_embeddings
        self.rope_type = rope_by_layer_type(config)[None]["rope_type"]
        if self.rope_type == "default":
            frequencies, self.attention_scaling = _default_frequencies(config, partial_rotary), 1.0
        else:
            frequencies, self.attention_scaling = ROPE_INIT_FUNCTIONS[self.rope_type](config)
        self.register_buffer("inv_freq", frequencies, persistent=False)
        self.register_buffer("original_inv_freq", frequencies.clone(), persistent=False)

    @torch.no_grad()
    @dynamic_rope_update  # type: ignore[untyped-decorator]
    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> Angles:
        """Return cos and sin [..., rows, size] of int64 positions [..., rows], in the dtype of `x`."""
        half = position_ids[..., None].float() * self.inv_freq.to(device=x.device, dtype=torch.float)
        angles = torch.cat((half, half), dim=-1)
        cos, sin = angles.cos() * self.attention_scaling, angles.sin() * self.attention_scaling
        return cos.to(dtype=x.dtype), sin.to(dtype=x.dtype)


def rotate_heads(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Return heads [..., rows, head_size] that are rotated by angles that broadcast to their shape."""
    size = heads.shape[-1] // 2
    return heads * cos + torch.cat((-heads[..., size:], heads[..., :size]), dim=-1) * sin


def _of_layer_type(config: Any, kind: str, rope: Any) -> Any:
    """The config of layers of a type, which share their rotary parameters and the size of their heads."""
    varied = getattr(config, "is_heterogeneous", False) and kind in config.layer_types
    changed = copy.copy(config.per_layer_config[kind] if varied else config)
    changed.rope_parameters = rope
    return changed


def _default_frequencies(config: Any, partial_rotary: bool) -> torch.Tensor:
    rope = rope_by_layer_type(config)[None]
    share = rope.get("partial_rotary_factor", 1.0) if partial_rotary else 1.0
    size = int(head_size(config) * share)
    # With memory, whatever torch's default device is: a power without memory would import torch's compiler.
    exponents = torch.arange(0, size, 2, dtype=torch.float, device="cpu") / size
    frequencies: torch.Tensor = 1.0 / (rope.get("rope_theta", _BASE) ** exponents)
    return frequencies
