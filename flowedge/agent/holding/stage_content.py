"""What a stage holds of a model: a slice of its layers, or a whole model. Imports torch and transformers."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from flowedge.core.errors import BadRequestError
from flowedge.core.pipeline_config import DRAFT_NODE, LAST_STAGE, ON, PipelineConfig
from flowedge.device.compute import CPU
from flowedge.device.memory import AvailableMemory, MemorySettings
from flowedge.drafting.choice import MTP
from flowedge.drafting.heads.mtp_head import mtp_tensors
from flowedge.drafting.loading import check_same_tokenizer, drafter_directory, kind_of, tokenizer_of
from flowedge.engine.executors.block_executor import BlockExecutor
from flowedge.models.architecture import FINAL_NORM, LAYER_INPUTS, layer_prefix
from flowedge.models.attention.kv_store import session_row_bytes
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.cuda_graphs.static_decoding import is_recordable
from flowedge.models.cuda_graphs.static_keys import row_bytes_with_scratch
from flowedge.models.files.config_support import max_positions
from flowedge.models.host.payloads import torch_dtype
from flowedge.models.language_model import LanguageModel
from flowedge.models.lm_head import LMHead
from flowedge.models.loading import checkpoint_quant
from flowedge.models.quant.quant_cache import QuantCache
from flowedge.models.taps import Taps, check_taps
from flowedge.models.token_table import table_bytes
from flowedge.planning.fit import admit
from flowedge.planning.split import even_split, layer_ranges
from flowedge.v1 import agent_pb2 as pb
from flowedge.weights.quantised_weights import QuantisedRequest


def block_tensors(checkpoint: Checkpoint, start: int, stop: int) -> list[str]:
    """The stored names of the tensors of layers [start, stop).

    The first layer includes the embedding, the last layer the final norm.
    """
    prefixes = tuple(layer_prefix(index) for index in range(start, stop))
    names = [name for name in checkpoint.names if name.startswith(prefixes)]
    if start == 0:
        names += [checkpoint.embedding_name, *LAYER_INPUTS]
    if stop == checkpoint.config.num_hidden_layers:
        names.append(FINAL_NORM)
    return _stored(checkpoint, names)


def head_tensors(checkpoint: Checkpoint, drafters: Sequence[str] = ()) -> list[str]:
    """The stored names of what a draft node with these drafters reads of its model.

    That is the LM head, the embedding, and the layer that predicts further tokens if that drafts.
    """
    ahead = mtp_tensors(checkpoint) if MTP in drafters else []
    return _stored(checkpoint, [checkpoint.head_name, checkpoint.embedding_name, *ahead])


def predicting_tensors(checkpoint: Checkpoint, start: int, stop: int) -> list[str]:
    """The stored names of the tensors of layers [start, stop), and of the LM head behind the last layer."""
    head = [checkpoint.head_name] if stop == checkpoint.config.num_hidden_layers else []
    return sorted({*block_tensors(checkpoint, start, stop), *_stored(checkpoint, head)})


def _stored(checkpoint: Checkpoint, names: Iterable[str]) -> list[str]:
    # Several names may belong to one stored tensor. The loader reports missing ones.
    parts = (checkpoint.source(name)[1] for name in names if checkpoint.has(name))
    return sorted({stored for part in parts for stored in part.names})


@dataclass(frozen=True)
class StageContent(ABC):
    """The part of a model that one stage holds.

    Attributes:
        config: the settings that it computes with. Its dtype is chosen, and `exact` is "on" or "off".
            `verification` is "draft-node" unless the stage, which is the last, holds the LM head to draw
            tokens: "last-stage", or "auto" where that pays.
        start, stop: the model's layers [start, stop).
        taps: layers of the pipeline whose inputs the drafter is given (see models/taps.py).
        vocab_size: the number of token ids that are predicted; 0 where hidden states are handed on.
    """

    config: PipelineConfig
    start: int
    stop: int
    taps: Taps = ()
    vocab_size: int = 0

    @property
    def num_layers(self) -> int:
        return self.stop - self.start

    @property
    def quantised(self) -> QuantisedRequest:
        """The quantisation in which the layers are held."""
        return QuantisedRequest(self.config.quant, self.dtype, self.start, self.stop)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of weights and hidden states."""
        return torch_dtype(self.config.dtype)

    @property
    def exact(self) -> bool:
        """Whether the bits of a row may not depend on the rows beside it."""
        return self.config.exact == ON

    def row_bytes(self, checkpoint: Checkpoint, *, cuda_graphs: bool = False) -> int:
        """Return the most bytes that one row of a session's cache takes.

        Args:
            cuda_graphs: whether the device records small forwards as CUDA graphs, if it can.
        """
        size = session_row_bytes(checkpoint.architecture, self.start, self.stop, self.dtype, self.config.kv)
        recorded = cuda_graphs and is_recordable(checkpoint, self.start, self.stop)
        return row_bytes_with_scratch(size) if recorded else size

    def admit(
        self,
        device: str,
        checkpoint: Checkpoint,
        settings: MemorySettings,
        memory: AvailableMemory | None = None,
        *,
        compute: str = CPU,
        cuda_graphs: bool = False,
    ) -> None:
        """Check that weights and caches fit the memory of this device, which is named `device`.

        Args:
            memory: what is available; the host's memory now if None.
            compute: torch's name of what it computes on.
            cuda_graphs: whether the device records small forwards as CUDA graphs, if it can.

        Raises:
            CapacityError: when they do not.
        """
        admit(
            self.title,
            device,
            weights=self.weight_bytes(checkpoint, compute),
            row_bytes=self.row_bytes(checkpoint, cuda_graphs=cuda_graphs),
            max_rows=max_positions(checkpoint.config),
            settings=settings,
            memory=memory,
        )

    @property
    @abstractmethod
    def title(self) -> str:
        """The content in words, for error messages."""

    @abstractmethod
    def open(self, *, hub: bool) -> Checkpoint:
        """Return the checkpoint that the model's name stands for; no weights are read.

        Args:
            hub: whether the hub may be asked for a model that is not on the disk.

        Raises:
            BadRequestError: when the model is of the wrong kind.
            CheckpointError: when its files cannot be found or read.
        """

    @abstractmethod
    def held_quant(self, checkpoint: Checkpoint) -> str:
        """Return the quantisation in which the layers are held."""

    @abstractmethod
    def tensors(self, checkpoint: Checkpoint) -> list[str]:
        """Return the stored names of the tensors that `load` reads."""

    @abstractmethod
    def weight_bytes(self, checkpoint: Checkpoint, device: str = CPU) -> int:
        """Return the bytes that the weights take on torch's device of this name; no tensor is read."""

    @abstractmethod
    def load(
        self, checkpoint: Checkpoint, quant_cache: QuantCache | None, device: str = CPU
    ) -> BlockExecutor:
        """Read the weights to torch's device of this name.

        Raises BadRequestError or CheckpointError as LayerBlock.load does.
        """


class LayerSlice(StageContent):
    """Some of the target model's consecutive layers; its stages have all of them together."""

    @property
    def title(self) -> str:
        layers = f"layers {self.start} to {self.stop - 1}"
        return f"a block of {layers} of {self.config.model} ({self.config.quant})"

    def open(self, *, hub: bool) -> Checkpoint:
        return Checkpoint.open(self.config.model, hub=hub)

    def held_quant(self, checkpoint: Checkpoint) -> str:
        return checkpoint_quant(checkpoint, self.config.quant)

    def tensors(self, checkpoint: Checkpoint) -> list[str]:
        draws = self.config.verification != DRAFT_NODE
        head = _stored(checkpoint, [checkpoint.head_name]) if draws else []
        return sorted({*block_tensors(checkpoint, self.start, self.stop), *head})

    def weight_bytes(self, checkpoint: Checkpoint, device: str = CPU) -> int:
        quant, dtype = self.config.quant, self.dtype
        block = LayerBlock.required_bytes(
            checkpoint, self.start, self.stop, quant=quant, dtype=dtype, device=device
        )
        return block + (self.head_bytes(checkpoint, device) if self.config.verification == LAST_STAGE else 0)

    def head_bytes(self, checkpoint: Checkpoint, device: str = CPU) -> int:
        """Return the bytes that the LM head takes beside the layers; no tensor is read."""
        if self.start == 0 and checkpoint.head_name == checkpoint.embedding_name:
            return 0
        quant = self.held_quant(checkpoint)
        return table_bytes(checkpoint, checkpoint.head_name, self.dtype, device, quant)

    def load_head(
        self, checkpoint: Checkpoint, block: LayerBlock, quant_cache: QuantCache | None = None
    ) -> LMHead:
        """Read the LM head to the device of a loaded block; it is exact if the block is and the device can.

        Raises:
            CheckpointError: when it cannot be read.
        """
        quant = self.held_quant(checkpoint)
        head = LMHead.load(checkpoint, block.dtype, block.device, quant=quant, quant_cache=quant_cache)
        if self.exact:
            with contextlib.suppress(BadRequestError):
                head.find_row_counts()
        return head

    def load(
        self, checkpoint: Checkpoint, quant_cache: QuantCache | None, device: str = CPU
    ) -> BlockExecutor:
        taps = check_taps(self.taps, checkpoint.config.num_hidden_layers)
        block = LayerBlock.load(
            checkpoint,
            self.start,
            self.stop,
            quant=self.config.quant,
            dtype=self.dtype,
            device=device,
            quant_cache=quant_cache,
            exact=self.exact,
            kv=self.config.kv,
        )
        draws = self.config.verification == LAST_STAGE
        head = self.load_head(checkpoint, block, quant_cache) if draws else None
        return BlockExecutor(block, taps, head=head)


class WholeModel(StageContent):
    """A middle model of a hierarchy, or a part of its layers: it predicts the target's tokens.

    It is never quantised. The part with the last layer has the LM head.
    """

    @classmethod
    def matching(
        cls,
        config: PipelineConfig,
        tokenizer: Any,
        *,
        vocab_size: int,
        hub: bool = True,
        target: str = "the model",
    ) -> tuple[WholeModel, Checkpoint]:
        """Return the content for a whole model, and its checkpoint.

        Args:
            config: with the model, which is named as a drafter is, and its dtype.
            tokenizer: the target's; vocab_size: the target's number of token ids.
            target: the word for the target in errors.

        Raises:
            BadRequestError: when it is no language model.
            CheckpointError: when its files cannot be read, or its tokenizer is another.
        """
        checkpoint = cls(config, 0, 0).open(hub=hub)
        check_same_tokenizer(
            tokenizer, tokenizer_of(checkpoint), checkpoint.place, "middle model", target=target
        )
        layers = int(checkpoint.config.num_hidden_layers)
        return cls(config, 0, layers, vocab_size=vocab_size), checkpoint

    def parts(self, devices: int) -> list[WholeModel]:
        """Return the contents of the devices that a whole model is divided over, as evenly as possible.

        Raises:
            BadRequestError: when there are more devices than layers.
        """
        ranges = layer_ranges(even_split(self.num_layers, devices))
        return [replace(self, start=start, stop=stop) for start, stop in ranges]

    @property
    def title(self) -> str:
        return f"layers {self.start} to {self.stop - 1} of middle model {self.config.model}"

    def open(self, *, hub: bool) -> Checkpoint:
        directory = drafter_directory(self.config.model, hub=hub)
        kind = kind_of(directory)
        if kind != "lm":
            raise BadRequestError(
                f"middle model {self.config.model} is an {kind} head; it must be a complete language model"
            )
        return Checkpoint(directory)

    def held_quant(self, checkpoint: Checkpoint) -> str:  # noqa: ARG002
        return "none"

    def tensors(self, checkpoint: Checkpoint) -> list[str]:
        return predicting_tensors(checkpoint, self.start, self.stop)

    def weight_bytes(self, checkpoint: Checkpoint, device: str = CPU) -> int:  # noqa: ARG002
        return LanguageModel.required_bytes(checkpoint, self.dtype, layers=(self.start, self.stop))

    def load(
        self,
        checkpoint: Checkpoint,
        quant_cache: QuantCache | None,  # noqa: ARG002
        device: str = CPU,
    ) -> BlockExecutor:
        layers = (self.start, self.stop)
        model = LanguageModel.load(checkpoint, self.vocab_size, self.dtype, device, layers=layers)
        return BlockExecutor(model.block, model=model)


def content_of(request: pb.StageRole, config: PipelineConfig) -> StageContent:
    """Return the content that a stage is asked to hold; `config` are the settings in the request."""
    start, stop, taps = request.layer_start, request.layer_stop, tuple(request.taps)
    if request.route:
        return WholeModel(config, start, stop, taps, request.vocab_size)
    return LayerSlice(config, start, stop, taps)
