"""A plan as `flowedge plan` shows it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any

from flowedge.cli.output import say_json
from flowedge.cli.screens.tables import PlainTable, line, output_console, plain_table
from flowedge.core.errors import BadRequestError
from flowedge.core.pipeline_config import Quantisation
from flowedge.core.plain_text import counted
from flowedge.planning.choices import forward_of, states_of
from flowedge.planning.memory_fit import draft_node_parts, stage_parts
from flowedge.planning.placement.fleet import Fleet, read_fleet
from flowedge.planning.placement.goal import SEGMENT_ROWS, Goal
from flowedge.planning.placement.layouts import is_exact
from flowedge.planning.placement.model_sizes import model_sizes
from flowedge.planning.placement.plan import Plan, ScoredLayout, best_quant, plan, with_another
from flowedge.planning.profile_costs import ProfileCosts

QUANTS: tuple[Quantisation, ...] = ("none", "int8", "nf4")  # that are tried, the best quality first
BAR = 20  # columns of a full memory


def show_plan(
    model: str,
    devices: Path,
    *,
    quant: Quantisation | None,
    drafter: str,
    context: int,
    sessions: int,
    as_json: bool,
) -> None:
    """Print the plan of a model over the devices of a file.

    Raises:
        BadRequestError: when the file, the model or the drafter cannot be used.
        CapacityError: when the model does not fit.
    """
    sizes, fleet = model_sizes(model), read_fleet(devices)
    if drafter and drafter not in sizes.drafters:
        raise BadRequestError(f"{sizes.title} has the drafters {', '.join(sizes.drafters)}, not {drafter}")
    goal = Goal(sizes, drafter=drafter, context=context, sessions=sessions)
    made = plan(best_quant(goal, fleet, QUANTS if quant is None else [quant]), fleet)
    another = with_another(made, fleet)
    if as_json:
        say_json(content(made, another))
    else:
        _print(made, fleet, another)


def content(made: Plan, another: Mapping[str, float]) -> dict[str, Any]:
    """Return the plan for a JSON document.

    another: by a device of each kind, the tokens a second with one more of its kind.
    """
    return {
        **_layout(made.best),
        "plain_tokens_per_s": round(made.plain_tokens_per_s, 2),
        "quant": made.goal.quant,
        "drafter": made.goal.drafter_name,
        "left_out": [
            {"device": each.device, "tokens_per_s": _rounded(each.tokens_per_s), "why": each.why}
            for each in made.left_out
        ],
        "others": [_layout(each) for each in made.others],
        "another": {name: round(tokens, 2) for name, tokens in another.items()},
    }


def _layout(scored: ScoredLayout) -> dict[str, Any]:
    layout = scored.layout
    ends = list(accumulate(layout.split))
    return {
        "tokens_per_s": round(scored.tokens_per_s, 2),
        "draft_node": layout.draft_node,
        "stages": [
            {"device": name, "layers": [end - count, end]}
            for name, count, end in zip(layout.stages, layout.split, ends, strict=True)
        ],
        "verification": scored.pipeline.verification,
    }


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 2)


def _print(made: Plan, fleet: Fleet, another: Mapping[str, float]) -> None:
    console, best, goal = output_console(), made.best, made.goal
    faster = best.tokens_per_s / made.plain_tokens_per_s
    console.print(
        line(
            f"{goal.model.title} in {best.pipeline.format_name}, {goal.drafter_name} drafts: "
            f"{best.tokens_per_s:.1f} tokens/s expected, {faster:.2f} times as many as without drafts"
        )
    )
    console.print(line(_limit(best)))
    console.print()
    console.print(_table(best, goal, fleet))
    if made.others:
        console.print()
        console.print(_others(made))
    for each in made.left_out:
        tokens = "" if each.tokens_per_s is None else f" ({each.tokens_per_s:.1f} tokens/s)"
        console.print(line(f"left out: {each.device}, {each.why}{tokens}"))
    more = ", ".join(f"like {name} {tokens:.1f}" for name, tokens in another.items())
    console.print(line(f"tokens/s with one more device: {more}"))
    bound = (
        ""
        if is_exact(fleet)
        else "; not every set of devices, and not each as the first or last stage, was tried"
    )
    scored, found = made.tried
    tried = f"{scored} of {found} layouts that none other beats were tried on the virtual clock"
    console.print(line(f"{tried}{bound}"))


def _limit(best: ScoredLayout) -> str:
    """Return what takes the time of a segment."""
    pipeline, costs = best.pipeline, ProfileCosts(best.pipeline)
    forward, states = forward_of(SEGMENT_ROWS), states_of(SEGMENT_ROWS)
    places = range(pipeline.num_stages)
    stages = [1e3 * costs.stage_job(stage, forward) for stage in places]
    links = 1e3 * sum(costs.transfer(sender, states) + costs.latency(sender) for sender in places)
    slowest = max(places, key=lambda stage: stages[stage])
    head = 1e3 * costs.verify(SEGMENT_ROWS)
    return (
        f"a segment of {SEGMENT_ROWS} tokens takes {sum(stages):.0f} ms on the stages, {links:.0f} ms on "
        f"links and {head:.0f} ms in the LM head; the slowest stage is "
        f"{best.layout.stages[slowest]} with {stages[slowest]:.0f} ms"
    )


def _table(best: ScoredLayout, goal: Goal, fleet: Fleet) -> PlainTable:
    table = plain_table("device", "is", "layers", "a segment", "memory", right=())
    layout, pipeline, costs = best.layout, best.pipeline, ProfileCosts(best.pipeline)
    own = sum(draft_node_parts(pipeline, goal.rows).values())
    if pipeline.beside is None:
        table.add_row(layout.draft_node, "draft node", "", "", _memory(own, fleet, layout.draft_node))
    first = 0
    for stage, (name, count) in enumerate(zip(layout.stages, layout.split, strict=True)):
        both = stage == pipeline.beside
        held = sum(stage_parts(pipeline, stage, goal.rows, goal.sessions).values()) + (own if both else 0.0)
        table.add_row(
            name,
            f"draft node and stage {stage + 1}" if both else f"stage {stage + 1}",
            f"{first} to {first + count - 1}",
            f"{1e3 * costs.stage_job(stage, forward_of(SEGMENT_ROWS)):.0f} ms",
            _memory(held, fleet, name),
        )
        first += count
    return table


def _memory(held: float, fleet: Fleet, name: str) -> str:
    whole = fleet.devices[name].memory_gib
    used = held / 2**30
    filled = min(round(BAR * used / whole), BAR)
    return f"{'#' * filled}{'.' * (BAR - filled)} {used:.1f} of {whole:.1f} GiB"


def _others(made: Plan) -> PlainTable:
    table = plain_table("other layouts", "draft node", "tokens/s")
    for each in made.others:
        stages = ", ".join(
            f"{name} {count}" for name, count in zip(each.layout.stages, each.layout.split, strict=True)
        )
        devices = counted(each.num_devices, "device")
        table.add_row(f"{devices}: {stages}", each.layout.draft_node, f"{each.tokens_per_s:.1f}")
    return table
