"""The config.json of a model: its family, its quantisation and transformers' config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowedge.core.errors import CheckpointError
from flowedge.core.plain_text import visible_field
from flowedge.models.architecture import Architecture
from flowedge.models.families.family import Family
from flowedge.models.families.table import family_of
from flowedge.models.files import prequantised
from flowedge.models.files.config_numbers import check_values
from flowedge.models.files.config_support import check_config
from flowedge.models.files.quantiser_settings import quantiser_settings
from flowedge.models.quant.packed_integers import IntegerFormat
from flowedge.models.quant.stored_settings import integer_format, method_of
from flowedge.text.json_object import errors_of_file, read_json_object

CONFIG_NAME = "config.json"


@dataclass(frozen=True)
class ModelConfig:
    """What the config.json of a model says.

    Attributes:
        raw: the JSON object.
        family: the model's family.
        integer_format: the layout of weights that GPTQ, AWQ or compressed-tensors stored; None for others.
        quant: the quantisation that holds the linear layers as they are stored, "none" for most models.
        config: the decoder's config, of the family's class; architecture: what it says of the computation.
    """

    raw: Mapping[str, Any]
    family: Family
    integer_format: IntegerFormat | None
    quant: str
    config: Any
    architecture: Architecture

    @classmethod
    def read(cls, directory: Path, place: Path, *, in_transformers: bool = False) -> ModelConfig:
        """Read and check the config in a directory.

        Args:
            place: the path of the model to name in errors.
            in_transformers: use transformers' own classes, for dense families as well.

        Raises:
            CheckpointError: when the config cannot be read, or something in it is not supported.
        """
        raw = read_json_object(directory / CONFIG_NAME)
        family = family_of(str(raw.get("model_type")))
        if in_transformers:
            family = family.in_transformers
        _check_numbers(raw, place / CONFIG_NAME if place == directory else place, family)
        quantiser = quantiser_settings(raw, directory)
        if quantiser is not None and method_of(quantiser) == "mxfp4" and family.experts_in_turns:
            quantiser = None  # its blocks are read like those of a GGUF file
        stored = _integer_format(quantiser, directory)
        quant = prequantised.stored_quant(quantiser, directory) if stored is None else stored.quant
        config = _load_config(directory, place, raw, family)
        if stored is not None:
            config.__dict__.pop("quantization_config", None)  # transformers' own layers are not used
        elif quant != "none":
            # A multimodal config.json has the setting at its top; transformers reads that of the decoder.
            config.quantization_config = quantiser
        try:
            with errors_of_file(CONFIG_NAME, "its values do not fit together"):
                check_config(family, config)
                architecture = Architecture.of(family, config)
                family = family.of(config)
        except CheckpointError as error:
            raise CheckpointError(f"{place}: {visible_field(str(error))}") from error
        return cls(raw, family, stored, quant, config, architecture)


def _integer_format(settings: dict[str, Any] | None, directory: Path) -> IntegerFormat | None:
    try:
        return None if settings is None else integer_format(settings)
    except CheckpointError as error:
        raise CheckpointError(f"{directory}: {visible_field(str(error))}") from error


def _load_config(directory: Path, place: Path, raw: Mapping[str, Any], family: Family) -> Any:
    if family.multimodal and not isinstance(raw.get("text_config"), dict):
        raise CheckpointError(f"{place}: the config has no text_config, the decoder's part")
    kind = family.config.model_type
    if family.multimodal and (found := raw["text_config"].get("model_type", kind)) != kind:
        raise CheckpointError(
            f"{place}: a decoder of type {found!r} in a {raw['model_type']}; only {kind!r} is known"
        )
    with errors_of_file(place, "config.json is not valid"):
        config = family.config.from_pretrained(directory, local_files_only=True)
    if family.multimodal:  # as transformers' models of both families
        config.tie_word_embeddings = bool(raw.get("tie_word_embeddings", True))
    return config


def _check_numbers(raw: Mapping[str, Any], path: Path, family: Family) -> None:
    """Check the values that transformers' config is made from."""
    check_values(raw, path)
    decoder = raw.get("text_config")
    if family.multimodal and isinstance(decoder, dict):
        check_values(decoder, path, "text_config")
