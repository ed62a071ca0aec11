"""Whole trainings of tiny random targets."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

from flowedge.cli.main import run
from flowedge.core.errors import BadRequestError, CheckpointError
from flowedge.core.request import DecodeCounters, Request, Tokens
from flowedge.core.sampling import SamplingParams
from flowedge.drafting.block.block_drafter import BlockDrafter
from flowedge.drafting.block.block_head import BlockHead
from flowedge.drafting.heads.eagle3_head import Eagle3Head
from flowedge.drafting.heads.eagle_head import EagleHead
from flowedge.drafting.heads.head_drafter import HeadDrafter
from flowedge.drafting.loading import TargetModel, load_drafter
from flowedge.models.check.reference import ReferenceModel
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.tokenizer_loading import load_tokenizer
from flowedge.models.lm_head import LMHead
from flowedge.planning.fixed_costs import FixedCosts
from flowedge.planning.in_process import virtual_pipeline
from flowedge.text.tokenizer import encode_chat
from flowedge.training.documents import Batch, TrainingText
from flowedge.training.heads.eagle_training import EagleTraining, with_noise
from flowedge.training.heads.head_kinds import new_head
from flowedge.training.heads.head_training import LossSums
from flowedge.training.heads.unrolled import unrolled
from flowedge.training.local_target import LocalTarget
from flowedge.training.run import AcceptanceLength, TrainingObserver, _evaluate, train_drafter
from flowedge.training.settings import TrainingSettings
from flowedge.training.state import TrainingProgress
from flowedge.training.target import TrainingTarget
from tests.drafting.conftest import BUNDLED_MODEL, TOKENIZER, save_small_lm
from tests.engine.histories import NoText
from tests.models.tiny_families import make_tiny
from tests.support.breadth import dealt

pytestmark = pytest.mark.slow
TRAINING = TrainingSettings(steps=20, batch_tokens=128, max_length=48, learning_rate=5e-3, evaluate=1, seed=3)
KINDS = {
    "eagle": (replace(TRAINING, draft_vocab=3000, unroll=2), EagleHead),
    "eagle3": (replace(TRAINING, kind="eagle3", draft_vocab=3000, unroll=3), Eagle3Head),
    "dspark": (replace(TRAINING, kind="dspark", draft_vocab=3000, block_size=4, head_layers=2), BlockHead),
}
LEARNED = {
    "eagle": (0, 0.9),
    "eagle3": (1, 0.98),
    "dspark": (1, 0.98),
}  # which loss of Recorder.losses falls, and below what share


class Recorder(TrainingObserver):
    """A watcher that keeps all reports, and interrupts after a given step."""

    def __init__(self, interrupt_after: int | None = None) -> None:
        self.interrupt_after = interrupt_after
        self.losses: dict[int, tuple[float, float]] = {}  # smoothed, by step
        self.lines: list[str] = []
        self.answers: list[int] = []
        self.kept = -1

    def say(self, line: str) -> None:
        self.lines.append(line)

    def advance(self, what: str, done: int, total: int) -> None:
        if what == "answering":
            self.answers.append(done)
            if done == self.interrupt_after:
                raise KeyboardInterrupt

    def step(self, progress: TrainingProgress, share: float) -> None:
        assert 0 < share <= 1
        self.losses[progress.step] = (progress.feature_loss, progress.token_loss)

    def saved(self, step: int) -> None:
        self.kept = step
        if step == self.interrupt_after:
            raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def small_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step is kept, and evaluations are short."""
    torch.set_num_threads(1)
    monkeypatch.setattr("flowedge.training.run.SAVE_EVERY_S", -1.0)
    monkeypatch.setattr("flowedge.training.run.NEW_TOKENS", 16)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_lm(
        tmp_path_factory.mktemp("target"), seed=2, num_hidden_layers=7, initializer_range=0.2
    )


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_falls_and_the_head_drafts_losslessly(
    target: Path, data: Path, tmp_path: Path, kind: str
) -> None:
    out, watcher = tmp_path / "head", Recorder()
    settings, head_class = KINDS[kind]
    acceptance = train_drafter(str(target), data, out, settings, watcher)
    which, bound = LEARNED[kind]
    assert watcher.losses[20][which] < bound * watcher.losses[1][which]
    assert acceptance.tokens >= acceptance.cycles > 0
    report = json.loads((out / "training.json").read_text())
    assert report["training"]["step"] == 20
    assert report["evaluation"]["acceptance_length"] == pytest.approx(acceptance.length, abs=1e-4)
    assert 1 + sum(report["evaluation"]["accepted_by_depth"]) == pytest.approx(acceptance.length, abs=1e-3)

    checkpoint = Checkpoint(target)
    head = LMHead.load(checkpoint)
    tokenizer = load_tokenizer(checkpoint)
    drafter = load_drafter((str(out),), TargetModel(checkpoint, head, tokenizer, torch.float32))
    assert isinstance(drafter, HeadDrafter | BlockDrafter) and isinstance(drafter.head, head_class)
    prompt = tuple(encode_chat(tokenizer, "Count to 7."))
    pipeline = virtual_pipeline(
        checkpoint, [3, 4], FixedCosts(), drafter=drafter, head=head, make_text=NoText
    )
    request = Request("s", prompt, SamplingParams(), 24, strategy="flowspec")
    outputs = [timed.output for timed in pipeline.generate(request)]
    tokens = [token for output in outputs if isinstance(output, Tokens) for token in output.token_ids]
    expected = ReferenceModel.load(checkpoint).generate(prompt, SamplingParams(), 24, frozenset())
    assert tokens == list(expected.token_ids)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupted_training_equals_an_uninterrupted_one(
    target: Path, data: Path, tmp_path: Path, kind: str
) -> None:
    whole, halves, rest = Recorder(), Recorder(interrupt_after=3), Recorder()
    settings = replace(KINDS[kind][0], steps=6)
    train_drafter(str(target), data, tmp_path / "whole", settings, whole)
    with pytest.raises(KeyboardInterrupt):
        train_drafter(str(target), data, tmp_path / "halves", settings, halves)
    train_drafter(str(target), data, tmp_path / "halves", settings, rest)
    assert "going on from step 3" in rest.lines
    assert list(rest.losses) == list(range(4, 7))
    for step, losses in (halves.losses | rest.losses).items():
        assert losses == pytest.approx(whole.losses[step], rel=1e-5)
    one, other = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "halves"))
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, rtol=1e-4, atol=1e-6)


def test_a_training_that_was_interrupted_before_its_first_step_goes_on(
    target: Path, data: Path, tmp_path: Path
) -> None:
    settings = TrainingSettings(steps=2, batch_tokens=128, max_length=48, evaluate=0)
    with pytest.raises(KeyboardInterrupt):
        train_drafter(str(target), data, tmp_path / "head", settings, Recorder(interrupt_after=0))
    watcher = Recorder()
    train_drafter(str(target), data, tmp_path / "head", settings, watcher)
    assert "going on from step 0" in watcher.lines
    assert list(watcher.losses) == [1, 2]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", KINDS)
def test_computing_in_pieces_changes_nothing(
    target: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    settings = replace(KINDS[kind][0], steps=4)
    whole, pieces = Recorder(), Recorder()
    train_drafter(str(target), data, tmp_path / "whole", settings, whole)
    monkeypatch.setattr("flowedge.training.heads.head_training.HELD_LOGITS", 5 * 4096)
    monkeypatch.setattr("flowedge.training.local_target.CHUNK_ROWS", 7)
    if kind == "eagle3":  # the order of texts changes the noise, which it has none of
        monkeypatch.setattr("flowedge.training.documents.LEAST_FILL", 1.0)
    train_drafter(str(target), data, tmp_path / "pieces", settings, pieces)
    assert len(pieces.losses) == 4
    for step, losses in pieces.losses.items():
        assert losses == pytest.approx(whole.losses[step], rel=1e-3)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", KINDS)
def test_a_training_goes_on_from_a_head(target: Path, data: Path, tmp_path: Path, kind: str) -> None:
    settings, first, second = replace(KINDS[kind][0], steps=8), Recorder(), Recorder()
    train_drafter(str(target), data, tmp_path / "first", settings, first)
    again = replace(settings, steps=1, init=str(tmp_path / "first"), draft_vocab=7)
    train_drafter(str(target), data, tmp_path / "second", again, second)
    which, _ = LEARNED[kind]
    assert second.losses[1][which] < first.losses[8][which] < first.losses[1][which]
    other = save_small_lm(tmp_path / "other", hidden_size=64, num_hidden_layers=7)
    with pytest.raises(CheckpointError, match="hidden size 32"):
        train_drafter(str(other), data, tmp_path / "third", again, Recorder())


def test_features_are_the_plain_models(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flowedge.training.local_target.CHUNK_ROWS", 7)
    tokens = np.arange(5, 35, dtype=np.int32)
    model = LlamaForCausalLM.from_pretrained(target, dtype=torch.float32)
    with torch.no_grad():
        ids = torch.from_numpy(tokens.astype(np.int64))[None]
        states = model.model(ids, output_hidden_states=True).hidden_states
    loaded = LocalTarget(str(target), "none", torch.float32, taps=(2, 3, 4))
    (features,) = loaded.features([tokens])
    expected = torch.cat([states[index][0] for index in (-1, 2, 3, 4)], dim=1)
    torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-4)


def test_the_cross_entropy_is_over_the_given_tokens(target: Path) -> None:
    loaded = LocalTarget(str(target), "none", torch.float32)
    tokens = np.arange(2, 14, dtype=np.int32)
    (features,) = loaded.features([tokens])
    batch = Batch.of([TrainingText(tokens, np.arange(len(tokens)) >= 3)], [features], features.shape[1])
    ids = torch.tensor([3, 5, 8, 2000])
    losses: list[LossSums] = []
    for compared in (ids, None):
        sums, noise = LossSums(), torch.Generator().manual_seed(1)
        head = new_head(loaded.checkpoint.config, torch.Generator().manual_seed(2))
        training = EagleTraining(head, loaded, 0.1, 1, torch.float32, compared)
        training.backward(batch, int(batch.counted[:, 2:].sum()), noise, sums)
        losses.append(sums)
    with torch.no_grad():
        given = with_noise(features[None, :-1], batch.spread, torch.Generator().manual_seed(1))
        (output,) = unrolled(head, loaded.embed(tokens[None, 1:]), given, 1)
        # Row t predicts the feature of row t + 1, from which token t + 2 is drawn; token 3 is the first.
        rows = (output[0, 1:-1], features[2:-1])
        predicted, wanted = (loaded.lm_head.logits(own)[:, ids] for own in rows)
        expected = torch.nn.functional.cross_entropy(predicted, wanted.softmax(-1))
    assert losses[0].token == pytest.approx(expected.item(), rel=1e-4)
    assert losses[0].feature == pytest.approx(losses[1].feature)
    assert losses[0].token != pytest.approx(losses[1].token)


def test_another_training_is_refused_until_restart(target: Path, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "head"
    with pytest.raises(KeyboardInterrupt):
        train_drafter(str(target), data, out, TRAINING, Recorder(interrupt_after=2))
    other = TrainingSettings(steps=2, batch_tokens=128, learning_rate=5e-3, evaluate=1, seed=4)
    with pytest.raises(BadRequestError, match=r"another max length .48, now 512.*--restart"):
        train_drafter(str(target), data, out, other, Recorder())
    changed = tmp_path / "changed.jsonl"
    changed.write_text(data.read_text() + '{"text": "One more of them."}\n')
    with pytest.raises(BadRequestError, match="another data"):
        train_drafter(str(target), changed, out, TRAINING, Recorder())
    (out / ".training" / "state.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"state\.json: cannot be read"):
        train_drafter(str(target), data, out, TRAINING, Recorder())
    watcher = Recorder()
    train_drafter(str(target), data, out, other, watcher, restart=True)
    assert list(watcher.losses) == [1, 2]


def test_the_target_answers_itself(target: Path, tmp_path: Path) -> None:
    """Prompts without answers are enough, and answers that are there are not made again."""
    data, out = tmp_path / "prompts.jsonl", tmp_path / "head"
    data.write_text("".join(f'{{"turns": ["Question {n}?"]}}\n' for n in range(6)))
    asked = TrainingSettings(steps=2, self_generate=2, answer_tokens=12, evaluate=1, learning_rate=1e-3)
    with pytest.raises(BadRequestError, match="--self-generate"):
        train_drafter(str(target), data, out, TRAINING, Recorder())
    with pytest.raises(KeyboardInterrupt):
        train_drafter(str(target), data, out, asked, Recorder(interrupt_after=3))
    made = (out / ".training" / "responses.jsonl").read_text().splitlines()
    assert len(made) == 3
    watcher = Recorder()
    train_drafter(str(target), data, out, asked, watcher)
    assert watcher.answers == [3, 4]
    entries = [json.loads(line) for line in (out / ".training" / "responses.jsonl").read_text().splitlines()]
    assert [json.loads(line) for line in made] == entries[:3]
    reference = ReferenceModel.load(Checkpoint(target))
    for entry, temperature, seed in zip(entries, (0.0, 1.0) * 2, range(4), strict=True):
        prompt, answer = entry["tokens"][: entry["prompt_length"]], entry["tokens"][entry["prompt_length"] :]
        sampling = SamplingParams(temperature=temperature, seed=seed)
        expected = list(reference.generate(prompt, sampling, 12, frozenset()).token_ids)
        assert expected[: len(answer)] == answer
        assert len(answer) == 12 or answer[-1] in LocalTarget(str(target), "none", torch.float32).eos


def test_a_quantised_target_in_half_precision(data: Path, tmp_path: Path) -> None:
    target = save_small_lm(tmp_path / "target", seed=2)
    settings = TrainingSettings(
        steps=20, batch_tokens=128, learning_rate=5e-3, evaluate=2, quant="int8", dtype="bfloat16"
    )
    watcher = Recorder()
    acceptance = train_drafter(str(target), data, tmp_path / "head", settings, watcher)
    assert watcher.losses[20][0] < 0.9 * watcher.losses[1][0]
    assert acceptance.prompts == 2
    assert acceptance.tokens >= acceptance.cycles > 0
    assert acceptance.lookup >= 1, "lookup was tried on the same prompts"
    said = "\n".join(watcher.lines)
    assert "A useful one needs texts as the model writes them, and about 10 million tokens" in said
    assert re.search(r"an update of \d+ tokens takes [\d.]+ s: about \d+ more of them in this training", said)


@pytest.mark.parametrize(
    ("tokens", "lookup", "is_of_use"),
    [(252, 0.0, False), (260, 1.2, False), (420, 1.2, True), (420, 0.0, True)],
)
def test_a_head_is_held_against_lookup(tokens: int, lookup: float, is_of_use: bool) -> None:
    assert AcceptanceLength(4, tokens, 252, lookup).is_of_use is is_of_use


def test_the_evaluation_of_a_short_training_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow:
        """A target of which each answer takes 30 s."""

        taps, context = (), 4096

        def decode(self, drafter: str, questions: list[object], strategy: str) -> Iterator[DecodeCounters]:
            for _ in questions:
                clock.append(clock[-1] + 30.0)
                yield DecodeCounters(accepted_per_round=(2, 1))

    clock = [0.0]
    monkeypatch.setattr("flowedge.training.run.time", SimpleNamespace(monotonic=lambda: clock[-1]))
    settings, watcher = TrainingSettings(minutes=5, evaluate=4), Recorder()
    acceptance = _evaluate(cast(TrainingTarget, Slow()), Path("head"), [[1]] * 4, settings, watcher)
    assert (acceptance.prompts, acceptance.length, acceptance.lookup) == (2, 1.5, 1.5)
    assert acceptance.by_depth == [0.5], "every other cycle accepted a child of the root"
    assert watcher.lines == ["evaluating for up to 60 s, and a prompt each, beyond the training"]
    assert clock[-1] == 120.0


@pytest.mark.parametrize(
    "family",
    dealt(
        ("gemma2", "gemma3", "granite", "phi3-longrope", "qwen3_moe", "qwen3"),
        {"gemma3", "phi3-longrope", "qwen3_moe"}.__contains__,
    ),
)
def test_every_kind_of_family_gets_a_head(family: str, data: Path, tmp_path: Path) -> None:
    model = make_tiny(tmp_path / "target", family, vocab_size=4096)
    for name in TOKENIZER:
        shutil.copy(BUNDLED_MODEL / name, model / name)
    settings = TrainingSettings(steps=2, batch_tokens=64, max_length=48, evaluate=0)
    train_drafter(str(model), data, tmp_path / "head", settings, Recorder())
    checkpoint = Checkpoint(model)
    choice = TargetModel(checkpoint, LMHead.load(checkpoint), load_tokenizer(checkpoint), torch.float32)
    drafter = load_drafter((str(tmp_path / "head"),), choice)
    assert isinstance(drafter, HeadDrafter) and isinstance(drafter.head, EagleHead)


WRONG_USAGE: list[tuple[list[str], str]] = [
    ([], "--data"),
    (["--steps", "0"], "--steps"),
    (["--steps", "3", "--minutes", "3"], "either --minutes or --steps"),
    (["--minutes", "-1"], "--minutes"),
    (["--minutes", "nan"], "--minutes"),
    (["--lr", "0"], "--lr"),
    (["--batch-tokens", "0"], "--batch-tokens"),
    (["--unroll", "0"], "--unroll"),
    (["--draft-vocab", "0"], "--draft-vocab"),
    (["--init", "nowhere"], "nowhere: no such directory"),
    (["--quant", "int3"], "nf4"),
    (["--stages", "2", "--devices"], "give one of --stages, --peers and --devices"),
    (["--stages", "2", "--split", "2,3,3"], "for 3 stages, but there are 2"),
    (["--split", "4,4"], "--split is for the stages"),
    (["--peers", "127.0.0.1:1,127.0.0.1:1"], "named twice"),
    (["--device", "mps"], "give cpu or cuda"),
    (["--data", "missing.jsonl"], "missing.jsonl"),
    (["--out", "/dev/null"], "not a directory"),
    (["--out", str(BUNDLED_MODEL), "--restart"], "tokenizer"),
    (["--out", str(BUNDLED_MODEL.parent / "eagle")], "--restart"),
]


def test_wrong_usage(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, complaint in WRONG_USAGE:
        given = ["--data", str(data), "--out", str(tmp_path / "head")] if arguments else []
        assert run(["train-drafter", "bundled", *given, *arguments]) == 2
        error = capsys.readouterr().err
        assert complaint in error
        assert error.splitlines()[-1].startswith("flowedge: ")
        assert not (tmp_path / "head").exists()


def test_the_command(target: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "head"
    command = ["train-drafter", str(target), "--data", str(data), "--out", str(out)]
    assert run([*command, "--steps", "2", "--evaluate", "1"]) == 0
    assert f"--drafter {out}" in capsys.readouterr().out
    written = {".training", "config.json", "model.safetensors", "training.json"}
    assert {path.name for path in out.iterdir()} == written
