"""Layers with a state are planned by what they take: weights, a state a session, and updates by rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Glm4MoeLiteConfig

from flowedge.core.errors import BadRequestError
from flowedge.engine.jobs import Forward
from flowedge.models.attention.kv_store import kv_row_bytes
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.recurrent.row_states import session_bytes
from flowedge.planning.measuring import profiler, sized_model
from flowedge.planning.measuring.generic_layers import generic_block
from flowedge.planning.measuring.layer_timing import layer_times, update_s
from flowedge.planning.measuring.profiler import model_times, without_graphs
from flowedge.planning.measuring.sized_model import sized_times
from flowedge.planning.memory_fit import stage_parts
from flowedge.planning.placement.drift import slowed
from flowedge.planning.placement.fleet import Fleet
from flowedge.planning.placement.goal import SEGMENT_ROWS, Goal
from flowedge.planning.placement.model_sizes import from_config
from flowedge.planning.placement.plan import plan
from flowedge.planning.profile import shipped
from flowedge.planning.profile.measurement import MeasureOptions
from flowedge.planning.profile.model import (
    ExpertSizes,
    LatentSizes,
    LayerSize,
    LayerSizes,
    ModelProfile,
    StateSizes,
)
from flowedge.planning.profile.pipeline import PipelineProfile
from flowedge.planning.profile_costs import ProfileCosts, updates
from tests.models.tiny_families import make_tiny
from tests.planning.test_profile_costs import DEVICE, LINK, emulation

FAMILIES = ["qwen3_5", "qwen3_5_moe", "lfm2"]
QWEN = shipped.model("qwen3.5-9b", Path())
EVERYWHERE = QWEN.model_copy(update={"states": None})  # attention in all layers
NANO = shipped.device("orin-nano-8gb")


@pytest.fixture(scope="module", params=FAMILIES)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return Checkpoint.open(str(make_tiny(tmp_path_factory.mktemp(request.param), request.param)))


def tail(parents: list[int], rows: int, context: int = 40) -> Forward:
    """The last rows of a draft tail; each is given by the place of its parent in it, -1 for the context."""
    slots = np.array([-1 if parent < 0 else context + parent for parent in parents])
    none = np.zeros(0, dtype=np.int64)
    cached = context + len(parents) - rows
    return Forward("s", cached, none, context, cached, slots, np.zeros(rows, np.int64), np.zeros((rows, 1)))


def matrices(layer: torch.nn.Module) -> int:
    """The weights of a layer that products read."""
    named = layer.named_parameters()
    return sum(
        each.numel() for name, each in named if each.dim() == 2 or name.endswith(("k_b.weight", "v_b.weight"))
    )


def test_the_layers_of_a_config_have_the_weights_of_the_model(checkpoint: Checkpoint) -> None:
    sizes = from_config("m", checkpoint.config)
    recurs = checkpoint.architecture.is_recurrent
    shared = sizes.experts is not None
    for index, layer in enumerate(LayerBlock.load(checkpoint, 0, sizes.layers).layers):
        ((kind, count),) = sizes.kinds(index, index + 1)
        assert (kind.recurs, count) == (recurs(index), 1)
        gate = sizes.hidden if shared else 0  # of the shared expert
        assert abs(kind.weights - matrices(layer)) <= gate
    totals = sizes.kinds()
    assert sum(count for _, count in totals) == sizes.layers and len(totals) == 2


@pytest.mark.parametrize("family", ["lfm2_moe", "glm4_moe_lite", "glm4_moe_lite-yarn"])
def test_layers_without_experts_and_latent_attention_are_counted_as_they_are(
    family: str, tmp_path: Path
) -> None:
    checkpoint = Checkpoint.open(str(make_tiny(tmp_path, family)))
    architecture = checkpoint.architecture
    sizes = from_config("m", checkpoint.config).model_copy(update={"dtype": "float32"})
    assert sizes.dense is not None and sizes.experts is not None
    shared = sizes.experts.count - (architecture.experts.count if architecture.experts else 0)
    for index, layer in enumerate(LayerBlock.load(checkpoint, 0, sizes.layers).layers):
        ((kind, _),) = sizes.kinds(index, index + 1)
        assert (kind.is_dense, kind.recurs) == (not layer.has_experts, layer.is_recurrent)
        assert kind.weights - matrices(layer) == (0 if kind.is_dense else shared * sizes.hidden), "of routers"
    pipeline = emulation(model=sizes, stages=(DEVICE,) * 2, split=(1, sizes.layers - 1))
    for stage, (start, stop) in enumerate(((0, 1), (1, sizes.layers))):
        row = kv_row_bytes(architecture.cached_heads(start, stop), torch.float32)
        assert stage_parts(pipeline, stage, 30)["KV of 30 rows"] == 30 * row


@pytest.mark.proof
def test_a_glm_flash_is_planned() -> None:
    sizes = from_config("GLM-4.7-Flash", Glm4MoeLiteConfig())
    (experts, many), (dense, one) = sizes.kinds()
    assert (many, one) == (46, 1) and dense.is_dense and not experts.is_dense
    assert many * experts.weights + dense.weights == pytest.approx(29.3e9, rel=0.01)
    assert many * experts.weights_of_row + dense.weights_of_row == pytest.approx(3.3e9, rel=0.05)
    assert experts.kv_bytes_per_row == 2 * 576 * sizes.stored_bytes
    fleet = Fleet(dict.fromkeys("abcd", NANO), shipped.link("gigabit"), {})
    assert sum(plan(Goal(sizes, "int4"), fleet).best.layout.split) == 47


def test_a_stage_holds_keys_of_attention_alone_and_a_state_a_session(
    checkpoint: Checkpoint,
) -> None:
    """As stages themselves count with."""
    sizes = from_config("m", checkpoint.config).model_copy(update={"dtype": "float32"})
    net, recurs = checkpoint.architecture.recurrence, checkpoint.architecture.is_recurrent
    assert net is not None
    pipeline = emulation(model=sizes, stages=(DEVICE,) * 2, split=(1, sizes.layers - 1))
    for stage, layers in enumerate((range(1), range(1, sizes.layers))):
        parts = stage_parts(pipeline, stage, 30, sessions=3)
        attending = sum(not recurs(index) for index in layers)
        row = kv_row_bytes([checkpoint.architecture.usual_heads], torch.float32)
        assert parts["KV of 30 rows"] == attending * row * 30
        assert parts.get("states", 0) == (len(layers) - attending) * session_bytes(net) * 3


def test_a_board_holds_so_many_layers_wherever_they_begin() -> None:
    goal = Goal(QWEN, "int4", context=8192, sessions=8)
    for gib in (1, 2, 3.3):
        device = NANO.model_copy(update={"memory_gib": gib})
        most = goal.most_layers(device)
        assert 0 < most < QWEN.layers
        for start in range(QWEN.layers - most + 1):
            split = [count for count in (start, most, QWEN.layers - most - start) if count]
            pipeline = emulation(
                model=QWEN,
                quant="int4",
                stages=(device,) * len(split),
                split=tuple(split),
                links=(LINK,) * (len(split) + 1),
            )
            stage = 1 if start else 0
            held = sum(stage_parts(pipeline, stage, goal.rows, goal.sessions).values())
            beside = goal.table_bytes if stage == 0 else 0
            assert held - beside <= gib * 2**30


def test_a_long_context_fits_where_attention_in_all_layers_would_not() -> None:
    fleet = Fleet(dict.fromkeys("abc", NANO), shipped.link("gigabit"), {})
    goal = Goal(QWEN, "int4", context=65536, sessions=2)
    everywhere = replace(goal, model=EVERYWHERE)
    (layer, attending), (_, recurrent) = QWEN.kinds()
    assert (attending, recurrent) == (8, 24)
    saved = (everywhere.layer_bytes - goal.layer_bytes) * QWEN.layers
    assert saved > 0.9 * recurrent * layer.kv_bytes_per_row * goal.rows
    assert sum(map(everywhere.most_layers, fleet.devices.values())) < QWEN.layers
    assert sum(plan(goal, fleet).best.layout.split) == QWEN.layers


def stage_s(pipeline: PipelineProfile, job: Forward) -> float:
    return ProfileCosts(pipeline).stage_batch(0, [job])


def test_the_time_of_a_state_does_not_grow_with_the_context() -> None:
    def of(layers: tuple[int, int]) -> PipelineProfile:
        return emulation(model=QWEN, quant="int4", stages=(NANO,) * 2, split=layers)

    chain = list(range(-1, 3))
    near, far = tail(chain, 4, context=10), tail(chain, 4, context=100_000)
    states, both = of((3, 29)), of((4, 28))
    assert stage_s(states, far) == stage_s(states, near)
    grown = stage_s(both, far) - stage_s(both, near)
    alone = replace(of((1, 31)), model=EVERYWHERE)
    assert grown == pytest.approx(stage_s(alone, far) - stage_s(alone, near)), "of one layer in four"
    without = Goal(EVERYWHERE, "int4").layer_time_s(NANO)
    segment = tail(list(range(-1, SEGMENT_ROWS - 1)), SEGMENT_ROWS)
    with_state = ProfileCosts(states).batch_layer(0, [segment])
    assert Goal(QWEN, "int4").layer_time_s(NANO) == pytest.approx(0.75 * with_state + 0.25 * without)


def test_rows_take_the_updates_of_their_ancestors_again() -> None:
    chain = list(range(-1, 15))
    leaves = [*chain, *range(16)]
    assert updates(tail(chain, 16)) == 16
    assert updates(tail(leaves, 16)) == 32, "one leaf below each row of a chain"
    assert updates(tail([*chain, 15], 1)) == 17
    assert updates(tail([-1] * 16, 16)) == 16
    assert updates(tail([*chain, -1], 1)) == 1, "what is on no path of a row is not updated"
    pipeline = emulation(model=QWEN, quant="int4", stages=(NANO,) * 2, split=(3, 29))
    state = QWEN.kinds(0, 1)[0][0].state_bytes
    assert state == 32 * 128 * 128 * 4
    longer = stage_s(pipeline, tail(leaves, 16)) - stage_s(pipeline, tail(chain, 16))
    assert longer == pytest.approx(3 * 16 * 2 * state / NANO.bytes_per_s), "each is read and written"


@pytest.mark.parametrize(
    "states",
    [
        StateSizes(layers=(0, 1), inputs=4, key_heads=2, value_heads=4, key_size=16, value_size=16),
        StateSizes(layers=(0, 1), inputs=3),
    ],
    ids=["delta net", "short convolution"],
)
@pytest.mark.parametrize("recurrent", [False, True])
def test_made_layers_of_each_kind_have_their_sizes_and_are_timed(states: StateSizes, recurrent: bool) -> None:
    gate = bool(states.key_heads)
    sizes = LayerSizes(
        hidden=64, intermediate=96, heads=4, kv_heads=2, head_dim=16, states=states, output_gate=gate
    )
    block = generic_block(sizes, 2, torch.float32, torch.device("cpu"), exact=True, recurrent=recurrent)
    assert block.num_layers == 2
    for layer in block.layers:
        assert matrices(layer) == LayerSize(**sizes.model_dump(), recurs=recurrent).weights
    times = layer_times(block, [1, 5], 0 if recurrent else 8, 1, lambda _: None)
    assert times.keys() == {1, 5} and min(times.values()) > 0
    assert not recurrent or update_s(block, 3) >= 0


@pytest.mark.parametrize("experts", [None, ExpertSizes(count=5, chosen=3)])
def test_made_layers_of_latent_attention_have_their_sizes(experts: ExpertSizes | None) -> None:
    latent = LatentSizes(rank=32, rotated=8, plain=12, value=16, query_rank=24)
    sizes = LayerSizes(
        hidden=64, intermediate=96, heads=4, kv_heads=1, head_dim=40, latent=latent, experts=experts
    )
    block = generic_block(sizes, 2, torch.float32, torch.device("cpu"), exact=True)
    for layer in block.layers:
        assert LayerSize(**sizes.model_dump()).weights - matrices(layer) == (0 if experts is None else 64)
    assert min(layer_times(block, [1, 5], 8, 1, lambda _: None).values()) > 0


def small(states: StateSizes | None) -> ModelProfile:
    sizes = {"hidden": 64, "intermediate": 96, "heads": 4, "kv_heads": 2, "head_dim": 16, "vocab": 64}
    named = {"title": "m", "source": "", "drafters": {"eagle": {"kind": "eagle"}}, "dtype": "float32"}
    return ModelProfile.model_validate({**sizes, **named, "layers": 4, "states": states})


def test_a_device_times_a_layer_of_each_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sized_model, "ROWS", (1, 4))
    delta = StateSizes(layers=(0, 1, 2), inputs=4, key_heads=2, value_heads=4, key_size=16, value_size=16)
    model = small(delta)
    options = MeasureOptions(model="m", repeats=1, sizes=model)
    cpu = torch.device("cpu")
    found = sized_times(options, model, cpu, 1 << 30, lambda _: None, without_graphs).times
    assert found.states_ms is not None and found.states_ms.keys() == {1, 4}
    assert found.holds_for_layers(model, "none")
    assert found.holds_for_layers(small(delta.model_copy(update={"layers": (1,)})), "none"), "of other layers"
    other = delta.model_copy(update={"value_heads": 2})
    assert not any(found.holds_for_layers(small(each), "none") for each in (None, other))
    found = found.model_copy(update={"forward_ms": 0.0, "step_ms": 0.5})
    board = DEVICE.model_copy(update={"measured": found})
    goal = Goal(model)
    mean = (3 * found.states_ms[4] + found.layer_ms[4]) / 4e3
    assert goal.layer_time_s(board, 4) == pytest.approx(mean)
    costs = ProfileCosts(emulation(model=model, stages=(board,) * 2, split=(3, 1)))
    bush = tail([-1, 0, 1, 2, 0, 1, 2, 3], 4)
    assert updates(bush) == 8
    wanted = 3 * (found.states_ms[4] + 4 * 0.5) / 1e3
    assert costs.stage_batch(0, [bush]) == pytest.approx(wanted)
    assert goal.layer_time_s(slowed(board, 2.0, goal), 4) == pytest.approx(2 * mean)


def test_a_checkpoint_has_a_layer_of_each_kind_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiler, "ROWS", (1, 4, 16))
    checkpoint = Checkpoint.open(str(make_tiny(tmp_path, "qwen3_5")))
    options = MeasureOptions(model=str(checkpoint.directory), repeats=1)
    made = model_times(
        options, checkpoint, torch.device("cpu"), 1 << 30, lambda _: None, profiler.without_graphs
    )
    assert made.timed_layers == 1 and made.times.states_ms is not None
    assert made.times.states_ms.keys() == made.times.layer_ms.keys() == {1, 4, 16}
    sizes = from_config("m", checkpoint.config).model_copy(update={"dtype": "float32"})
    assert made.times.holds_for_layers(sizes, "none")


def test_states_without_attention_or_of_other_kinds_are_refused() -> None:
    net = StateSizes(layers=(0,), inputs=3).net(64)
    with pytest.raises(BadRequestError, match="models without attention cannot be planned yet"):
        StateSizes.of(replace(net, layers=(True, True)))
    assert StateSizes.of(replace(net, layers=(False, False))) is None
    with pytest.raises(ValueError, match="layer 9 has a state, and there are 4 layers"):
        small(StateSizes(layers=(9,), inputs=3))
