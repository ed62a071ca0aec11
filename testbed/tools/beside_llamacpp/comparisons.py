"""The tables: what is measured for each, on both sides, in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from flowedge.engine.statistics import RequestStatistics
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.files.config_support import max_positions
from flowedge.models.quant.quant_cache import QuantCache
from testbed.tools.beside_llamacpp.block_side import BlockSide
from testbed.tools.beside_llamacpp.cluster_side import ClusterSide
from testbed.tools.beside_llamacpp.figures import Better, Figures, Measured, TableCell, Turn, take_turns
from testbed.tools.beside_llamacpp.formats import Format
from testbed.tools.beside_llamacpp.installation import LlamaCpp
from testbed.tools.beside_llamacpp.llama_bench import LlamaBench, LlamaTest
from testbed.tools.beside_llamacpp.llama_gguf import gguf_of
from testbed.tools.beside_llamacpp.rpc_servers import RpcServers

PROMPTS, CACHED = (512, 4096), 128  # tokens of prompts; rows before the rows of a draft tree
ROWS = (1, 4, 16, 64)
THREADS = (1, 2)
STAGES = (1, 2, 4)
REPETITIONS = 3  # of each figure in a turn


@dataclass(frozen=True)
class Table:
    """A table of the report.

    Attributes:
        unit: of its figures; better: which of two figures is the better.
    """

    name: str
    title: str
    unit: str
    better: Better
    digits: int


ONE = Table("one-process", "Tokens/s in one process, two threads", "tokens/s", "more", 1)
TWO = Table("two-stages", "Tokens/s over two stages on loopback, one thread each", "tokens/s", "more", 1)
LAYERS = Table("rows", f"All layers and the LM head by rows, {CACHED} cached rows", "ms", "less", 1)
PAIR = Table("bundled", "The bundled model by stages, one thread each", "ms a token", "less", 2)
MEASURED = (ONE, TWO, LAYERS, PAIR)
PARTS = Table("parts", "Where the time of a token goes", "ms", "less", 2)  # measured with ONE and TWO
TABLES = (ONE, TWO, PARTS, LAYERS, PAIR)
ALONE = "one process"
ALONE_AS = "an agent that is draft node and stage"
DECODE = "decode"
PAIR_TOKENS = 128  # decoded of each answer of the bundled model


@dataclass
class Comparison:
    """What the tables are measured with.

    Attributes:
        deadline: of the whole run, in seconds of time.monotonic().
        tokens: tokens that are decoded for a figure.
        strategies: measured on the bundled model; prompts: token ids of the texts that it goes on from.
        report, save: called with each step, and when more figures are complete.
        commands, builds: filled with each command of llama.cpp, and with what its programs say they are.
    """

    llamacpp: LlamaCpp
    model: Path
    work: Path
    repeats: int
    deadline: float
    tokens: int
    strategies: Sequence[str]
    prompts: Sequence[Sequence[int]]
    figures: Figures = field(default_factory=Figures)
    commands: list[str] = field(default_factory=list)
    builds: set[str] = field(default_factory=set)
    report: Callable[[str], None] = print
    save: Callable[[], None] = lambda: None

    def in_one_process(self, form: Format, *, decoding: bool, rows: bool) -> None:
        """Measure ONE and LAYERS for one format."""
        checkpoint = Checkpoint.open(str(self.model))
        bench = self._bench(checkpoint, form.gguf, "random")
        self.report(f"{form.ours}: loading all layers in this process")
        block = BlockSide(checkpoint, form, QuantCache.configured())
        turns: list[Turn] = []
        prompts = _prompts(checkpoint)
        with ExitStack() as stack:
            if decoding:
                alone = ClusterSide(str(self.model), form, 1, int(checkpoint.config.vocab_size))
                pipeline = partial(_our_pipeline, ONE, f"{form.ours}, {ALONE_AS}", stack.enter_context(alone))
                turns += [
                    partial(_our_tokens, form, block, self.tokens, prompts),
                    partial(pipeline, self.tokens, prompts),
                    partial(self._their_rates, ONE, form, bench, THREADS[-1], prompts),
                ]
            if rows:
                turns += [partial(_our_rows, form, block), partial(self._their_rows, form, bench)]
            self._take(f"{form.ours} beside {form.theirs}, one process", turns)

    def over_two_stages(self, form: Format) -> None:
        """Measure TWO for one format."""
        checkpoint = Checkpoint.open(str(self.model))
        vocabulary, prompts = int(checkpoint.config.vocab_size), _prompts(checkpoint)
        with ExitStack() as stack:
            servers = stack.enter_context(RpcServers(self.llamacpp, 2))
            bench = self._bench(checkpoint, form.gguf, "random", servers.addresses)
            self.report(f"{form.ours}: loading two stages")
            agents = stack.enter_context(ClusterSide(str(self.model), form, 2, vocabulary))
            self._take(
                f"{form.ours} beside {form.theirs}, two stages",
                [
                    partial(_our_pipeline, TWO, form.ours, agents, self.tokens, prompts),
                    partial(self._their_rates, TWO, form, bench, 1, prompts),
                ],
            )

    def on_the_bundled_model(self, forms: Sequence[Format]) -> None:
        """Measure PAIR: every strategy over each number of stages, in the given formats."""
        checkpoint = Checkpoint.open("bundled")
        vocabulary = int(checkpoint.config.vocab_size)
        for form in forms:
            alone = partial(self._their_tokens, form, self._bench(checkpoint, form.gguf, "bundled"), ALONE)
            for stages in STAGES:
                column = f"{stages} stage{'s' * (stages > 1)}"
                with ExitStack() as stack:
                    servers = stack.enter_context(RpcServers(self.llamacpp, stages))
                    bench = self._bench(checkpoint, form.gguf, "bundled", servers.addresses)
                    agents = stack.enter_context(
                        ClusterSide("bundled", form, stages, vocabulary, drafter=True)
                    )
                    ours = [
                        partial(self._our_strategy, form, agents, each, column) for each in self.strategies
                    ]
                    turns = [alone, *ours, partial(self._their_tokens, form, bench, column)]
                    self._take(f"{form.ours} beside {form.theirs}, bundled model, {column}", turns)

    def _bench(self, checkpoint: Checkpoint, kind: str, name: str, rpc: tuple[str, ...] = ()) -> LlamaBench:
        path = self.model
        if name == "bundled" or not checkpoint.gguf:
            path = gguf_of(checkpoint, kind, self.work / "gguf" / name, self.llamacpp)
        return LlamaBench(self.llamacpp, path, self.commands, rpc)

    def _take(self, title: str, turns: Sequence[Turn]) -> None:
        start = time.monotonic()
        rounds = take_turns(turns, self.repeats, self.deadline, self.figures)
        self.save()
        self.report(f"{title}: {rounds} rounds in {time.monotonic() - start:.0f} s")

    def _their_rates(
        self, table: Table, form: Format, bench: LlamaBench, threads: int, prompts: Sequence[int]
    ) -> Measured:
        tests = self._run(
            bench, prompts=prompts, generated=[self.tokens], threads=[threads], repetitions=REPETITIONS
        )
        return [
            (
                TableCell(table.name, form.theirs, DECODE if test.generated else _prefill(test.prompt)),
                count / seconds,
            )
            for test in tests
            for count in [test.generated or test.prompt]
            for seconds in test.seconds
        ]

    def _their_rows(self, form: Format, bench: LlamaBench) -> Measured:
        tests = self._run(
            bench, prompts=ROWS, threads=THREADS, cached=CACHED, all_logits=True, repetitions=REPETITIONS
        )
        return [
            (_rows_cell(form.theirs, test.prompt, test.threads), seconds * 1e3)
            for test in tests
            for seconds in test.seconds
        ]

    def _their_tokens(self, form: Format, bench: LlamaBench, column: str) -> Measured:
        tests = self._run(bench, generated=[PAIR_TOKENS], threads=[1], repetitions=REPETITIONS)
        cell = TableCell(PAIR.name, form.theirs, column)
        return [(cell, seconds / PAIR_TOKENS * 1e3) for test in tests for seconds in test.seconds]

    def _our_strategy(self, form: Format, agents: ClusterSide, strategy: str, column: str) -> Measured:
        seconds = agents.token_s(self.prompts, PAIR_TOKENS, strategy)
        return [(TableCell(PAIR.name, f"{form.ours}, {strategy}", column), seconds * 1e3)]

    def _run(self, bench: LlamaBench, **options: Any) -> list[LlamaTest]:
        tests = bench.run(**options)
        self.builds.update(test.build for test in tests)
        return tests


def _prompts(checkpoint: Checkpoint) -> list[int]:
    """The numbers of tokens of PROMPTS that a model reads, and a token more."""
    return [tokens for tokens in PROMPTS if tokens < max_positions(checkpoint.config)]


def _prefill(tokens: int) -> str:
    return f"prefill {tokens}"


def _our_tokens(form: Format, block: BlockSide, tokens: int, prompts: Sequence[int]) -> Measured:
    threads = THREADS[-1]
    times = [block.decode_s(tokens, threads) for _ in range(REPETITIONS)]
    return [
        *_rates(ONE, form.ours, [tokens / sum(each) for each in times]),
        *_prefills(ONE, form.ours, prompts, lambda count: block.prefill_s(count, threads)),
        *(
            part
            for layers, head in times
            for part in _parts(form.ours, {"layers": layers / tokens, "LM head": head / tokens})
        ),
    ]


def _our_pipeline(
    table: Table, line: str, agents: ClusterSide, tokens: int, prompts: Sequence[int]
) -> Measured:
    answers = [agents.decode(tokens) for _ in range(REPETITIONS)]
    title = line if table is ONE else f"{line}, two stages"
    return [
        *_rates(table, line, [each.tokens_per_s for each in answers]),
        *_prefills(table, line, prompts, agents.prefill_s),
        *(part for each in answers for part in _parts_of(title, each)),
    ]


def _parts_of(line: str, answer: RequestStatistics) -> Measured:
    """The parts of an answer's token: what its devices computed, and the rest of the time between tokens."""
    tokens = answer.new_tokens
    parts = {
        "stages": sum(stage.report.busy_s for stage in answer.stages) / tokens,
        "draft node": answer.draft_node.report.busy_s / tokens,
    }
    return _parts(line, parts | {"between": answer.decode_s / (tokens - 1) - sum(parts.values())})


def _parts(line: str, seconds: Mapping[str, float]) -> Measured:
    parts = {**seconds, "a token": sum(seconds.values())}
    return [(TableCell(PARTS.name, line, name), value * 1e3) for name, value in parts.items()]


def _rates(table: Table, line: str, decoded: Sequence[float]) -> Measured:
    return [(TableCell(table.name, line, DECODE), rate) for rate in decoded]


def _prefills(table: Table, line: str, prompts: Sequence[int], seconds: Callable[[int], float]) -> Measured:
    return [
        (TableCell(table.name, line, _prefill(count)), count / seconds(count))
        for count in prompts
        for _ in range(REPETITIONS)
    ]


def _our_rows(form: Format, block: BlockSide) -> Measured:
    return [
        (_rows_cell(form.ours, rows, threads), seconds * 1e3)
        for threads in THREADS
        for rows in ROWS
        for seconds in block.rows_s(rows, CACHED, threads, REPETITIONS)
    ]


def _rows_cell(line: str, rows: int, threads: int) -> TableCell:
    return TableCell(
        LAYERS.name, line, f"{rows} row{'s' * (rows > 1)}, {threads} thread{'s' * (threads > 1)}"
    )
