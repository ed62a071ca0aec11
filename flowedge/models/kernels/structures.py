"""The structures of flowedge/kernels/src, as ctypes passes them. Fields are described there."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

FLOAT32, BFLOAT16, FLOAT16, INT8, INT4, INT5, INT6, IQ4, MXFP4 = range(9)

FORMATS = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16, torch.float16: FLOAT16}

_Pointer = ctypes.c_void_p
_Size = ctypes.c_int64
_Flag = ctypes.c_int32


class LinearFields(ctypes.Structure):
    _fields_ = [
        ("format", _Flag),
        ("group", _Flag),
        ("halves", _Flag),
        ("zeros", _Flag),
        ("out", _Size),
        ("width", _Size),
        ("weight", _Pointer),
        ("scales", _Pointer),
        ("bias", _Pointer),
    ]


class MixtureFields(ctypes.Structure):
    _fields_ = [
        ("count", _Size),
        ("chosen", _Size),
        ("normalised", _Flag),
        ("rounded", _Flag),
        ("sigmoid", _Flag),
        ("least_sum", ctypes.c_float),
        ("scale", ctypes.c_float),
        ("choice_bias", _Pointer),
        ("router", LinearFields),
        ("experts", _Pointer),
        ("limit", ctypes.c_float),
        ("slope", ctypes.c_float),
        ("shared_gate", LinearFields),
        ("shared", _Flag),
        ("unrounded", _Flag),
        ("router_norm", _Pointer),
        ("scales", _Pointer),
    ]


class LinearRecurrenceFields(ctypes.Structure):
    _fields_ = [
        ("key_heads", _Size),
        ("value_heads", _Size),
        ("key_size", _Size),
        ("value_size", _Size),
        ("inputs", _Size),
        ("tiled", _Size),
        ("corrects", _Size),
        ("projections", LinearFields * 4),
        ("convolution", _Pointer),
        ("convolution_bias", _Pointer),
        ("decay", _Pointer),
        ("decay_bias", _Pointer),
        ("skip", _Pointer),
        ("norm", _Pointer),
    ]


class ConvolutionFields(ctypes.Structure):
    _fields_ = [("inputs", _Size), ("projection", LinearFields), ("weight", _Pointer)]


class LatentFields(ctypes.Structure):
    _fields_ = [
        ("heads", _Size),
        ("rank", _Size),
        ("rotated", _Size),
        ("plain", _Size),
        ("value", _Size),
        ("queries", LinearFields),
        ("query_norm", _Pointer),
        ("key_norm", _Pointer),
        ("epsilon", ctypes.c_float),
        ("paired", _Flag),
        ("keys", _Pointer),
        ("values", _Pointer),
    ]


class LayerFields(ctypes.Structure):
    _fields_ = [
        ("hidden", _Size),
        ("heads", _Size),
        ("kv_heads", _Size),
        ("head_size", _Size),
        ("rotated", _Size),
        ("window", _Size),
        ("scaling", ctypes.c_float),
        ("softcap", ctypes.c_float),
        ("epsilon", ctypes.c_float),
        ("residual", ctypes.c_float),
        ("activation", _Flag),
        ("format", _Flag),
        ("input_norm", _Pointer),
        ("attention_norm", _Pointer),
        ("mlp_norm", _Pointer),
        ("output_norm", _Pointer),
        ("query_norm", _Pointer),
        ("key_norm", _Pointer),
        ("sinks", _Pointer),
        ("qkv", LinearFields * 3),
        ("gate_up", LinearFields * 2),
        ("output", LinearFields),
        ("down", LinearFields),
        ("intermediate", _Size),
        ("mixture", _Pointer),
        ("recurrence", _Pointer),
        ("gates", _Size),
        ("convolution", _Pointer),
        ("ungated", _Flag),
        ("latent", _Pointer),
        ("value_norm", _Pointer),
        ("keys_as_values", _Flag),
        ("shares_keys", _Flag),
        ("rounds_keys", _Flag),
        ("factor", ctypes.c_float),
        ("behind_mlp_norm", _Pointer),
        ("experts_norm", _Pointer),
        ("behind_experts_norm", _Pointer),
        ("given_gate", LinearFields),
        ("given_output", LinearFields),
        ("given_norm", _Pointer),
        ("given", _Size),
    ]


class CacheFields(ctypes.Structure):
    _fields_ = [
        ("format", _Flag),
        ("keys", _Pointer),
        ("values", _Pointer),
        ("key_scales", _Pointer),
        ("value_scales", _Pointer),
        ("capacity", _Size),
    ]


class StatesFields(ctypes.Structure):
    _fields_ = [("state", _Pointer), ("recent", _Pointer)]


class StepsFields(ctypes.Structure):
    _fields_ = [
        ("count", _Size),
        ("rows", _Pointer),
        ("sources", _Pointer),
        ("targets", _Pointer),
        ("outputs", _Pointer),
        ("places", _Size),
        ("first", _Size),
    ]


class SessionRowsFields(ctypes.Structure):
    _fields_ = [
        ("rows", _Size),
        ("slot", _Size),
        ("positions", _Pointer),
        ("linear", _Pointer),
        ("offsets", _Pointer),
        ("slots", _Pointer),
        ("caches", _Pointer),
        ("states", _Pointer),
        ("steps", StepsFields),
    ]


class RunFields(ctypes.Structure):
    _fields_ = [
        ("rows", _Size),
        ("hidden", _Pointer),
        ("sessions", _Pointer),
        ("count", _Size),
        ("cosines", _Pointer),
        ("sines", _Pointer),
        ("given", _Pointer),
        ("given_stride", _Size),
        ("kept", _Pointer),
    ]


def pointer(tensor: torch.Tensor) -> Any:
    """The address of a contiguous tensor on the CPU, which the caller keeps in memory."""
    assert tensor.is_contiguous() and tensor.is_cpu, "kernels read contiguous memory of the host"
    return ctypes.c_void_p(tensor.data_ptr())
