"""Measure what a JSON schema costs and saves: drafter forwards and speed, with and without forced tokens.

The bundled model answers questions in the form of a schema, in one process on the virtual clock, with the
costs of LLaMA2-7B on four Orin Nano (flowedge/planning/fixed_costs.py). A job of the drafter takes as many
forwards as it asks the drafter for. Every answer is compared with that of plain decoding.

Run: python -m testbed.tools.forced_drafts [--drafter bundled] [--tokens 120]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from flowedge.core.grammar import GrammarSource
from flowedge.core.request import Finished, Request, Tokens
from flowedge.core.sampling import LogitRules, SamplingParams
from flowedge.drafting.drafter import DraftLayer, GrowRequest
from flowedge.drafting.loading import TargetModel, load_drafter
from flowedge.engine.executors.block_executor import BlockExecutor
from flowedge.engine.executors.draft_models import draft_node_spec
from flowedge.engine.executors.head_executor import HeadExecutor
from flowedge.engine.executors.ruled_drafts import RuledDrafts
from flowedge.engine.jobs import DraftBatch, DraftJob, GrowDraft
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.tokenizer_loading import eos_token_ids, load_tokenizer
from flowedge.models.host.payloads import payload_dtype
from flowedge.models.lm_head import LMHead
from flowedge.planning.fixed_costs import FixedCosts
from flowedge.planning.in_process import load_blocks, machine_pipeline
from flowedge.text.grammar_compiler import GrammarCompiler
from flowedge.text.tokenizer import StreamDecoder, encode_chat
from flowedge_testbed.report.markdown import table

QUESTIONS = (
    "A farmer has 12 hens. Each hen lays 5 eggs a week. How many eggs are that in four weeks?",
    "Tom has 3 boxes of 8 pens. He gives 5 pens away. How many pens are left?",
    "A train runs 60 miles in an hour. How far does it run in 3 hours?",
    "Anna reads 20 pages a day. How many days does a book of 240 pages take?",
)
SCHEMA = {
    "type": "object",
    "properties": {
        "question_kind": {"enum": ["arithmetic", "geometry", "other"]},
        "explanation": {"type": "string", "maxLength": 60},
        "result_as_number": {"type": "integer", "minimum": 0, "maximum": 100000},
        "unit_of_measurement": {"type": "string", "maxLength": 10},
        "is_certain": {"type": "boolean"},
    },
    "required": ["question_kind", "explanation", "result_as_number", "unit_of_measurement", "is_certain"],
    "additionalProperties": False,
}
SPLIT = (2, 2, 2, 2)


class CountedDrafter:
    """A Drafter that counts the calls for which it computes."""

    def __init__(self, drafter: Any) -> None:
        self._drafter = drafter
        self.forwards = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._drafter, name)

    def grow(self, requests: Sequence[GrowRequest]) -> list[DraftLayer]:
        self.forwards += any(request.frontier.nodes for request in requests)
        layers: list[DraftLayer] = self._drafter.grow(requests)
        return layers


class CountingExecutor:
    """A DraftExecutor that runs a job as soon as its cost is asked for, so that the cost is what it took."""

    def __init__(self, executor: HeadExecutor, drafter: CountedDrafter) -> None:
        self._executor = executor
        self._drafter = drafter
        self._result: Any = None

    def forwards(self, job: DraftJob) -> int:
        """Run a job; return the drafter's forwards."""
        before = self._drafter.forwards
        self._result = self._executor.run(job)
        return self._drafter.forwards - before

    def run(self, _job: DraftJob) -> Any:
        return self._result


@dataclass(frozen=True)
class CountedCosts(FixedCosts):
    """FixedCosts in which a layer takes the forwards that it asks the drafter for."""

    executor: CountingExecutor | None = None

    def draft_job(self, job: DraftJob) -> float:
        assert self.executor is not None
        forwards = self.executor.forwards(job)
        grows = isinstance(job, DraftBatch) and any(isinstance(each, GrowDraft) for each in job.jobs)
        return forwards * self.draft_s if grows else super().draft_job(job)


@dataclass(frozen=True)
class WayMeasured:
    """All answers of one way of decoding: token ids, virtual seconds, forwards and forced tokens."""

    answers: list[tuple[int, ...]]
    seconds: float
    forwards: int
    forced: int

    def row(self, name: str) -> list[str]:
        """A row of the table."""
        tokens = sum(map(len, self.answers))
        return [name, f"{tokens / self.seconds:.1f}", f"{self.forwards / tokens:.2f}", str(self.forced)]


class Measurement:
    """The bundled model with a drafter."""

    def __init__(self, drafter: str, tokens: int) -> None:
        self._checkpoint = Checkpoint.open("bundled")
        self._head = LMHead.load(self._checkpoint)
        self._tokenizer = load_tokenizer(self._checkpoint)
        self._eos = eos_token_ids(self._checkpoint, self._tokenizer)
        self._blocks = load_blocks(self._checkpoint, SPLIT)
        target = TargetModel(self._checkpoint, self._head, self._tokenizer, torch.float32)
        self._drafter = load_drafter((drafter,), target)
        self._tokens = tokens

    def run(self, strategy: str, rules: LogitRules | None, *, forced: bool = True) -> WayMeasured:
        """Answer all questions, one after the other."""
        RuledDrafts.forces_tokens = forced
        answers, seconds, forwards, forced_tokens = [], 0.0, 0, 0
        for question in QUESTIONS:
            drafter = CountedDrafter(self._drafter)
            outputs = self._pipeline(drafter).generate(self._request(question, strategy, rules))
            end = outputs[-1].output
            assert isinstance(end, Finished), end
            drawn = [(each.time, each.output) for each in outputs if isinstance(each.output, Tokens)]
            answers.append(tuple(token for _, each in drawn for token in each.token_ids))
            seconds += drawn[-1][0] - drawn[0][0]
            forwards += drafter.forwards
            forced_tokens += end.counters.forced_tokens
        RuledDrafts.forces_tokens = True
        return WayMeasured(answers, seconds, forwards, forced_tokens)

    def _request(self, question: str, strategy: str, rules: LogitRules | None) -> Request:
        prompt = tuple(encode_chat(self._tokenizer, question))
        return Request("s", prompt, SamplingParams(), self._tokens, self._eos, strategy=strategy, rules=rules)

    def _pipeline(self, drafter: CountedDrafter) -> Any:
        grammars = GrammarCompiler(self._tokenizer, self._eos, self._head.vocab_size)
        executor = CountingExecutor(HeadExecutor(self._head, drafter, grammars), drafter)
        stages = [BlockExecutor(block, drafter.taps) for block in self._blocks]
        spec = draft_node_spec(
            self._checkpoint.config,
            drafter,
            drafter.taps,
            payload_dtype(self._blocks[0].dtype),
            num_stages=len(stages),
        )
        return machine_pipeline(
            spec,
            executor,
            [(stage.stage_spec(), stage) for stage in stages],
            CountedCosts(executor=executor),
            make_text=lambda: StreamDecoder(self._tokenizer),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--drafter", default="bundled")
    parser.add_argument("--tokens", type=int, default=120)
    options = parser.parse_args()
    torch.set_num_threads(1)
    measurement = Measurement(options.drafter, options.tokens)
    schema = LogitRules(grammar=GrammarSource("json_schema", json.dumps(SCHEMA)))
    plain = measurement.run("autoregressive", schema)
    rows = [plain.row("autoregressive, schema")]
    for strategy in ("auto", "flowspec"):
        rows.append(measurement.run(strategy, None).row(f"{strategy}, any text"))
        for forced in (False, True):
            measured = measurement.run(strategy, schema, forced=forced)
            if measured.answers != plain.answers:
                raise SystemExit(f"{strategy} put out other tokens than plain decoding")
            name = f"{strategy}, schema" + (", forced tokens drafted without the drafter" if forced else "")
            rows.append(measured.row(name))
    print(table(["decoding", "tokens/s", "drafter forwards a token", "forced tokens drafted"], rows))


if __name__ == "__main__":
    main()
