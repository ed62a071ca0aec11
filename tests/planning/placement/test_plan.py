"""Plans of real models over boards that are shipped as profiles."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flowedge.cli.main import run
from flowedge.core.errors import BadRequestError, CapacityError
from flowedge.planning.memory_fit import require_fit
from flowedge.planning.placement.fleet import Fleet, read_fleet
from flowedge.planning.placement.goal import Goal
from flowedge.planning.placement.layouts import divisions_of
from flowedge.planning.placement.model_sizes import from_config, model_sizes
from flowedge.planning.placement.plan import best_quant, neighbours, plan
from flowedge.planning.placement.score import profile_of, tokens_per_s
from flowedge.planning.profile import shipped
from flowedge.planning.profile.model import LayerSize, LayerSizes
from testbed.tools.planners.__main__ import best
from testbed.tools.planners.fleets import case
from testbed.tools.planners.rivals import RIVALS

LLAMA = "llama3.1-8b"
TRIED = 1.03  # not every layout is tried on the virtual clock
BOARDS = """
devices:
  kitchen: orin-nano-8gb
  desk: {profile: pc-8core, memory_gib: 12}
  pi: raspberry-pi-5
links:
  default: {profile: gigabit, latency_ms: 0.3}
  others:
    - {between: [kitchen, pi], profile: wifi5}
"""


def fleet_of(*names: str) -> Fleet:
    boards = {f"{name}-{number}": shipped.device(name) for number, name in enumerate(names)}
    return Fleet(boards, shipped.link("gigabit"), {})


@pytest.mark.proof
def test_a_board_that_would_slow_the_answer_down_is_left_out() -> None:
    boards = fleet_of("pc-rtx3060-12gb", *["orin-nano-8gb"] * 3)
    made = plan(Goal(shipped.model(LLAMA), "nf4"), boards)
    assert made.best.layout.stages == ("pc-rtx3060-12gb-0",), "the others would slow it down as stages"
    alone = plan(Goal(shipped.model(LLAMA), "nf4"), fleet_of("pc-rtx3060-12gb"))
    assert alone.best.layout.devices == {"pc-rtx3060-12gb-0"}, "one device alone is a plan, too"
    assert made.best.tokens_per_s >= alone.best.tokens_per_s
    assert len(made.left_out) >= 2
    for each in made.left_out:
        assert each.tokens_per_s is not None
        assert each.tokens_per_s < made.best.tokens_per_s * 1.005
        assert "with it" in each.why


@pytest.mark.proof
def test_equal_boards_share_the_layers_and_drafts_pay() -> None:
    goal, fleet = Goal(shipped.model(LLAMA), "nf4"), fleet_of(*["orin-nano-8gb"] * 4)
    made = plan(goal, fleet)
    assert sorted(made.best.layout.split) == [10, 11, 11]
    assert made.best.tokens_per_s > 1.2 * made.plain_tokens_per_s
    assert all(each.tokens_per_s <= made.best.tokens_per_s * 1.005 for each in made.others)
    for each in (made.best, *made.others):
        require_fit(each.pipeline, goal.rows)
    assert tokens_per_s(made.best.pipeline, goal) == made.best.tokens_per_s, "the clock repeats itself"


def test_layers_move_between_neighbours() -> None:
    assert neighbours((3, 1, 4), 2) == [(1, 3, 4), (3, 3, 2)]
    assert neighbours((5,), 1) == []


@pytest.mark.proof
def test_layers_are_moved_where_bounds_do_not_find_the_best_division() -> None:
    """Of a fleet whose best draft node is a stage as well, which computes at less than half its speed."""
    made = case(6, most_devices=2)
    goal, fleet = made.goal, made.fleet
    planned = plan(goal, fleet).best
    leader, stages = planned.layout.draft_node, planned.layout.stages
    assert leader == stages[-1]
    for split in neighbours(planned.layout.split, 1):
        for layout in divisions_of(goal, fleet, leader, stages, split):
            try:
                pipeline = profile_of(layout, goal, fleet)
            except CapacityError:  # a layer more does not fit there
                continue
            assert tokens_per_s(pipeline, goal) <= 1.05 * planned.tokens_per_s


@pytest.mark.proof
def test_a_drafter_that_is_never_right_is_no_help() -> None:
    goal = Goal(shipped.model(LLAMA), "nf4", hits=(0.0,))
    made = plan(goal, fleet_of("orin-nano-8gb", "orin-nano-8gb", "orin-nano-8gb"))
    assert made.best.tokens_per_s < 1.05 * made.plain_tokens_per_s


def test_the_best_quantisation_that_fits_is_taken() -> None:
    goal = Goal(shipped.model(LLAMA))
    assert best_quant(goal, fleet_of(*["orin-nano-8gb"] * 5), ("none", "nf4")).quant == "none"
    assert best_quant(goal, fleet_of(*["orin-nano-8gb"] * 3), ("none", "nf4")).quant == "nf4"
    with pytest.raises(CapacityError, match=r"GiB are missing\. Add a device"):
        best_quant(goal, fleet_of("orin-nano-8gb"), ("none",))
    with pytest.raises(CapacityError, match="no device has room for the draft node"):
        small = shipped.device("orin-nano-8gb").model_copy(update={"memory_gib": 0.75})
        boards = Fleet(dict.fromkeys("abcd", small), shipped.link("gigabit"), {})
        plan(Goal(shipped.model("llama3.2-1b"), context=512), boards)


def test_a_plan_is_printed_and_is_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "boards.yaml"
    path.write_text(BOARDS)
    command = ["plan", "llama3.2-3b", "--devices", str(path), "--quant", "int4"]
    assert run([*command, "--json"]) == 0
    made: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert made["quant"] == "int4"
    ends = [stage["layers"] for stage in made["stages"]]
    assert [first for first, _ in ends] == [0, *[end for _, end in ends[:-1]]]
    assert ends[-1][1] == 28
    assert {"pi"} <= {each["device"] for each in made["left_out"]}
    assert made["another"].keys() == {"kitchen", "desk", "pi"}, "one device of each kind"
    assert min(made["another"].values()) >= made["tokens_per_s"]
    assert made["others"][0].keys() == {"tokens_per_s", "draft_node", "stages", "verification"}
    assert run(command) == 0
    shown = capsys.readouterr().out
    assert f"{made['tokens_per_s']:.1f} tokens/s expected" in shown
    assert "left out: pi, " in shown
    assert "the slowest stage is" in shown


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("orin-nano-8gb", "orin-nano-9gb"), "no profile 'orin-nano-9gb' among devices"),
        (("[kitchen, pi]", "[kitchen, attic]"), "there is no device attic"),
        (("memory_gib: 12", "memory_gib: 0"), "memory_gib"),
        (("devices:", "boards:"), "devices"),
    ],
)
def test_a_wrong_file_is_explained(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    path = tmp_path / "boards.yaml"
    path.write_text(BOARDS.replace(*change))
    with pytest.raises(BadRequestError, match=said):
        read_fleet(path)


def test_what_cannot_be_planned_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "boards.yaml"
    path.write_text(BOARDS)
    for words, said in (
        (["--quant", "int3"], "is none of"),
        (["--drafter", "crystal"], "has the drafters eagle, small_lm, eagle3, not crystal"),
    ):
        assert run(["plan", LLAMA, "--devices", str(path), *words]) == 2
        assert said in capsys.readouterr().err


CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 16,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": True,
}


def test_a_config_alone_gives_the_sizes(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    sizes, known = model_sizes(str(tmp_path)), shipped.model("llama3.2-1b")
    for name in ("layers", "hidden", "intermediate", "heads", "kv_heads", "head_size", "vocab"):
        assert getattr(sizes, name) == getattr(known, name)
    assert (sizes.dtype, sizes.tied_embedding) == ("bfloat16", True)
    with pytest.raises(BadRequestError, match="none of the shipped models"):
        model_sizes(str(tmp_path / "nothing"))


QWEN3_MOE = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_hidden_layers": 48,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "vocab_size": 151936,
}


def test_a_config_of_a_mixture_gives_its_sizes(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_MOE))
    sizes, known = model_sizes(str(tmp_path)), shipped.model("qwen3-30b-a3b")
    assert sizes.model_dump(include=set(LayerSizes.model_fields)) == known.model_dump(
        include=set(LayerSizes.model_fields)
    )
    assert sizes.layers * LayerSize.of(sizes).weights == pytest.approx(29.9e9, rel=0.01)
    assert sizes.layers * LayerSize.of(sizes).weights_of_row == pytest.approx(2.7e9, rel=0.02)
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_MOE | {"mlp_only_layers": [0]}))
    with_dense = model_sizes(str(tmp_path))
    assert [(layer.intermediate, count) for layer, count in with_dense.kinds()] == [(768, 47), (6144, 1)]
    with pytest.raises(BadRequestError, match="kv_lora_rank in their config cannot be planned yet"):
        from_config("m", SimpleNamespace(**CONFIG, kv_lora_rank=512))


@pytest.mark.proof
def test_a_mixture_is_planned_over_boards_none_of_which_holds_it() -> None:
    nano = shipped.device("orin-nano-8gb")
    fleet = Fleet(dict.fromkeys("abcde", nano), shipped.link("gigabit"), {})
    made = plan(Goal(shipped.model("qwen3-30b-a3b"), "int4"), fleet)
    assert sum(made.best.layout.split) == 48 and len(made.best.layout.stages) >= 4
    dense = plan(Goal(shipped.model("qwen2.5-32b"), "int4"), fleet)
    assert made.best.tokens_per_s > 2 * dense.best.tokens_per_s


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(6))
def test_another_device_makes_no_plan_slower(seed: int) -> None:
    made = case(seed, most_devices=4)
    try:
        before = plan(made.goal, made.fleet).best.tokens_per_s
    except CapacityError:
        return
    for profile in ("raspberry-pi-5", "orin-nano-8gb", "pc-rtx3060-12gb"):
        larger = Fleet({**made.fleet.devices, "more": shipped.device(profile)}, made.fleet.link, {})
        assert plan(made.goal, larger).best.tokens_per_s >= before / TRIED


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(3))
def test_no_other_planner_is_faster(seed: int) -> None:
    """Over random fleets; `python -m testbed.tools.planners` tries 60 larger ones."""
    made = case(seed, most_devices=3)
    try:
        planned = plan(made.goal, made.fleet).best.tokens_per_s
    except CapacityError:
        return
    for name, rival in RIVALS.items():
        other = best(made.goal, made.fleet, rival(made.goal, made.fleet))
        assert other is None or other <= planned * TRIED, name
