"""Measures a device: layers of a model, a draft node's work, what surrounds computing, layers of other sizes.

Everything is computed as agents compute it, by the same executors and with as many threads.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch

from flowedge.core.errors import BadRequestError, CapacityError
from flowedge.core.pipeline_config import AUTO, Quantisation
from flowedge.core.plain_text import counted
from flowedge.device.compute import processor_name, try_device
from flowedge.device.memory import read_memory_of
from flowedge.engine.executors.draft_models import DraftModels
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.cuda_graphs.static_decoding import capture_decoding
from flowedge.models.exact.option import resolve_exact
from flowedge.models.host.payloads import payload_dtype, torch_dtype
from flowedge.models.loading import checkpoint_quant
from flowedge.models.quant.quantize import check_available
from flowedge.planning.measuring.added_times import PLAIN, measure_added_times
from flowedge.planning.measuring.draft_timing import draft_times, verify_times
from flowedge.planning.measuring.generic_layers import generic_block, llama_like, shapes_within
from flowedge.planning.measuring.layer_timing import (
    LayerSeconds,
    attention_ms,
    compared_times,
    forward_seconds,
    update_s,
    without_forward,
)
from flowedge.planning.measuring.sized_model import sized_times
from flowedge.planning.profile.device import MeasuredTimes
from flowedge.planning.profile.measurement import (
    DeviceMeasurement,
    LayerTime,
    MeasureOptions,
    ModelTimes,
    milliseconds,
    short,
)
from flowedge.planning.profile.model import LayerSizes
from flowedge.strategies.choice import STRATEGIES
from flowedge.version import VERSION

ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
FEW = 3  # the first counts of ROWS, for which a forward's time beside its layers is a large part
CACHED_ROWS = 256
LITTLE_CACHED = 16  # cached rows that hardly take time
TIMED_LAYERS = 4  # so that the work of a block is spread over layers as on a stage
CACHES = 64 << 20  # bytes; small layers are timed in as many as a processor's caches may hold
COMPARED: tuple[Quantisation, ...] = ("none", "int8", "nf4", "int4", "w8a16")
COMPARED_HIDDEN = {"cpu": 1024, "cuda": 4096}  # nf4 takes a second a layer of 4096 on a CPU
COMPARED_LAYERS = 2

OnStep = Callable[[str], None]
Record = Callable[[LayerBlock], None]


def profile_device(
    options: MeasureOptions,
    name: str,
    kind: str,
    tell: OnStep,
    capture: Record = capture_decoding,
) -> DeviceMeasurement:
    """Measure this device; takes from seconds to minutes.

    Args:
        tell: called with what is done next, before each timing; an exception of it ends the measurement.
        capture: lets a block record its small forwards, where the options ask for that.

    Raises:
        BadRequestError: when the device has no CUDA, or a profile cannot describe the model.
        CheckpointError: when the model cannot be read.
        CapacityError: when not even one layer of the model fits.
    """
    torch.set_num_threads(options.threads)
    device = torch.device(options.compute)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BadRequestError("this device has no CUDA that torch can use; measure the CPU")
    available = read_memory_of(options.compute).available
    record = capture if options.cuda_graphs else without_graphs
    quantised: dict[Quantisation, tuple[LayerTime, ...]] = {}
    problems: dict[Quantisation, str] = {}
    if options.sizes is not None:
        model = sized_times(options, options.sizes, device, available, tell, record)
        strategies: Collection[str] = (AUTO, PLAIN)
    else:
        tell(f"opening {options.model}")
        checkpoint = Checkpoint.open(options.model)
        model = model_times(options, checkpoint, device, available, tell, record)
        quantised, problems = _quantised_times(options, device, tell, record)
        strategies = STRATEGIES
    row_dtype = payload_dtype(torch_dtype(options.dtype))
    added = measure_added_times(model.times.hidden, row_dtype, strategies, tell)
    return DeviceMeasurement(
        name=name,
        kind=kind,
        processor=_processor(device),
        version=VERSION,
        torch_version=str(torch.__version__),
        dtype=options.dtype,
        threads=options.threads,
        repeats=options.repeats,
        memory_available=available,
        model=model,
        added=added,
        layers=_generic_times(options, device, available, tell, record),
        quantised=quantised,
        quant_problems=problems,
    )


def model_times(
    options: MeasureOptions,
    checkpoint: Checkpoint,
    device: torch.device,
    available: int,
    tell: OnStep,
    record: Record,
) -> ModelTimes:
    """Time the layers, the LM head and the drafter of a model; arguments and errors as in `profile_device`.

    available: bytes of memory, of which layers take at most half.
    """
    config = checkpoint.config
    sizes = LayerSizes(**LayerSizes.sizes_in(config))
    cached = max(0, min(CACHED_ROWS, int(config.max_position_embeddings) - max(ROWS)))
    alike = sizes.states is None and sizes.dense is None
    timed = _num_timed(options, checkpoint, available) if alike else 1

    def layer_seconds(layers: int, rows: Sequence[int], seen: int) -> LayerSeconds:
        block = _load_layers(options, checkpoint, device, layers)
        words = f"{counted(layers, 'layer')} of {options.model} after {counted(seen, 'row')}"
        return compared_times(
            block, rows, seen, options.repeats, lambda text: tell(f"{words}, {text}"), record
        )

    layer = layer_seconds(timed, ROWS, cached)
    single = layer_seconds(1, ROWS[:FEW], cached).used if timed > 1 else {}
    forward = forward_seconds(layer.used, single, timed)
    short_context = layer_seconds(timed, ROWS, min(LITTLE_CACHED, cached)).used
    states: dict[int, float] = {}
    step = 0.0
    if sizes.states is not None:
        block = _load_layers(options, checkpoint, device, 1, recurrent=True)
        words = f"a layer with a state of {options.model}"
        states = compared_times(
            block, ROWS, 0, options.repeats, lambda text: tell(f"{words}, {text}"), record
        ).used
        step = update_s(block, options.repeats)
        del block
    tell("the LM head")
    executor = DraftModels.load(
        checkpoint,
        options.drafters,
        options.dtype,
        device,
        cuda_graphs=options.cuda_graphs,
        quant=checkpoint_quant(checkpoint, options.quant),
    ).executor
    verify = verify_times(executor, options.repeats)
    draft = None
    if executor.drafter is not None:
        tell("the drafter")
        draft = draft_times(executor, cached, options.repeats)
    times = {
        **sizes.model_dump(),
        "vocab": int(config.vocab_size),
        "dtype": options.dtype,
        "quant": checkpoint_quant(checkpoint, options.quant),
        "cached_rows": cached,
        "forward_ms": short(forward * 1e3),
        "layer_ms": milliseconds(without_forward(layer.used, forward, timed)),
        "states_ms": milliseconds(states) or None,
        "step_ms": short(step * 1e3),
        "attention_ms": attention_ms(layer.used, short_context, cached),
        "layer_by_layer_ms": milliseconds(without_forward(layer.layer_by_layer, forward, timed)) or None,
        "verify_ms": milliseconds(verify),
        "draft": draft,
    }
    return ModelTimes(
        model=options.model,
        num_layers=int(config.num_hidden_layers),
        timed_layers=timed,
        tied_embedding=bool(config.tie_word_embeddings),
        times=MeasuredTimes.model_validate(times),
    )


def _num_timed(options: MeasureOptions, checkpoint: Checkpoint, available: int) -> int:
    """Return how many layers are timed: TIMED_LAYERS, or more small ones, if they fit in half the memory."""
    dtype, total = torch_dtype(options.dtype), int(checkpoint.config.num_hidden_layers)
    middle = total // 2
    layer = LayerBlock.required_bytes(checkpoint, middle, middle + 1, quant=options.quant, dtype=dtype)
    if layer > available:
        raise CapacityError(
            f"a layer of {options.model} takes {layer / 2**20:.0f} MiB, and {available / 2**20:.0f} MiB are "
            "free; measure where there is more memory"
        )
    wanted = max(TIMED_LAYERS, CACHES // layer)
    return int(max(1, min(wanted, total - 2, available // (2 * layer))))


def _load_layers(
    options: MeasureOptions,
    checkpoint: Checkpoint,
    device: torch.device,
    layers: int,
    *,
    recurrent: bool = False,
) -> LayerBlock:
    """Load layers from the middle of the model, exact ones where agents compute exact ones by default.

    recurrent: whether a layer with a state is to be the first; of layers of both kinds, one is loaded. Where
        some layers have experts, it is one of them.
    """
    total, dtype = int(checkpoint.config.num_hidden_layers), torch_dtype(options.dtype)
    start = (total - layers) // 2
    architecture = checkpoint.architecture
    if architecture.recurrence is not None or architecture.experts is not None:
        has_experts = architecture.experts is not None and any(architecture.experts.layers)
        alike = [
            each
            for each in range(total)
            if architecture.is_recurrent(each) == recurrent and architecture.has_experts(each) == has_experts
        ]
        start = min(alike, key=lambda index: abs(index - start))
    exact = resolve_exact("auto", device.type)
    return LayerBlock.load(
        checkpoint, start, start + layers, quant=options.quant, dtype=dtype, device=device, exact=exact
    )


def _generic_times(
    options: MeasureOptions, device: torch.device, available: int, tell: OnStep, record: Record
) -> tuple[LayerTime, ...]:
    dtype = torch_dtype(options.dtype)
    stack_bytes = min(options.stack_mib << 20, available // 4)
    found: list[LayerTime] = []
    for sizes, count in shapes_within(stack_bytes, dtype.itemsize):
        tell(f"making {counted(count, 'layer')} of width {sizes.hidden}")
        block = generic_block(sizes, count, dtype, device)
        found += _timed(block, sizes, options.repeats, tell, record)
    return tuple(found)


def _quantised_times(
    options: MeasureOptions, device: torch.device, tell: OnStep, record: Record
) -> tuple[dict[Quantisation, tuple[LayerTime, ...]], dict[Quantisation, str]]:
    """Time layers of one size in each of COMPARED; return also why a quantisation cannot be measured."""
    sizes = llama_like(COMPARED_HIDDEN[device.type])
    repeats = min(options.repeats, 5)
    times: dict[Quantisation, tuple[LayerTime, ...]] = {}
    problems: dict[Quantisation, str] = {}
    # Tried in another process, which bitsandbytes ends when it has no kernel for this GPU.
    known = try_device(str(device)).quant_problems if device.type == "cuda" else {}
    for quant in COMPARED:
        tell(f"layers in {quant}")
        if quant in known:
            problems[quant] = known[quant][:255]
            continue
        try:
            check_available(quant, device)
            block = generic_block(sizes, COMPARED_LAYERS, torch_dtype(options.dtype), device, quant)
            times[quant] = tuple(_timed(block, sizes, repeats, tell, record))
        except (ImportError, RuntimeError, AttributeError, OSError, BadRequestError) as error:
            problems[quant] = f"{type(error).__name__}: {error}"[:255]
    return times, problems


def _timed(
    block: LayerBlock, sizes: LayerSizes, repeats: int, tell: OnStep, record: Record
) -> list[LayerTime]:
    times: LayerSeconds = compared_times(
        block,
        ROWS,
        CACHED_ROWS,
        repeats,
        lambda text: tell(f"a layer of width {sizes.hidden}, {text}"),
        record,
    )
    return [
        LayerTime(
            sizes=sizes,
            rows=rows,
            cached=CACHED_ROWS,
            seconds=seconds,
            layer_by_layer=times.layer_by_layer.get(rows),
        )
        for rows, seconds in times.used.items()
    ]


def without_graphs(block: LayerBlock) -> None:
    """Leave a block as it is."""


def _processor(device: torch.device) -> str:
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))[:255]
    return processor_name()[:255]
