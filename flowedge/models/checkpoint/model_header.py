"""The numbers of a model that its config.json or the header of its GGUF file tells. Imports no torch."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flowedge.core.errors import CheckpointError
from flowedge.models.checkpoint.model_source import CONFIG, FoundModel
from flowedge.models.families.family import MTP_PREFIX
from flowedge.models.families.table import family_of
from flowedge.models.files.config_numbers import check_values
from flowedge.models.files.safetensors_header import read_safetensors_header
from flowedge.text.json_object import read_json_object

_GGUF_PROJECTION = ".nextn.eh_proj."  # in the name of a tensor of a layer that predicts further tokens


@dataclass(frozen=True)
class ModelHeader:
    """What is known of a model before it is opened; None for what only the opened model tells.

    Attributes:
        place: the path to name in errors.
        positions: at least as many tokens as the longest sequence that the model takes.
        hidden_size, vocab_size: of the target; of the target that a draft head was made for.
        predicts_ahead: whether it comes with a layer that predicts further tokens.
    """

    place: str
    layers: int | None
    positions: int | None
    hidden_size: int | None
    vocab_size: int | None
    predicts_ahead: bool | None = None

    @property
    def sizes(self) -> tuple[int | None, int | None]:
        """The hidden size and the number of tokens."""
        return self.hidden_size, self.vocab_size


def read_header(found: FoundModel, place: str) -> ModelHeader:
    """Read the header of a model.

    Args:
        place: the name of the model in errors.

    Raises:
        CheckpointError: when the header cannot be read, or the model's type is not supported.
    """
    if found.gguf:
        header = _header_of_gguf(found.gguf[0], place)
    else:
        raw = _read_config(found.directory)
        try:
            family_of(str(raw.get("model_type")))
        except CheckpointError as error:
            raise CheckpointError(f"{place}: {error}") from error
        header = header_of_config(raw, place)
    return replace(header, predicts_ahead=predicts_ahead(found))


def predicts_ahead(found: FoundModel) -> bool | None:
    """Return whether a model comes with a layer that predicts further tokens; None where only loading tells.

    The headers of its files are read. Errors as of `read_header`.
    """
    if found.gguf:
        from flowedge.models.gguf.header import read_header as read_gguf_header  # noqa: PLC0415 (as below)

        tensors = (each.name for path in found.gguf for each in read_gguf_header(path).tensors)
        return any(_GGUF_PROJECTION in name for name in tensors)
    raw = _read_config(found.directory)
    family = family_of(str(raw.get("model_type"))).of_layers(_layers(raw) or 0)
    if family.predicts_ahead == "no":
        return False
    stored = _stored_names(found.directory)
    if stored is None:
        return None
    return any(family.module_name(name).startswith(f"{MTP_PREFIX}fc.") for name in stored)


def _stored_names(directory: Path) -> Collection[str] | None:
    """The names of a model's tensors; None where its files do not tell them without being loaded."""
    index, single = directory / "model.safetensors.index.json", directory / "model.safetensors"
    if index.is_file():
        named = read_json_object(index).get("weight_map")
        return named.keys() if isinstance(named, dict) else None
    if not single.is_file():
        return None
    try:
        with single.open("rb") as file:
            header = read_safetensors_header(file.fileno(), single.stat().st_size)
    except (OSError, ValueError):  # which whoever loads the file reports
        return None
    return [entry.name for entry in header.entries]


def read_head_header(directory: Path, place: str) -> ModelHeader:
    """Read the config of a draft head; the sizes are those of its target.

    Raises:
        CheckpointError: when the config cannot be read.
    """
    raw = _read_config(directory)
    header = header_of_config(raw, place)
    width = _whole(raw.get("target_hidden_size")) or header.hidden_size
    return ModelHeader(place, header.layers, None, width, header.vocab_size)


def header_of_config(raw: Mapping[str, Any], place: str) -> ModelHeader:
    """Return what the content of a config.json tells."""
    # The second is that of a draft head in the layout of speculators.
    parts = (raw.get(name) for name in ("text_config", "transformer_layer_config"))
    config = next((part for part in parts if isinstance(part, dict)), raw)
    return ModelHeader(
        place,
        _layers(config),
        _positions(config),
        _whole(config.get("hidden_size")),
        _whole(config.get("vocab_size")),
    )


def _layers(config: Mapping[str, Any]) -> int | None:
    """The number of layers, which Nemotron-H says by a list of their kinds, or by a letter of each."""
    for name in ("layers_block_type", "hybrid_override_pattern"):
        if isinstance(kinds := config.get(name), list | str):
            return len(kinds)
    return _whole(config.get("num_hidden_layers"))


def _positions(config: Mapping[str, Any]) -> int | None:
    longest = _whole(config.get("max_position_embeddings"))
    if longest is None:
        return None
    limits = [longest]
    for rope in _ropes(config):
        kind = rope.get("rope_type", rope.get("type"))
        original = rope.get(
            "original_max_position_embeddings", config.get("original_max_position_embeddings")
        )
        scaled = kind == "longrope" or rope.get("llama_4_scaling_beta")
        if scaled and (limit := _whole(original)) is not None:
            limits.append(limit)
    return min(limits)


def _ropes(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the rotary parameters, which a config has once or for each type of layer."""
    for name in ("rope_parameters", "rope_scaling"):
        rope = config.get(name)
        if isinstance(rope, dict):
            yield rope
            yield from (inner for inner in rope.values() if isinstance(inner, dict))


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _read_config(directory: Path) -> dict[str, Any]:
    raw = read_json_object(directory / CONFIG)
    check_values(raw, directory / CONFIG)
    return raw


def _header_of_gguf(path: Path, place: str) -> ModelHeader:
    # The package of GGUF is needed for its files only.
    from flowedge.models.gguf.header import read_header as read_gguf_header  # noqa: PLC0415
    from flowedge.models.gguf_families.metadata import Metadata  # noqa: PLC0415
    from flowedge.models.gguf_families.refusals import check_holds_model  # noqa: PLC0415

    header = read_gguf_header(path)
    try:
        check_holds_model(header.metadata)
        metadata = Metadata(header.metadata, str(header.metadata.get("general.architecture")))
        layers, positions = metadata.layers, metadata.count(".context_length")
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error
    embedding = next((tensor.shape for tensor in header.tensors if tensor.name == "token_embd.weight"), None)
    return ModelHeader(
        place,
        layers,
        positions,
        _whole(header.metadata.get(f"{metadata.architecture}.embedding_length")),
        None if embedding is None else embedding[0],
    )
