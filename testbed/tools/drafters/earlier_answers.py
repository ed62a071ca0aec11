"""What lookup in earlier answers brings, in the replay: chat turns and code edits after answers of the model.

    python -m testbed.tools.drafters.earlier_answers --data PROMPTS --samples 8

Each history is one request or several, and a last request that is measured. Its drafts are looked up in the
answers before it, in the request's own text alone, or not at all. The sets of histories are

    same chat       the second turn of a conversation of mt_bench
    similar         the same question with a further wish, in a new chat
    again           the same question, in a new chat and with another seed
    edit, same chat HumanEval's function is completed, then to be changed
    edit, new chat  HumanEval's function is completed, then asked for with another name and a check
    other questions a question of mt_bench after the answers to all questions before it
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch

from flowedge.core.pipeline_config import drafter_label
from flowedge.core.request import Noise
from flowedge.core.sampling import SamplingParams
from flowedge.drafting.lookup.answer_store import OWN_TENANT, EndedAnswer
from flowedge_testbed.model_set import ModelSet
from flowedge_testbed.plan import cases
from flowedge_testbed.record import RunRecord
from flowedge_testbed.report.markdown import table
from flowedge_testbed.run_backends import ReplayBackend
from flowedge_testbed.runs import Prompt, Run, Task
from flowedge_testbed.scenario import find_scenario, read_scenario
from flowedge_testbed.scenario_parts import ModelSetNames
from flowedge_testbed.true_paths.true_path import TruePath

PLACES = ("7b-fp16-4nano-lan150", "8b-int4-4nx-rpi5-drafts")  # of the scenario regimes
HEAD = ("bundled",)
JOINED = ("bundled", "ngram")
WAYS = ((HEAD, False), (JOINED, False), (JOINED, True), (("ngram",), False), (("ngram",), True))
ACCEPTANCE = "naive_pp"  # the method of which cycles are counted, on the first place
NEW_TOKENS = 128


@dataclass(frozen=True)
class RequestSeries:
    """A request that is measured, and the requests before it.

    Attributes:
        before: the prompts before, each with the answer to it.
    """

    before: tuple[tuple[Prompt, TruePath], ...]
    prompt: Prompt
    sampling: SamplingParams


@dataclass(frozen=True)
class Asker:
    """Asks the target at one temperature."""

    models: ModelSet
    directory: Path
    temperature: float

    def sampling(self, seed: int) -> SamplingParams:
        return SamplingParams(temperature=self.temperature, seed=seed)

    def answer(self, prompt: Prompt, seed: int) -> TruePath:
        source = self.models.path_source(self.directory)
        return source.path(prompt, self.sampling(seed), NEW_TOKENS, self.models.eos)

    def in_new_chat(self, seed: int, first: str, last: str) -> RequestSeries:
        prompt = self.models.encode(first)
        before = ((prompt, self.answer(prompt, seed)),)
        return RequestSeries(before, self.models.encode(last), self.sampling(seed + 1))

    def in_same_chat(self, seed: int, first: str, last: str) -> RequestSeries:
        prompt = self.models.encode(first)
        path = self.answer(prompt, seed)
        drawn = path.tokens[path.prompt_tokens :].tolist()
        whole = self.models.encode_turns((first, last), [drawn], None)
        return RequestSeries(((prompt, path),), whole, self.sampling(seed + 1))

    def after_others(self, texts: Sequence[str]) -> Iterator[RequestSeries]:
        before: list[tuple[Prompt, TruePath]] = []
        for seed, text in enumerate(texts):
            prompt = self.models.encode(text)
            yield RequestSeries(tuple(before), prompt, self.sampling(seed))
            before.append((prompt, self.answer(prompt, seed)))

    def histories(self, data: Path, samples: int) -> dict[str, list[RequestSeries]]:
        chats, functions = (
            [json.loads(line)["turns"] for line in (data / f"{name}.jsonl").open(encoding="utf-8")][:samples]
            for name in ("mt_bench", "humaneval")
        )
        texts = [chat[0] for chat in chats]
        codes = [function[0] for function in functions]
        new, same = self.in_new_chat, self.in_same_chat
        return {
            "same chat": [same(10 * i, *chat[:2]) for i, chat in enumerate(chats)],
            "similar": [new(10 * i, text, f"{text} Be brief.") for i, text in enumerate(texts)],
            "again": [new(10 * i, text, text) for i, text in enumerate(texts)],
            "edit, same chat": [same(10 * i, code, CHANGE) for i, code in enumerate(codes)],
            "edit, new chat": [new(10 * i, code, renamed(code)) for i, code in enumerate(codes)],
            "other questions": list(self.after_others(texts))[1:],
        }


CHANGE = "Change the function: check its arguments first."


def renamed(code: str) -> str:
    """Return a request for a function of another name, with a further wish."""
    (name,) = re.findall(r"def (\w+)", code)[-1:]
    return f"{code.replace(name, f'checked_{name}')}\nCheck the arguments first."


@dataclass(frozen=True)
class WayFigures:
    """The records of one way on the histories of a set, by place, and those that count cycles."""

    by_place: dict[str, list[RunRecord]]
    cycles: list[RunRecord]

    def cells(self, *, loops: bool) -> list[str]:
        """Return tokens a cycle, and tokens/s on each place; `loops`: of answers that loop as well."""
        rounds = [n for each in self.cycles if loops or not each.loops for n in each.accepted_per_round if n]
        found = [f"{fmean(rounds):.2f}" if rounds else "-"]
        for records in self.by_place.values():
            chosen = [each for each in records if loops or not each.loops]
            tokens = sum(each.new_tokens - 1 for each in chosen)
            found.append(f"{tokens / sum(each.decode_s for each in chosen):.2f}" if chosen else "-")
        return found


def measure(
    models: ModelSet, directory: Path, histories: Sequence[RequestSeries], *, stored: bool
) -> WayFigures:
    """Replay the last request of each history; `stored`: whether drafts look up in the answers before."""
    backend = ReplayBackend(models, directory)
    scenario = read_scenario(find_scenario("regimes"))
    names = ModelSetNames(model=models.model, drafter=models.drafter_names)
    places = {name: scenario.places[name] for name in PLACES}
    chosen = scenario.model_copy(update={"places": places, "pair": names, "strategies": ["auto", ACCEPTANCE]})
    setups = {case.profile: case for case in cases(chosen, find_scenario("regimes").parent)}
    by_place: dict[str, list[RunRecord]] = {name: [] for name in PLACES}
    cycles: list[RunRecord] = []
    for history in histories:
        noise: Noise = "plain" if history.sampling.greedy else "shared"
        asked = [(name, "auto") for name in PLACES] + [(PLACES[0], ACCEPTANCE)]
        runs = tuple(
            Run(f"{name} {method}", method, (), setups[name].emulation_of(method), 0, 128, noise)
            for name, method in asked
        )
        earlier = tuple(
            EndedAnswer.of(OWN_TENANT, prompt, path.tokens[path.prompt_tokens :].tolist())
            for prompt, path in history.before
        )
        task = Task(history.prompt, history.sampling, NEW_TOKENS, runs, earlier if stored else ())
        for (name, method), (_, record, _) in zip(asked, backend.measure(task), strict=True):
            (cycles if method == ACCEPTANCE else by_place[name]).append(record)
    return WayFigures(by_place, cycles)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with mt_bench.jsonl and humaneval.jsonl"
    )
    parser.add_argument("--samples", type=int, default=8, help="histories of a set")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--sets", nargs="*", help="sets of histories; all by default")
    parser.add_argument("--runs", type=Path, help="folder where the model's answers are kept")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    loaded = {names: ModelSet.load("bundled", names) for names in dict.fromkeys(names for names, _ in WAYS)}
    with tempfile.TemporaryDirectory() as made:
        directory = arguments.runs or Path(made)
        for temperature in arguments.temperatures:
            asker = Asker(loaded[HEAD], directory, temperature)
            for title, histories in asker.histories(arguments.data, arguments.samples).items():
                if arguments.sets and title not in arguments.sets:
                    continue
                lines = []
                for names, stored in WAYS:
                    found = measure(loaded[names], directory, histories, stored=stored)
                    way = drafter_label(names) + (", earlier answers" if stored else "")
                    lines.append([way, *found.cells(loops=True), *found.cells(loops=False)])
                looping = sum(each.loops for each in found.cycles)
                print(f"\n{title}, T={temperature:g}: {len(histories)} histories, {looping} loop\n")
                heads = ["tokens a cycle", *(f"{name}, tokens/s" for name in PLACES)]
                print(
                    table(["drafter", *heads, *(f"not looping: {head}" for head in heads)], lines), flush=True
                )


if __name__ == "__main__":
    main()
