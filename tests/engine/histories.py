"""Random histories of the protocol on the exact model."""

from __future__ import annotations

import numpy as np

from flowedge.core.messages import Forget
from flowedge.core.pipeline_config import DRAFT_NODE, LAST_STAGE
from flowedge.core.request import Failed, Finished, Output, Request, Tokens
from flowedge.core.sampling import LogitRules, SamplingParams
from flowedge.engine.draft_node.cache_budget import AdmissionLimits
from flowedge.engine.draft_node.draft_node import DraftNode
from flowedge.engine.draft_node.draft_node_spec import DraftNodeSpec
from flowedge.engine.stage.stage import Stage
from flowedge.engine.stage.stage_spec import StageSpec
from flowedge.planning.virtual_pipeline import VirtualPipeline
from flowedge.protocol.link_kind import LinkKind
from flowedge.strategies.auto.measured import MeasuredPipeline
from flowedge.strategies.base import Strategy
from flowedge.strategies.events import TARGET
from flowedge.strategies.registry import session_strategy
from tests.engine.exact_middle import ExactMiddle, checked_hierarchy
from tests.engine.exact_model import ExactHead, ExactStage, PlainModel
from tests.engine.history_checks import check_clean, check_invariants
from tests.support.seams import kept_by


class RandomCosts:
    """Times drawn at random, among them zero and very long times."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.scale = rng.choice([0.0, 0.1, 1.0, 10.0], size=5)
        # Apart, so that the draws of `rng` tell the same histories as without them.
        self.surrounding = np.random.default_rng(rng.bit_generator.state["state"]["state"] % 2**32)
        self.surrounding_scale = self.surrounding.choice([0.0, 0.0, 0.1, 1.0], size=3)

    def _draw(self, kind: int) -> float:
        return float(self.rng.integers(0, 8) * self.scale[kind])

    def stage_job(self, stage, job):
        return self._draw(0)

    def layer(self, stage, job):
        return 0.5

    def draft_job(self, job):
        return self._draw(1)

    def conclude(self, place, job):
        return float(self.surrounding.integers(0, 4) * self.surrounding_scale[0])

    def receive(self, place, message):
        return float(self.surrounding.integers(0, 4) * self.surrounding_scale[1])

    def speed(self, place, busy):
        return float(1 / (1 + self.surrounding_scale[2] * (len(busy) - 1)))

    def transfer(self, sender, message):
        return self._draw(2)

    def latency(self, sender):
        return self._draw(3)

    def message_bytes(self, _sender, message):
        return 1


BEYOND = 45  # more rows than any strategy has in flight here


class NoText:
    def push(self, token: int) -> str:
        return ""

    def flush(self) -> str:
        return ""

    def show(self, tokens: frozenset[int]) -> None:
        pass


NO_WAIT = 64  # sessions: more than there are requests
FOR_EVER = 1e9
TREES = ("flowspec", "naive_pp", "pruned_pp", "flowspec_no_sbd", "flowspec_paper")
LEVELS = ("pipedec", "specpipe")
STEPPING = ("specpipe_db",) * 3  # which share steps, so that several are to meet
OTHERS = ("autoregressive", "pipeinfer", "pipespec_sync")
HIERARCHY = ("pipespec",) * 3
ASYNCHRONOUS = ("auto", "flowspec") * 3  # those with the most freedom are drawn the most often


def random_strategy(rng: np.random.Generator):
    name = str(rng.choice([*ASYNCHRONOUS, *TREES, *LEVELS, *STEPPING, *OTHERS, *HIERARCHY]))
    return name, random_options(name, rng)


def random_options(name: str, rng: np.random.Generator) -> dict[str, float]:
    """Small sizes, so that few tokens meet many cases."""
    if name in (*LEVELS, *STEPPING):
        of_a_step = ("step_levels", "mini_batches") if name == "specpipe" else ()
        return {
            "width": int(rng.integers(1, 6)),
            "children": int(rng.integers(1, 4)),
            "max_draft_rows": int(rng.integers(2, 40)),
            "groups": int(rng.integers(1, 6)),
            **{option: int(rng.integers(1, 4)) for option in of_a_step},
        }
    if name == "pipeinfer":
        return {
            "batch_rows": int(rng.integers(1, 5)),
            "sequences": int(rng.integers(1, 4)),
            "cutoff": float(rng.choice([0.0, 0.3, 0.6])),
            "split": float(rng.choice([0.1, 0.4, 0.8])),
            "recovery": float(rng.choice([0.0, 0.2, 0.4])),
            "decay": float(rng.choice([0.0, 0.1, 0.3])),
            "max_draft_rows": int(rng.integers(1, 20)),
            "continuous": int(rng.integers(2)),
            "cancel": int(rng.integers(2)),
        }
    if name == "auto":
        return {
            "candidates": int(rng.integers(1, 4)),
            "draft_nodes": int(rng.integers(1, 5)),
            "segment_rows": int(rng.integers(1, 6)),
            "max_draft_rows": int(rng.integers(1, 40)),
            "max_nodes": int(rng.integers(1, 40)),
            "least_node": float(rng.choice([0.001, 0.05, 0.4])),
            "row_price": float(rng.choice([0.0, 0.3, 1e9])),
            "regrow_share": float(rng.choice([0.0, 1.0, 3.0, 1e9])),
        }
    if name == "pipespec":
        return {
            "models": int(rng.integers(2, 6)),
            "max_draft_rows": int(rng.integers(1, 20)),
            "lookahead": int(rng.choice([0, 0, 1, 3, 8])),
            "batches": int(rng.choice([0, 0, 1, 2])),
        }
    if name not in TREES:
        of_sync = ("lookahead", "models") if name == "pipespec_sync" else ()
        return {option: int(rng.integers(2, 6)) for option in of_sync}
    return {
        "tree_nodes": int(rng.integers(1, 14)),
        "depth": int(rng.integers(1, 5)),
        "top_k": int(rng.integers(1, 4)),
        "segment_rows": int(rng.integers(1, 6)),
        "expand_nodes": int(rng.integers(1, 12)),
        "expand_depth": int(rng.integers(1, 5)),
        "deepen_nodes": int(rng.integers(1, 5)),
        "deepen_layers": int(rng.integers(1, 3)),
        "max_draft_rows": int(rng.integers(14, 40)),
    }


def random_rules(rng: np.random.Generator) -> LogitRules | None:
    """Return rules for about a third of the sessions; the exact model asks only whether there are any."""
    if rng.random() < 0.65:
        return None
    return LogitRules(presence_penalty=1.0, logprobs=0 if rng.random() < 0.5 else None)


def express_fault(rng: np.random.Generator):
    """Return a fault that loses, delays and so reorders express messages, or None."""
    kind = rng.choice(["fine", "cut", "late", "mixed"])
    if kind == "fine":
        return None

    def fault(stage, message):
        if kind == "cut" or (kind == "mixed" and rng.random() < 0.3):
            return None
        return float(rng.integers(0, 200))

    return fault


def run_history(seed: int, check_always: bool = False) -> int:
    """Run a random history and return the number of compared tokens.

    Invariants are checked after every event of a quarter of the histories, or of all.
    """
    rng = np.random.default_rng(seed)
    reuse = np.random.default_rng([seed, 1])  # as with `surrounding`, not of `rng`
    ruling = np.random.default_rng([seed, 2])  # likewise
    num_stages = int(rng.choice([1, 2, 2, 3, 3, 4, 5, 8]))
    vocab = int(rng.choice([1, 2, 2, 3, 4, 6]))
    verification = LAST_STAGE if seed % 2 else DRAFT_NODE
    # As with `surrounding`, not of `rng`.
    taps = [i for i in range(num_stages) if (seed + i * i) % 5 < 2]
    kept = [i for i in taps if verification == DRAFT_NODE or i < num_stages - 1]
    before = [sum(tap < i for tap in taps) for i in range(num_stages)]
    room = 1 + seed % 2 if seed % 5 == 4 else NO_WAIT  # sessions; a stage ends one beyond them with a fault
    stages = [
        Stage(
            f"v{i}",
            StageSpec(
                is_first=i == 0,
                width=1 + before[i],
                added_width=int(i in taps),
                tapped_before=before[i],
                vocab_size=vocab,
                dtype="uint64",
                draws=i == num_stages - 1 and verification == LAST_STAGE,
                max_sessions=room,
            ),
        )
        for i in range(num_stages)
    ]
    # A third of the histories have stages with a state.
    recurrent = {i for i in range(num_stages) if seed % 3 == 2 and (seed // 3 + i) % 3}
    executors = [ExactStage(i, vocab, taps=i in taps, recurrent=i in recurrent) for i in range(num_stages)]
    middles, middle_executors = random_middles(num_stages, vocab, rng, room)
    measured = MeasuredPipeline()
    head = ExactHead(vocab, rng)
    node = DraftNode(
        "d0",
        DraftNodeSpec(
            width=1 + len(taps),
            dtype="uint64",
            kept_taps=tuple((1 + before[i], 2 + before[i]) for i in kept) if seed % 7 < 5 else (),
            prefill_rows=int(rng.integers(1, 6)),
            num_stages=num_stages,
            num_routes=1 + len(middles),
            vocab_size=vocab,
            verification=verification,
            needs_features=bool(seed % 3),
            keeps_drafter=bool(reuse.random() < 0.7),
            kept_rows=int(reuse.choice([0, 60, 200, 100_000])),
            least_prefix=int(reuse.integers(1, 4)),
            whole_prefixes=bool(recurrent),
        ),
        lambda request: checked_strategy(request, middle_executors, measured),
        NoText,
        AdmissionLimits(sessions=room, queue_s=FOR_EVER),
    )
    pipeline = VirtualPipeline(
        node,
        head,
        stages,
        executors,
        RandomCosts(rng),
        express_fault=express_fault(rng),
        side_stages=middles,
        side_executors=middle_executors,
    )
    plain = PlainModel(num_stages, vocab, taps, recurrent)
    requests, cancelled = [], set()
    for i in range(int(rng.integers(1, 7))):
        name, options = random_strategy(rng)
        eos = frozenset([int(rng.integers(0, vocab))]) if rng.random() < 0.2 else frozenset()
        request = Request(
            session=f"s{i}",
            prompt=tuple(int(t) for t in rng.integers(0, vocab, size=int(rng.integers(1, 12)))),
            sampling=SamplingParams(),
            max_new_tokens=int(rng.integers(1, 20)),
            eos=eos,
            strategy=name,
            strategy_options=options,
            rules=random_rules(ruling),
        )
        requests.append(request)
        start = float(rng.integers(0, 60))
        pipeline.start(request, start)
        if rng.random() < 0.15:
            cancelled.add(request.session)
            pipeline.cancel(request.session, start + float(rng.integers(0, 300)))
    requests += follow_ups(pipeline, plain, requests, reuse)
    check_all = rng.random() < 0.25 or check_always
    losing = float(reuse.choice([0.0, 0.0, 0.005, 0.05]))
    while pipeline.step():
        if reuse.random() < losing:
            lose_kept(node, stages, reuse)
        if check_all:
            check_invariants(node, stages, TARGET)
            for route, middle in enumerate(middles, start=1):
                check_invariants(node, [middle], route)
    compared = 0
    for request in requests:
        outputs = [t.output for t in pipeline.outputs if t.output.session == request.session]
        assert not any(isinstance(o, Failed) for o in outputs), (seed, outputs[-1])
        compared += check_outputs(
            request, outputs, plain, (num_stages, len(middles)), request.session in cancelled
        )
        check_fed(request, head, plain)
    node.target.forget(node.target.names)
    pipeline.cancel("nothing")  # has the draft node send what it has to send
    pipeline.run()
    check_clean(node, [*stages, *middles], [*executors, *middle_executors], head)
    return compared


def check_outputs(
    request: Request, outputs: list[Output], plain: PlainModel, devices: tuple[int, int], cancelled: bool
) -> int:
    """Hold what came out against the model alone; return the number of tokens.

    devices: number of the stages, and of the middle models.
    """
    got = [token for o in outputs if isinstance(o, Tokens) for token in o.token_ids]
    if request.rules is not None and request.rules.logprobs is not None:
        assert got == [each.token for o in outputs if isinstance(o, Tokens) for each in o.likelihoods]
    want = plain.generate(request.prompt, request.max_new_tokens, request.eos, request.rules)
    if cancelled and not isinstance(outputs[-1] if outputs else None, Finished):
        assert got == want[: len(got)]
        return len(got)
    assert isinstance(outputs[-1], Finished)
    finished, used = outputs[-1], min(devices[1], int(request.strategy_options.get("models", 2)) - 2)
    assert len(finished.reports) == devices[0] + 1, "a fault ended a session that had finished"
    assert len(finished.side_reports) == used
    assert got == want, (request.strategy, got, want)
    return len(got)


def check_fed(request: Request, head: ExactHead, plain: PlainModel) -> None:
    """Hold the true rows that the drafter was given for a request against the model alone."""
    # Rows beyond the end of the answer may be verified together with its last.
    answer = plain.generate(request.prompt, request.max_new_tokens + BEYOND, rules=request.rules)
    text = [*request.prompt, *answer]
    fed, told = head.fed.get(request.session, []), head.told.get(request.session, [])
    assert fed == plain.features[: len(fed)], "the drafter was given other features"
    assert told == text[1 : 1 + len(told)], "the drafter was given other tokens"


def follow_ups(
    pipeline: VirtualPipeline, plain: PlainModel, requests: list[Request], rng: np.random.Generator
) -> list[Request]:
    """Start requests whose prompts begin as the texts of others do: later turns, and shared beginnings."""
    later: list[Request] = []
    for i in range(int(rng.integers(0, 5))):
        source = [*requests, *later][int(rng.integers(0, len(requests) + len(later)))]
        answer = plain.generate(source.prompt, source.max_new_tokens, source.eos, source.rules)
        text = (*source.prompt, *answer)
        shared = text[: int(rng.integers(1, len(text) + 1))] if rng.random() < 0.5 else text
        added = tuple(int(t) for t in rng.integers(0, plain.vocab, size=int(rng.integers(0, 5))))
        name, options = random_strategy(rng)
        request = Request(
            session=f"f{i}",
            prompt=(*shared, *added),
            sampling=SamplingParams(),
            max_new_tokens=int(rng.integers(1, 12)),
            strategy=name,
            strategy_options=options,
            reuses_prefix=bool(rng.random() < 0.9),
        )
        later.append(request)
        pipeline.start(request, float(rng.integers(0, 60) * rng.choice([1, 10, 100, 300])))
    return later


def lose_kept(node: DraftNode, stages: list[Stage], rng: np.random.Generator) -> None:
    """Have the draft node forget a kept session, or a stage lose one that the draft node relies on."""
    if rng.random() < 0.5:
        node.target.forget_oldest(1)
        return
    stage = stages[int(rng.integers(0, len(stages)))]
    for name in kept_by(stage)[:1]:
        stage.receive(Forget(name), LinkKind.IN_BAND)


def random_middles(
    num_stages: int, vocab: int, rng: np.random.Generator, room: int
) -> tuple[list[Stage], list[ExactMiddle]]:
    """Return zero to three middle models with their executors; later models agree more with the target."""
    count = int(rng.choice([0, 1, 1, 2, 3]))
    spec = StageSpec(is_first=True, width=1, vocab_size=vocab, returns_tokens=True, max_sessions=room)
    doubts = sorted(rng.choice([1, 2, 5, 50], size=count).tolist())
    stages = [Stage(f"m{route}", spec) for route in range(1, 1 + count)]
    return stages, [ExactMiddle(num_stages, vocab, doubt) for doubt in doubts]


def checked_strategy(request: Request, middles: list[ExactMiddle], measured: MeasuredPipeline) -> Strategy:
    """Return a strategy whose segments are computed with those of other sessions, more often than not."""
    name, options = request.strategy, request.strategy_options
    strategy = checked_hierarchy(name, options, request.given, middles) or session_strategy(request, measured)
    strategy.computed_alone = sum(request.prompt) % 4 == 0  # type: ignore[misc]
    return strategy
