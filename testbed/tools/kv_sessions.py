"""`python -m testbed.tools.kv_sessions`: chats at the same time in a given memory for KV caches.

All chats come at once, may go on to the end of the context, as chats in a browser do, and end when they have
said what they have to say. Their lengths are drawn by a seed. On the virtual clock, with profiles' costs.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Mapping
from dataclasses import replace

from flowedge.core.request import Failed, Finished, Request, Tokens
from flowedge.core.sampling import SamplingParams
from flowedge.engine.draft_node.cache_budget import AdmissionLimits
from flowedge.engine.draft_node.session_admission import OutgrownError, PreemptedError
from flowedge.engine.pages import PAGE_ROWS
from flowedge.planning.measuring.scripted_models import SilentText
from flowedge.planning.placement.score import scripted_pipeline
from flowedge.planning.profile import shipped
from flowedge.planning.profile.model import LayerSize
from flowedge.planning.profile.pipeline import PipelineProfile
from flowedge.planning.split import even_split
from flowedge.planning.virtual_pipeline import VirtualPipeline

STAGES, CONTEXT = 2, 8192
PROMPT, ANSWER = (20, 1200), (20, 700)  # tokens, from the shortest to the longest, most of them short
AGAIN_S = 1e-3  # after which an answer that has paused arrives again


class OneLetter(SilentText):
    """A TextStream by which an answer of n tokens ends at the stop string of n letters."""

    def push(self, token: int) -> str:  # noqa: ARG002
        return "x"


class PausingAnswers:
    """Answers that go on after a pause, and in larger caches, as those of an agent do.

    Attributes:
        said: the tokens that were put out, by the name of the request; pauses: how often it has paused.
        running: the requests whose answers are not complete.
    """

    def __init__(self, pipeline: VirtualPipeline, requests: Mapping[str, Request]) -> None:
        """requests: by name, without a dot; all arrive now."""
        self.said: dict[str, list[int]] = {name: [] for name in requests}
        self.pauses = dict.fromkeys(requests, 0)
        self.running = dict(requests)
        self._pipeline, self._seen = pipeline, len(pipeline.outputs)
        for name, request in requests.items():
            pipeline.start(replace(request, session=name))

    def step(self) -> bool:
        """Let the next event happen; return whether there was one.

        Raises the error of an answer that fails.
        """
        pipeline = self._pipeline
        happened = pipeline.step()
        for timed in pipeline.outputs[self._seen :]:
            output = timed.output
            name, _, _ = output.session.partition(".")
            match output:
                case Tokens():
                    self.said[name] += output.token_ids
                case Failed():
                    if not isinstance(output.error, OutgrownError | PreemptedError):
                        raise output.error
                    self.pauses[name] += 1
                    whole = self.running[name]
                    again = replace(
                        whole.behind(self.said[name]),
                        session=f"{name}.{self.pauses[name]}",
                        fit_context=whole.fit_context,
                    )
                    pipeline.start(again, pipeline.now + AGAIN_S)
                case Finished():
                    del self.running[name]
        self._seen = len(pipeline.outputs)
        return happened


def pipeline_of(
    model: str,
    device: str,
    rows: int,
    *,
    on_demand: bool,
    sessions: int = 64,
    reuses: bool = False,
    shares: bool = False,
) -> VirtualPipeline:
    """Return a pipeline with so many KV rows for all sessions.

    Args:
        sessions: most at once.
        reuses: whether sessions begin with rows of others; shares: with the pages of these rows.
    """
    size, profile, link = shipped.model(model), shipped.device(device), shipped.link("gigabit")
    costs = PipelineProfile(
        model=size,
        quant="int4",
        drafter=size.drafters["eagle"],
        draft_node=profile,
        stages=(profile,) * STAGES,
        links=(link,) * (STAGES + 1),
        split=tuple(even_split(size.layers, STAGES)),
    )
    return scripted_pipeline(
        costs,
        make_text=OneLetter,
        limits=AdmissionLimits(queue_s=1e9, queue_length=10_000, sessions=sessions, on_demand=on_demand),
        max_positions=CONTEXT,
        max_total_capacity=rows,
        kept_rows=int(reuses),  # of open sessions alone
        on_demand=on_demand,
        page_saving=PAGE_ROWS if shares else 0,
        sharing=1000,
    )


def chats(count: int, seed: int, system: int) -> dict[str, Request]:
    """Return chats by name, each with the length at which its answer ends as its stop string.

    system: tokens that all prompts begin with, before their own.
    """
    dice, made = random.Random(seed), dict[str, Request]()
    for number in range(count):
        prompt, answer = (int(low * (high / low) ** dice.random()) for low, high in (PROMPT, ANSWER))
        made[f"chat{number}"] = Request(
            f"chat{number}",
            (*range(1, system + 1), *range(number + 2, number + 2 + prompt)),
            SamplingParams(),
            CONTEXT,
            stop=("x" * answer,),
            fit_context=True,
            noise="plain",
            strategy="auto",
        )
    return made


def row(pipeline: VirtualPipeline, requests: Mapping[str, Request]) -> str:
    """Have all chats answered; return the cells of the table."""
    answers = PausingAnswers(pipeline, requests)
    most, area, before = 0, 0.0, 0.0
    while answers.running and answers.step():
        sessions = pipeline.stages[0].load().sessions
        most, area, before = max(most, sessions), area + sessions * (pipeline.now - before), pipeline.now
    seconds, tokens = pipeline.now, sum(map(len, answers.said.values()))
    pauses = sum(answers.pauses.values())
    return f"{area / seconds:.1f} | {most} | {tokens / seconds:.1f} | {seconds:.0f} | {pauses}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m testbed.tools.kv_sessions", description=__doc__)
    parser.add_argument("--model", default="llama3.1-8b", help="a profile of a model")
    parser.add_argument("--device", default="pc-8core", help="a profile of the devices")
    parser.add_argument("--gib", type=float, default=1.0, help="memory of all KV caches together")
    parser.add_argument("--chats", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--system", type=int, default=0, help="tokens that all prompts begin with")
    options = parser.parse_args()
    size = shipped.model(options.model)
    row_bytes = LayerSize.of(size).kv_bytes_per_row * size.layers
    rows = int(options.gib * 2**30 / row_bytes)
    print(f"{options.chats} chats with {size.title}: {options.gib:g} GiB are {rows} rows\n")
    print("| rows are held | at once, mean | most | tokens/s of all | seconds | begun again |")
    print("|---|---:|---:|---:|---:|---:|")
    forms = {
        "all that one chat may need": {"on_demand": False, "sessions": 1, "reuses": options.system > 0},
        "in caches for what is expected": {"on_demand": False, "reuses": options.system > 0},
        "as they are written": {"on_demand": True, "reuses": options.system > 0},
        "as they are written, common ones once": {"on_demand": True, "reuses": True, "shares": True},
    }
    for held, form in forms.items():
        if options.system or not form["reuses"]:
            pipeline = pipeline_of(options.model, options.device, rows, **form)
            print(f"| {held} | {row(pipeline, chats(options.chats, options.seed, options.system))} |")


if __name__ == "__main__":
    main()
