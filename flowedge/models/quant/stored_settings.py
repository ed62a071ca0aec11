"""The settings of a quantiser in config.json, and which of them are supported."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flowedge.core.errors import CheckpointError
from flowedge.models.quant.packed_integers import IntegerFormat
from flowedge.models.quant.stored_layouts import AWQ, GPTQ, CompressedTensors

Settings = dict[str, Any]

_CT_FORMATS = ("pack-quantized", "int-quantized", "naive-quantized")
_CT_STRATEGIES = ("channel", "group")
_CT_REORDERED = ("group", "dynamic", "true")  # "weight" and "static" leave the columns of a group together
_FLOAT_BITS = 16  # AutoRound's number of bits for weights in floating point
_PLAIN = "give the original checkpoint, or a checkpoint in a supported format"


def integer_format(settings: Settings) -> IntegerFormat | None:
    """The format that a `quantization_config` describes; None for methods that do not store integers.

    Raises:
        CheckpointError: when the method stores integers and a setting of it is not supported.
    """
    read = _METHODS.get(method_of(settings))
    return None if read is None else read(settings)


def method_of(settings: Settings) -> str:
    """The name of the quantiser; without a name, as in the first versions, other settings tell it."""
    method = settings.get("quant_method")
    if method is not None:
        return str(method).lower()
    if "config_groups" in settings:
        return "compressed-tensors"
    if "w_bit" in settings:
        return "awq"
    return "gptq" if "desc_act" in settings else ""


def _gptq(settings: Settings) -> GPTQ:
    bits = _int(settings, "bits", "GPTQ")
    _require(bits in (4, 8), "GPTQ", f"weights of {bits} bits", "4 or 8 bits")
    layout = _layout(settings, "checkpoint_format", "gptq")
    if settings.get("is_marlin_format"):
        layout = "marlin"
    _require(layout in ("gptq", "gptq_v2"), "GPTQ", f"checkpoint_format {layout!r}", "gptq or gptq_v2")
    _require(_skips_only(settings), "GPTQ", "settings of single modules (dynamic)", "one for all")
    _require(not settings.get("rotation"), "GPTQ", "rotated weights (rotation)", "weights as they are")
    _require(not settings.get("lm_head"), "GPTQ", "a quantised LM head", "an LM head in floating point")
    pack = settings.get("pack_dtype", "int32")
    _require(pack == "int32", "GPTQ", f"pack_dtype {pack!r}", "int32")
    group = _group(settings, "group_size", "GPTQ")
    return GPTQ(bits, group, bool(settings.get("desc_act")), 1 if layout == "gptq" else 0)


def _layout(settings: Settings, name: str, default: str) -> str:
    """The layout of the weights, which is under the key `name` or under `format`."""
    found = settings.get(name)
    return str(settings.get("format", default) if found is None else found).lower()


def _skips_only(settings: Settings) -> bool:
    """Return whether the settings of single modules leave modules out ("-:" and a pattern) and do no more."""
    dynamic = settings.get("dynamic") or {}
    if not isinstance(dynamic, dict):
        return False
    return all(
        pattern.startswith("-:")
        or (isinstance(own, dict) and all(settings.get(key) == value for key, value in own.items()))
        for pattern, own in dynamic.items()
    )


def _awq(settings: Settings) -> AWQ:
    bits = _int(settings, "bits" if "bits" in settings else "w_bit", "AWQ")
    _require(bits == 4, "AWQ", f"weights of {bits} bits", "4 bits")
    version = _layout(settings, "version", "gemm")
    if settings.get("backend") == "llm-awq":
        version = "llm-awq"
    _require(version == "gemm", "AWQ", f"the layout of version {version!r}", "version gemm")
    _require(bool(settings.get("zero_point", True)), "AWQ", "weights without zero points", "zero_point: true")
    return AWQ(_group(settings, "group_size" if "group_size" in settings else "q_group_size", "AWQ"))


def _auto_round(settings: Settings) -> IntegerFormat:
    """AutoRound chooses other integers than GPTQ and AWQ, and stores them in the layout of either."""
    method, packing = "AutoRound", str(settings.get("packing_format") or settings.get("backend"))
    layout = packing.split(":")[1] if ":" in packing else packing
    known = layout in ("gptq", "auto_gptq", "awq", "auto_awq")
    _require(known, method, f"packing_format {packing!r}", "auto_round:auto_gptq or auto_round:auto_awq")
    kind, rows = settings.get("data_type", "int"), settings.get("act_bits", 16)
    _require(kind == "int", method, f"weights of type {kind!r}", "int")
    _require(rows is None or rows == 16, method, f"quantised activations (act_bits {rows})", "weights only")
    own = settings.get("extra_config") or {}
    same = isinstance(own, dict) and all(_is_left_out_or_equal(each, settings) for each in own.values())
    _require(same, method, "settings of single layers (extra_config)", "one for all")
    return _gptq(settings) if "gptq" in layout else _awq(settings)


def _is_left_out_or_equal(own: object, settings: Settings) -> bool:
    """Return whether AutoRound's settings of a layer leave the layer out, or are those of all layers."""
    if not isinstance(own, dict):
        return False
    bits = own.get("bits", settings.get("bits"))
    names = ("bits", "group_size", "sym", "data_type")
    return (isinstance(bits, int) and bits >= _FLOAT_BITS) or all(
        own[name] == settings.get(name, own[name]) for name in names if name in own
    )


def _compressed_tensors(settings: Settings) -> CompressedTensors:
    method = "compressed-tensors"
    sparsity = settings.get("sparsity_config") or {}
    sparse = sparsity.get("format", "dense") if isinstance(sparsity, dict) else sparsity
    _require(sparse == "dense", method, f"sparse weights ({sparse!r})", "dense weights")
    _require(not settings.get("kv_cache_scheme"), method, "a quantised KV cache", "no kv_cache_scheme")
    _require(not settings.get("transform_config"), method, "transforms of activations", "no transform_config")
    formats = [_scheme(scheme, settings) for scheme in _schemes(settings)]
    same = all(found == formats[0] for found in formats)
    _require(same, method, "several schemes of weights", "one scheme for all layers")
    return formats[0]


def _schemes(settings: Settings) -> list[Settings]:
    """The schemes of the config's groups of layers."""
    method = "compressed-tensors"
    groups = settings.get("config_groups")
    schemes = list(groups.values()) if isinstance(groups, dict) else []
    valid = all(isinstance(scheme, dict) and isinstance(scheme.get("weights"), dict) for scheme in schemes)
    _require(bool(schemes) and valid, method, "no scheme of weights", "config_groups with weights")
    return schemes


def _scheme(scheme: Settings, settings: Settings) -> CompressedTensors:
    """The layout that a scheme describes. The layout's name may stand in the scheme or for all schemes."""
    method = "compressed-tensors"
    for part in ("input_activations", "output_activations"):
        _require(not scheme.get(part), method, f"quantised activations ({part})", "weights only")
    layout = scheme.get("format") or settings.get("format")
    _require(layout in _CT_FORMATS, method, f"format {layout!r}", " or ".join(_CT_FORMATS))
    weights: Settings = scheme["weights"]
    bits, kind = _int(weights, "num_bits", method), str(weights.get("type", "int")).lower()
    _require(kind == "int", method, f"weights of type {kind!r}", "int")
    _require(bits in (4, 8), method, f"weights of {bits} bits", "4 or 8 bits")
    strategy = str(weights.get("strategy") or ("group" if weights.get("group_size") else "tensor")).lower()
    _require(
        strategy in _CT_STRATEGIES,
        method,
        f"scales by {strategy!r}",
        f"scales by {' or '.join(_CT_STRATEGIES)}",
    )
    _require(not weights.get("dynamic"), method, "weights that are quantised at run time", "stored weights")
    return CompressedTensors(
        bits,
        packed=layout == "pack-quantized",
        group=_group(weights, "group_size", method) if strategy == "group" else -1,
        symmetric=bool(weights.get("symmetric", True)),
        reordered=str(weights.get("actorder")).lower() in _CT_REORDERED,
    )


_METHODS: dict[str, Callable[[Settings], IntegerFormat]] = {
    "gptq": _gptq,
    "awq": _awq,
    "auto-round": _auto_round,
    "intel/auto-round": _auto_round,
    "compressed-tensors": _compressed_tensors,
}
METHODS = tuple(_METHODS)


def _require(condition: bool, method: str, found: str, supported: str) -> None:
    if not condition:
        raise CheckpointError(
            f"the checkpoint is quantised by {method} with {found}, which is not supported (supported: "
            f"{supported}); {_PLAIN}"
        )


def _int(settings: Settings, name: str, method: str) -> int:
    value = settings.get(name)
    if type(value) is not int:
        raise CheckpointError(f"the checkpoint is quantised by {method}, and its setting {name} is {value!r}")
    return value


def _group(settings: Settings, name: str, method: str) -> int:
    """The group size; -1 for one scale a row."""
    group = _int(settings, name, method)
    _require(
        group == -1 or (group > 0 and group % 32 == 0),
        method,
        f"groups of {group} weights",
        "-1 or a multiple of 32",
    )
    return group
