"""A GGUF model in one or several files: its tensors, its config and its tokenizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from flowedge.core.errors import CheckpointError
from flowedge.models.files.weight_file import DTYPES, StoredSlice, TensorFile, WeightSlice
from flowedge.models.gguf.block_slice import BlockSlice
from flowedge.models.gguf.block_types import BLOCK_TYPES, FLOAT_TYPES
from flowedge.models.gguf.header import GGUFTensor, read_header
from flowedge.models.gguf_families.architectures import architecture_of
from flowedge.models.gguf_families.config import make_config, make_generation_config
from flowedge.models.gguf_families.metadata import Metadata, Value
from flowedge.models.gguf_families.model_facts import ModelFacts
from flowedge.models.gguf_families.refusals import check_holds_model


class GGUFFile(TensorFile):
    """The tensors of one GGUF file.

    Attributes:
        metadata: the values that the file holds beside its tensors, by key.
        unsupported: the tensors whose type cannot be read, with the type by name.
    """

    def __init__(self, path: Path) -> None:
        """Open the file and read its header.

        Raises:
            CheckpointError: when the file cannot be opened or is not a valid GGUF file.
        """
        header = read_header(path)
        try:
            super().__init__(path)
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error}") from error
        self.metadata: dict[str, Value] = header.metadata
        self.unsupported: dict[str, str] = {}
        for place in header.tensors:
            found = self._slice(place)
            if found is None:
                self.unsupported[place.name] = place.kind
            else:
                self._slices[place.name] = found

    def _slice(self, place: GGUFTensor) -> StoredSlice | None:
        if place.kind in FLOAT_TYPES:
            return WeightSlice(self._file, place.name, place.shape, DTYPES[place.kind], place.offset)
        kind = BLOCK_TYPES.get(place.kind)
        return None if kind is None else BlockSlice(self._file, place.name, place.shape, kind, place.offset)


_MAX_FACTORS = 1 << 14


class GGUFModel:
    """The model of the files `paths`, whose headers were read and checked.

    Attributes:
        metadata: that of the first file.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        """Open all files of a model, in order.

        Raises:
            CheckpointError: when a file cannot be read or holds no model, the files do not belong together,
                or the architecture or the type of a tensor is not supported.
        """
        self.path = paths[0]
        self.files = tuple(GGUFFile(path) for path in paths)
        values = self.files[0].metadata
        try:
            check_holds_model(values)
            architecture = architecture_of(values.get("general.architecture")).name
            self.metadata = Metadata(values, architecture)
            self._check_split()
        except CheckpointError as error:
            raise CheckpointError(f"{self.path}: {error}") from error
        for file in self.files:
            for name, kind in file.unsupported.items():
                raise CheckpointError(
                    f"{file.path}: tensor {name} is stored as {kind}, which is not supported; give a file "
                    f"whose tensors are stored as {', '.join((*FLOAT_TYPES, *BLOCK_TYPES))} only"
                )

    @cached_property
    def tensors(self) -> Mapping[str, StoredSlice]:
        """All tensors by their names in the files."""
        return {name: tensor for file in self.files for name, tensor in file.items()}

    def config(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The contents of config.json and generation_config.json.

        Raises:
            CheckpointError: when metadata are missing or impossible.
        """
        shapes = {name: tensor.shape for name, tensor in self.tensors.items()}
        facts = ModelFacts(self.metadata, shapes, self._factors)
        try:
            return make_config(facts), make_generation_config(facts)
        except CheckpointError as error:
            raise CheckpointError(f"{self.path}: {error}") from error

    def _factors(self, name: str) -> list[float] | None:
        tensor = self.tensors.get(name)
        if tensor is None:
            return None
        if len(tensor.shape) != 1 or tensor.shape[0] > _MAX_FACTORS:
            raise CheckpointError(f"tensor {name} of shape {list(tensor.shape)} is no list of rotary factors")
        try:
            return [float(value) for value in tensor[...].tolist()]
        except OSError as error:
            raise CheckpointError(f"tensor {name} cannot be read: {error}") from error

    def _check_split(self) -> None:
        """Check that the files are the parts of one model, each with its own number and tensors."""
        count = len(self.files)
        if self.metadata.count("split.count", 1, least=0) not in (count, 0 if count == 1 else count):
            raise CheckpointError(
                f"it is one of {self.metadata.values['split.count']} files of a split model, and {count} are "
                "here; split models have names like model-00001-of-00003.gguf"
            )
        for number, file in enumerate(self.files):
            own = Metadata(file.metadata, self.metadata.architecture)
            if count > 1 and own.count("split.no", -1, least=0) != number:
                raise CheckpointError(f"{file.path.name} is not file {number + 1} of the split model")
        names = [name for file in self.files for name in (*file, *file.unsupported)]
        if len(set(names)) < len(names):
            raise CheckpointError("two files of the split model have tensors of one name")
        wanted = self.metadata.count("split.tensors.count", len(names), least=0)
        if count > 1 and wanted != len(names):
            raise CheckpointError(f"the files have {len(names)} tensors, the split model has {wanted}")
