"""The side of an agent that computes: the one module of the roles that imports torch.

An idle agent has not imported it; see Agent.compute_side.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import torch

from flowedge.agent.agent_config import AgentConfig
from flowedge.agent.holding.head_choice import choose_head
from flowedge.agent.holding.stage_content import (
    LayerSlice,
    StageContent,
    WholeModel,
    content_of,
    head_tensors,
)
from flowedge.agent.roles.coordinator import PlannedRoute, PlannedStage
from flowedge.core.errors import BadRequestError, CapacityError, CheckpointError
from flowedge.core.pipeline_config import (
    AUTO,
    DRAFT_NODE,
    LAST_STAGE,
    OFF,
    ON,
    PipelineConfig,
    Quantisation,
    drafter_label,
)
from flowedge.device.compute import DeviceCompute, negotiate_dtype
from flowedge.device.memory import gib, read_memory_of
from flowedge.device.process import release_freed_memory
from flowedge.device.state_dir import state_dir
from flowedge.drafting.choice import NGRAM
from flowedge.drafting.drafter_format import DrafterFormat
from flowedge.drafting.loading import drafter_taps
from flowedge.drafting.lookup.answer_store import store_bytes
from flowedge.engine.executors.block_executor import BlockExecutor
from flowedge.engine.executors.draft_models import DraftModels, required_memory
from flowedge.engine.executors.out_of_memory import within_memory
from flowedge.engine.stage.stage_spec import StageSpec
from flowedge.models.attention.kv_store import NATIVE
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.model_source import tokenizer_directory
from flowedge.models.checkpoint.tokenizer_loading import load_tokenizer
from flowedge.models.cuda_graphs.static_decoding import capture_decoding
from flowedge.models.exact.option import resolve_exact
from flowedge.models.files.config_support import max_positions
from flowedge.models.loading import checkpoint_quant
from flowedge.models.quant.quant_cache import QuantCache
from flowedge.models.sampling.draw_timing import draw_seconds
from flowedge.models.taps import Taps
from flowedge.planning.fit import admit, session_rows
from flowedge.planning.placement.drift import move_for
from flowedge.planning.placement.goal import Goal
from flowedge.planning.placement.live_division import choose, divide
from flowedge.planning.placement.model_sizes import from_config
from flowedge.planning.profile.model import like_quant
from flowedge.planning.split import check_split, even_split, layer_ranges, split_beside_head
from flowedge.strategies.events import TARGET
from flowedge.strategies.row_bounds import most_capacity
from flowedge.v1 import agent_pb2 as pb
from flowedge.weights.local_weights import LocalWeights
from flowedge.weights.manifest import Manifest
from flowedge.weights.manifest_of_model import describe
from flowedge.weights.model_request import OpenedModel
from flowedge.weights.quantised_weights import list_quantised, quantised_keys

MAX_CAPACITY = 1 << 20  # cache rows of one session, however much memory there is


@dataclass(frozen=True)
class OpenedTarget:
    """The target's checkpoint, and the quantisation in which stages hold its layers."""

    checkpoint: Checkpoint
    quant: str


class ComputeSide:
    """Opens, admits and loads models for the roles of one agent. Its methods block the calling thread."""

    content_of = staticmethod(content_of)
    head_tensors = staticmethod(head_tensors)
    describe = staticmethod(describe)
    divide = staticmethod(divide)
    choose = staticmethod(choose)
    move_for = staticmethod(move_for)

    def __init__(self, device: str, config: AgentConfig, compute: DeviceCompute) -> None:
        """To be made in the compute thread, whose number of threads in torch is set.

        Args:
            device: the name of this device; compute: what it can compute on.
        """
        torch.set_num_threads(config.agent.torch_threads)
        self._device = device
        self._config = config
        self._compute = compute

    def admit(self, content: StageContent, fingerprint: str, checkpoint: Checkpoint) -> None:
        """Check that a checkpoint is the draft node's, and that the content fits the memory of this device.

        Raises:
            BadRequestError: when its fingerprint is another; an empty fingerprint stands for any; or when the
                GPU that the configuration names cannot multiply with the quantisation.
            CapacityError: when the content does not fit.
        """
        if fingerprint and checkpoint.fingerprint != fingerprint:
            raise BadRequestError(
                f"the model {content.config.model} on this device is not the same as on the draft node"
            )
        compute = self._compute.choose(content.held_quant(checkpoint))
        memory = read_memory_of(compute.device, self._config.memory)
        graphs = self._config.agent.records_on(compute.device)
        content.admit(
            self._device, checkpoint, self._config.memory, memory, compute=compute.device, cuda_graphs=graphs
        )

    def open_here(self, content: StageContent, fingerprint: str) -> OpenedModel:
        """Open a model by its name and admit the content. Raises what StageContent.open and `admit` raise."""
        checkpoint = content.open(hub=self._config.weights.hub)
        self.admit(content, fingerprint, checkpoint)
        return OpenedModel(checkpoint)

    def load_stage(self, content: StageContent, opened: OpenedModel) -> BlockExecutor:
        """Load an admitted content.

        Raises CapacityError when memory runs out nevertheless, and what StageContent.load raises; a
        CheckpointError names this device, because each device may have files of its own.
        """
        compute = self._compute.choose(content.held_quant(opened.checkpoint))
        cache, size = self._quant_cache(opened), content.weight_bytes(opened.checkpoint, compute.device)
        try:
            executor = within_memory(
                f"{content.title}, with {gib(size)} of weights, does not fit on device {self._device}",
                compute.device,
                lambda: content.load(opened.checkpoint, cache, compute.device),
                lambda: None,
            )
        except CheckpointError as error:
            raise CheckpointError(f"device {self._device}: {error}") from error
        if self._config.agent.cuda_graphs:
            capture_decoding(executor.block)
        release_freed_memory()  # of reading, quantising and the trials of exactness
        return executor

    def choose_head(
        self, executor: BlockExecutor, content: StageContent, opened: OpenedModel, draft_node_s: float
    ) -> str:
        """Give a last stage the LM head if it pays; return the choice in words (see choose_head)."""
        assert isinstance(content, LayerSlice)
        said = choose_head(
            self._device,
            self._config.memory,
            executor,
            content,
            opened.checkpoint,
            draft_node_s,
            self._quant_cache(opened),
        )
        release_freed_memory()
        return said

    def stage_spec(self, executor: BlockExecutor, checkpoint: Checkpoint) -> StageSpec:
        """Return what a stage accepts, by the memory that is left, the model and the agent's limits."""
        limits = self._config.limits
        memory = read_memory_of(str(executor.block.device), self._config.memory)
        rows = session_rows(executor.cache_row_bytes, self._config.memory, memory)
        # A middle model has sessions of the target's length, whatever it was made for.
        positions = max_positions(checkpoint.config) if executor.model is None else MAX_CAPACITY
        return executor.stage_spec(
            max_capacity=min(MAX_CAPACITY, rows, most_capacity(positions)),
            max_total_capacity=rows,
            max_rows=limits.segment_rows,
            max_sessions=limits.sessions,
            max_queue=limits.queued_segments,
        )

    def open_target(self, config: PipelineConfig) -> OpenedTarget:
        """Open the target by its name. Raises what Checkpoint.open and `held_in` raise."""
        return self.held_in(Checkpoint.open(config.model, hub=self._config.weights.hub), config)

    def held_in(self, checkpoint: Checkpoint, config: PipelineConfig) -> OpenedTarget:
        """Return the target with its tokenizer and the quantisation of its layers.

        Raises what `tokenizer_directory` and `checkpoint_quant` raise.
        """
        if config.tokenizer:
            checkpoint.tokenizer = tokenizer_directory(config.tokenizer, hub=self._config.weights.hub)
        return OpenedTarget(checkpoint, checkpoint_quant(checkpoint, config.quant))

    def plan_routes(
        self,
        config: PipelineConfig,
        request: pb.DraftNodeRole,
        taps: Taps | None,
        target: Checkpoint,
        devices: Mapping[str, pb.Device],
    ) -> list[PlannedRoute]:
        """Return what every device of a pipeline is to hold, the target's route first.

        Args:
            config: the settings of the pipeline; request: with the devices of the pipeline.
            taps: those of the pipeline; by default those that the drafter asks for.
            devices: by address, what each device says of itself.

        Raises:
            BadRequestError: when the drafter, the split or another model does not fit the target.
            CheckpointError: when the files of a model cannot be found or read.
        """
        own = self._compute.best
        layers = int(target.config.num_hidden_layers)
        taps = drafter_taps(config.drafters, layers) if taps is None else taps
        dtype = route_dtype(config.dtype, {self._device: own.dtypes, **fast_dtypes(devices, request.stages)})
        computing = [own.device, *(devices[address].compute.device for address in request.stages)]
        exact = ON if plans_exact(config, computing) else OFF
        of_draft_node = {
            "drafter": None,
            "answer_store": 0,
            "tokenizer": "",
            "split": (),
            "verification": DRAFT_NODE,
        }
        held = config.changed(dtype=dtype, exact=exact, **of_draft_node)
        ranges = layer_ranges(split_of(config, len(request.stages), target, dtype))
        slices = [LayerSlice(held, start, stop, taps) for start, stop in ranges]
        slices[-1] = replace(slices[-1], config=held.changed(verification=config.verification))
        routes = [_planned(TARGET, target, slices, request.stages, devices)]
        tokenizer = load_tokenizer(target) if request.middles else None
        for number, asked in enumerate(request.middles, start=1):
            dtype = route_dtype(config.dtype, fast_dtypes(devices, asked.addresses))
            middle = PipelineConfig(model=asked.model, exact=OFF, verification=DRAFT_NODE)
            content, model = WholeModel.matching(
                middle.changed(dtype=dtype),
                tokenizer,
                vocab_size=int(target.config.vocab_size),
                hub=self._config.weights.hub,
            )
            parts = content.parts(len(asked.addresses))
            routes.append(_planned(number, model, parts, asked.addresses, devices))
        return routes

    def goal(self, config: PipelineConfig, opened: OpenedTarget, dtypes: Mapping[str, Sequence[str]]) -> Goal:
        """Return what a plan for the target is to be for.

        dtypes: by name, those that each stage computes fast.

        Raises:
            BadRequestError: when a plan does not know layers of this kind.
        """
        checkpoint = opened.checkpoint
        dtype = route_dtype(config.dtype, {self._device: self._compute.best.dtypes, **dtypes})
        sizes = from_config(config.model, checkpoint.config).model_copy(update={"dtype": dtype})
        settings = config.changed(dtype=dtype, drafter=None, split=(), verification=DRAFT_NODE)
        held = LayerSlice(settings, 1, 2).weight_bytes(checkpoint)
        quant = cast("Quantisation", opened.quant)
        if quant == "none":
            ((layer, _),) = sizes.kinds(1, 2)
            quant = like_quant(held / layer.weights)
        context = min(self._config.memory.kv_tokens, max_positions(checkpoint.config))
        lookup = set(config.drafters) <= {NGRAM}
        return Goal(sizes, quant, context=context, lookup=lookup)

    def load_draft_models(self, target: PlannedRoute, config: PipelineConfig) -> DraftModels:
        """Admit and load the LM head and the drafter for the target's route.

        Raises CapacityError when they do not fit the memory, and what DraftModels.load raises.
        """
        checkpoint, dtype, drafters = target.checkpoint, target.dtype, config.drafters
        device = self._compute.best.device
        graphs = self._config.agent.records_on(device)
        quant = checkpoint_quant(checkpoint, config.quant)
        title = f"the LM head of {config.model} with the drafter {drafter_label(drafters)}"

        def admitted(form: DrafterFormat) -> int:
            """Return the bytes of the weights in this form; raise CapacityError when they do not fit."""
            weights, row_bytes = required_memory(
                checkpoint, drafters, dtype, device, cuda_graphs=graphs, form=form, quant=quant
            )
            admit(
                title,
                self._device,
                weights=weights + store_bytes(config.answer_store),
                row_bytes=row_bytes,
                max_rows=max_positions(checkpoint.config),
                settings=self._config.memory,
                memory=read_memory_of(device, self._config.memory),
            )
            return weights

        form, weights = first_that_fits(DrafterFormat.of(config), admitted)
        models = within_memory(
            f"{title}, with {gib(weights)} of weights, does not fit on device {self._device}",
            device,
            lambda: DraftModels.load(
                checkpoint,
                drafters,
                dtype,
                device,
                cuda_graphs=self._config.agent.cuda_graphs,
                form=form,
                state=state_dir(),
                quant=quant,
                quant_cache=self._quant_cache(),
                answer_tokens=config.answer_store,
            ),
            lambda: None,
        )
        if target.exact:
            models.make_exact(required=config.exact == ON)
        release_freed_memory()
        return models

    @staticmethod
    def draw_seconds(models: DraftModels) -> float:
        """Return the seconds in which this device draws the tokens after a few rows."""
        return draw_seconds(models.executor.head)

    def share_quantised(self, route: PlannedRoute, manifest: Manifest, local_weights: LocalWeights) -> str:
        """Give the quantised weights of a route that this device's cache has.

        May be called in any thread. Returns the id of their list, "" if there are none.
        """
        keys = [
            key
            for stage in route.stages
            for key in quantised_keys(route.checkpoint, manifest, stage.content.quantised).values()
        ]
        listed, ranges = list_quantised(keys, self._quant_cache())
        if not listed.entries:
            return ""
        local_weights.give(listed.content, ranges)
        return listed.id

    def _quant_cache(self, opened: OpenedModel | None = None) -> QuantCache:
        given = opened.quantised_paths if opened is not None else {}
        return QuantCache.configured(self._config.cache.dir, self._config.cache.gib, given)


def first_that_fits(
    wanted: DrafterFormat, admitted: Callable[[DrafterFormat], int]
) -> tuple[DrafterFormat, int]:
    """Return the wanted form of the drafters, or the largest smaller form that fits, and its bytes.

    `admitted` returns the bytes of the weights in a form, and raises CapacityError when they do not fit.

    Raises:
        CapacityError: that of the wanted form, when no form fits.
    """
    try:
        return wanted, admitted(wanted)
    except CapacityError:
        for form in wanted.in_less_memory():
            with contextlib.suppress(CapacityError):
                return form, admitted(form)
        raise


def plans_exact(config: PipelineConfig, devices: Iterable[str]) -> bool:
    """Return whether the devices of a pipeline are asked to compute exact rows.

    With "auto" they are where that costs little on all of them, and for a KV cache that only exact attention
    reads.

    Args:
        model: the target's transformers config.
        devices: torch's name of each compute device.
    """
    if config.exact != AUTO:
        return config.exact == ON
    if config.kv != NATIVE:
        return True
    return all(resolve_exact("auto", device.partition(":")[0]) for device in devices)


def split_of(config: PipelineConfig, stages: int, target: Checkpoint, dtype: str) -> list[int]:
    """Return the layers of each stage.

    Without a split in the settings they are as even as possible, with fewer beside an LM head on the last
    stage, by the bytes that are read for a row.

    Args:
        dtype: the one that was chosen.

    Raises:
        BadRequestError: when the split does not fit the stages and the model.
    """
    layers = int(target.config.num_hidden_layers)
    if config.split:
        return check_split(list(config.split), layers, stages)
    if config.verification == DRAFT_NODE:
        return even_split(layers, stages)
    layer = LayerSlice(config.changed(dtype=dtype, verification=DRAFT_NODE), 1, 2)
    head = layer.head_bytes(target) / layer.weight_bytes(target)
    return split_beside_head(layers, stages, head, surely=config.verification == LAST_STAGE)


def route_dtype(asked: str, devices: Mapping[str, Sequence[str]]) -> str:
    """Return the dtype of a route: what is asked for, or with "auto" the best of its devices.

    devices: by name, the dtypes that are fast there.
    """
    return negotiate_dtype(devices) if asked == AUTO else asked


def fast_dtypes(devices: Mapping[str, pb.Device], addresses: Iterable[str]) -> dict[str, Sequence[str]]:
    """Return the dtypes that the devices at these addresses compute fast, by address."""
    return {address: tuple(devices[address].compute.dtypes) for address in addresses}


def _planned(
    number: int,
    checkpoint: Checkpoint,
    contents: Sequence[StageContent],
    addresses: Sequence[str],
    devices: Mapping[str, pb.Device],
) -> PlannedRoute:
    stages = tuple(
        PlannedStage(
            address,
            content,
            content.row_bytes(checkpoint, cuda_graphs=devices[address].compute.cuda_graphs),
            devices[address].name,
            devices[address].memory_available,
        )
        for address, content in zip(addresses, contents, strict=True)
    )
    return PlannedRoute(number, checkpoint, stages)
