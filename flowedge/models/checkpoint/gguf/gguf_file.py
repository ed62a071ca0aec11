"""A GGUF file whose tensors are read on demand."""

from __future__ import annotations

from pathlib import Path

from flowedge.core.errors import CheckpointError
from flowedge.models.checkpoint.gguf.block_slice import BlockSlice
from flowedge.models.checkpoint.gguf.block_types import BLOCK_TYPES, FLOAT_TYPES
from flowedge.models.checkpoint.gguf.header import TensorPlace, Value, read_header
from flowedge.models.checkpoint.weight_file import DTYPES, StoredSlice, TensorFile, WeightSlice


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

    def _slice(self, place: TensorPlace) -> StoredSlice | None:
        if place.kind in FLOAT_TYPES:
            return WeightSlice(self, place.name, place.shape, DTYPES[place.kind], place.offset)
        kind = BLOCK_TYPES.get(place.kind)
        return None if kind is None else BlockSlice(self, place.name, place.shape, kind, place.offset)
