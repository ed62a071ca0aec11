"""`python -m testbed.tools.kv_sessions`: chats at the same time in a given memory for KV caches.

All chats come at once, may go on to the end of the context, as chats in a browser do, and end when they have
said what they have to say. Their lengths are drawn by a seed. On the virtual clock, with profiles' costs.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass, replace

from flowedge.core.request import Failed, Finished, Request, Tokens
from flowedge.core.sampling import SamplingParams
from flowedge.engine.draft_node.cache_budget import AdmissionLimits
from flowedge.engine.draft_node.draft_node_spec import DraftNodeSpec
from flowedge.engine.draft_node.session_admission import PreemptedError
from flowedge.engine.stage.stage_spec import StageSpec
from flowedge.planning.in_process import machine_pipeline
from flowedge.planning.measuring.scripted_models import VOCAB, BlankStage, DiceDraft, SilentText
from flowedge.planning.profile import shipped
from flowedge.planning.profile.model import LayerSize
from flowedge.planning.profile.pipeline import PipelineProfile
from flowedge.planning.profile_costs import ProfileCosts
from flowedge.planning.virtual_pipeline import VirtualPipeline

STAGES, CONTEXT = 2, 8192
PROMPT, ANSWER = (20, 1200), (20, 700)  # tokens, from the shortest to the longest, most of them short
AGAIN_S = 1e-3  # after which an answer that has paused arrives again


class OneLetter(SilentText):
    """A TextStream by which an answer of n tokens ends at the stop string of n letters."""

    def push(self, token: int) -> str:  # noqa: ARG002
        return "x"


@dataclass(frozen=True)
class Outcome:
    """What came of all chats.

    Attributes:
        at_once: chats that were open, on average until the last one ended; most: at the same time.
        seconds: until the last one ended; tokens: of all answers; pauses: of all answers.
    """

    at_once: float
    most: int
    seconds: float
    tokens: int
    pauses: int


def pipeline_of(model: str, device: str, rows: int, *, on_demand: bool) -> VirtualPipeline:
    """Return a pipeline with so many KV rows for all sessions."""
    size, profile, link = shipped.model(model), shipped.device(device), shipped.link("gigabit")
    half = size.layers // STAGES
    costs = PipelineProfile(
        model=size,
        quant="int4",
        drafter=size.drafters["eagle"],
        draft_node=profile,
        stages=(profile,) * STAGES,
        links=(link,) * (STAGES + 1),
        split=(half, size.layers - half),
    )
    stages = [
        StageSpec(
            is_first=number == 0,
            width=1,
            vocab_size=VOCAB,
            dtype="float32",
            max_total_capacity=rows,
            on_demand=on_demand,
        )
        for number in range(STAGES)
    ]
    return machine_pipeline(
        DraftNodeSpec(1, "float32", num_stages=STAGES, max_positions=CONTEXT),
        DiceDraft(),
        [(stage, BlankStage(1, "float32")) for stage in stages],
        ProfileCosts(costs),
        make_text=OneLetter,
        limits=AdmissionLimits(queue_s=1e9, queue_length=10_000, on_demand=on_demand),
    )


def chats(count: int, seed: int) -> dict[str, Request]:
    """Return chats by name, each with the length at which its answer ends as its stop string."""
    dice, made = random.Random(seed), dict[str, Request]()
    for number in range(count):
        prompt, answer = (int(low * (high / low) ** dice.random()) for low, high in (PROMPT, ANSWER))
        made[f"chat{number}"] = Request(
            f"chat{number}",
            tuple(range(1, prompt + 1)),
            SamplingParams(),
            CONTEXT,
            stop=("x" * answer,),
            fit_context=True,
            noise="plain",
            strategy="auto",
        )
    return made


def outcome(pipeline: VirtualPipeline, requests: dict[str, Request]) -> Outcome:
    """Have all chats answered; one that pauses goes on behind what was put out."""
    for request in requests.values():
        pipeline.start(request, 0.0)
    said: dict[str, list[int]] = {name: [] for name in requests}
    running, seen, pauses, most, area, before = dict(requests), 0, 0, 0, 0.0, 0.0
    while running and pipeline.step():
        sessions = pipeline.stages[0].load().sessions
        most, area, before = max(most, sessions), area + sessions * (pipeline.now - before), pipeline.now
        for timed in pipeline.outputs[seen:]:
            output = timed.output
            name = output.session.partition(".")[0]
            match output:
                case Tokens():
                    said[name] += output.token_ids
                case Failed():
                    if not isinstance(output.error, PreemptedError):
                        raise output.error
                    pauses += 1
                    rest = running[name].behind(said[name])
                    pipeline.start(replace(rest, session=f"{name}.{pauses}"), pipeline.now + AGAIN_S)
                case Finished():
                    del running[name]
        seen = len(pipeline.outputs)
    return Outcome(area / pipeline.now, most, pipeline.now, sum(map(len, said.values())), pauses)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m testbed.tools.kv_sessions", description=__doc__)
    parser.add_argument("--model", default="llama3.1-8b", help="a profile of a model")
    parser.add_argument("--device", default="pc-8core", help="a profile of the devices")
    parser.add_argument("--gib", type=float, default=1.0, help="memory of all KV caches together")
    parser.add_argument("--chats", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    size = shipped.model(options.model)
    row_bytes = LayerSize.of(size).kv_bytes_per_row * size.layers
    rows = int(options.gib * 2**30 / row_bytes)
    print(f"{options.chats} chats with {size.title}: {options.gib:g} GiB are {rows} rows\n")
    print("| rows are held | at once, mean | most | tokens/s of all | seconds | pauses |")
    print("|---|---:|---:|---:|---:|---:|")
    for on_demand in (False, True):
        pipeline = pipeline_of(options.model, options.device, rows, on_demand=on_demand)
        found = outcome(pipeline, chats(options.chats, options.seed))
        held = "as they are written" if on_demand else "all that may be needed"
        rate = f"{found.tokens / found.seconds:.1f} | {found.seconds:.0f} | {found.pauses}"
        print(f"| {held} | {found.at_once:.1f} | {found.most} | {rate} |")


if __name__ == "__main__":
    main()
