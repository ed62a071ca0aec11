"""The real models that supply the tokens of a benchmark, loaded once a process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flowedge.agent.holding.stage_content import WholeModel
from flowedge.core.errors import BadRequestError, CheckpointError
from flowedge.core.pipeline_config import PipelineConfig, drafter_label
from flowedge.core.sampling import SamplingParams
from flowedge.drafting.choice import BUNDLED
from flowedge.drafting.draft_vocabulary import DraftVocabulary
from flowedge.drafting.drafter import Drafter
from flowedge.drafting.drafter_format import DrafterFormat
from flowedge.drafting.loading import (
    TargetModel,
    drafter_directory,
    drafter_kinds,
    load_drafter,
    tokenizer_of,
)
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.tokenizer_loading import eos_token_ids, load_tokenizer
from flowedge.models.files.config_support import max_positions
from flowedge.models.host.payloads import torch_dtype
from flowedge.models.language_model import LanguageModel
from flowedge.models.lm_head import LMHead
from flowedge.planning.in_process import load_blocks
from flowedge.planning.split import even_split, layer_ranges
from flowedge.text.tokenizer import encode_messages
from flowedge_testbed.emulation.draft_share import WHOLE, DraftShare, priced_tokens
from flowedge_testbed.profiles import library
from flowedge_testbed.true_paths.path_file import PathFile
from flowedge_testbed.true_paths.path_header import TargetFacts, vocabulary_digest
from flowedge_testbed.true_paths.path_store import PathStore
from flowedge_testbed.true_paths.true_path import PathSource


@dataclass(frozen=True)
class LoadedTarget:
    """A target on disk: its checkpoint and what of it is in memory."""

    checkpoint: Checkpoint
    head: LMHead
    tokenizer: Any

    @classmethod
    def load(cls, model: str, dtype: torch.dtype, device: str) -> LoadedTarget:
        """Open a model and read its LM head. Errors as in Checkpoint.open."""
        checkpoint = Checkpoint.open(model)
        return cls(checkpoint, LMHead.load(checkpoint, dtype, device), load_tokenizer(checkpoint))

    def facts(self, model: str) -> TargetFacts:
        """Return what is known of the target without its weights, which the name `model` stands for."""
        stored, head = self.checkpoint, self.head
        quantised = stored.quant != "none" or stored.integer_format is not None
        return TargetFacts(
            title=model.rstrip("/").rsplit("/", 1)[-1],
            fingerprint=stored.fingerprint,
            tokenizer=vocabulary_digest(self.tokenizer),
            parameters=None if quantised else sum(math.prod(stored.shape(name)) for name in stored.names),
            vocab_size=head.vocab_size,
            hidden_size=head.hidden_size,
            max_positions=max_positions(stored.config),
            eos=sorted(eos_token_ids(stored, self.tokenizer)),
            dtype=_dtype_name(head.weight.dtype),
            device=head.device.type,
        )


@dataclass
class ModelSet:
    """A target, its drafter and its middle models.

    Attributes:
        facts: what is known of the target, from its files or from a file of true paths.
        target: None where true paths come from a file, and no drafter reads the target's weights.
        kept: the file that true paths come from; None where the target computes them.
        model, drafter_names, middle_names: the names that the models were loaded by.
        drafted: the target as drafters know it.
        middles: the middle models of a PipeSpec hierarchy, the smallest first.
        turns: the user's messages of each conversation that was encoded, by its tokens.
    """

    facts: TargetFacts
    target: LoadedTarget | None
    kept: PathFile | None
    drafter: Drafter
    drafted: TargetModel
    model: str
    drafter_names: tuple[str, ...]
    middles: tuple[LanguageModel, ...] = ()
    middle_names: tuple[str, ...] = ()
    turns: dict[tuple[int, ...], tuple[str, ...]] = field(default_factory=dict)
    _middle_parts: dict[tuple[int, int], list[LanguageModel]] = field(default_factory=dict)
    _blocks: dict[tuple[int, ...], list[LayerBlock]] = field(default_factory=dict)
    _drafters: dict[DraftShare, Drafter] = field(default_factory=dict)

    @classmethod
    def load(
        cls,
        model: str,
        drafter: tuple[str, ...],
        middles: Sequence[str] = (),
        dtype: torch.dtype | None = None,
        device: str = "cpu",
        paths: str | None = None,
    ) -> ModelSet:
        """Load the models that `--model`, `--drafter` and `--middle` name.

        Args:
            dtype: of all weights, caches and hidden states: float32, or that of `paths`, if not given.
            device: of all computation: cpu, cuda, or auto, which takes a GPU if there is one; the bundled
                models stay on the CPU then.
            paths: a file of true paths, or the name of a shipped one, which stands for the target. The target
                itself is opened for a draft head alone, or if it is not "bundled".

        Raises:
            CheckpointError: when a checkpoint cannot be used.
            BadRequestError: when `drafter` is `none`, a name is wrong, or the models do not fit each other.
        """
        device = _chosen(device, model)
        kept = None if paths is None else PathFile.read(library.true_paths(paths))
        target: LoadedTarget | None = None
        if kept is None:
            target = LoadedTarget.load(model, dtype or torch.float32, device)
            facts = target.facts(model)
        else:
            facts = kept.header.target
            _check_dtype(kept, dtype)
            if model != BUNDLED or {"eagle", "eagle3"} & {*drafter_kinds(drafter)}:
                target = LoadedTarget.load(model, torch_dtype(facts.dtype), device)
                _check_is_target(target.facts(model), kept, model)
        drafted = _drafted(facts, target, device, drafter)
        loaded = load_drafter(drafter, drafted)
        if loaded is None:
            raise BadRequestError(
                f"--drafter is {drafter_label(drafter)}, but a benchmark needs a drafter: name one"
            )
        if kept is not None and loaded.needs_features:
            kept.check_features(loaded.taps, drafter_label(drafter))
        between = tuple(_load_middle(middle, facts, target, drafted) for middle in middles)
        return cls(facts, target, kept, loaded, drafted, model, drafter, between, tuple(middles))

    def fingerprints(self) -> dict[str, Any]:
        """Return digests of what tokens depend on: the models' weights by the role of the model."""
        middles = [middle.fingerprint for middle in self.middles]
        computed = {"dtype": self.facts.dtype, "device": self.facts.device}
        return {
            "model": self.facts.fingerprint,
            "drafter": self.drafter_fingerprint,
            **({"middles": middles} if middles else {}),
            **({} if self.kept is None else {"paths": self.kept.digest}),
            **({} if computed == {"dtype": "float32", "device": "cpu"} else computed),
        }

    @property
    def drafter_fingerprint(self) -> str:
        return self.drafter.fingerprint

    @property
    def checkpoint(self) -> Checkpoint:
        """The target's checkpoint.

        Raises:
            BadRequestError: when a file of true paths stands for the target.
        """
        return self._on_disk().checkpoint

    @property
    def head(self) -> LMHead:
        """The target's LM head. Errors as in `checkpoint`."""
        return self._on_disk().head

    @property
    def tokenizer(self) -> Any:
        """The target's tokenizer. Errors as in `checkpoint`."""
        return self._on_disk().tokenizer

    @property
    def eos(self) -> frozenset[int]:
        return frozenset(self.facts.eos)

    def encode(self, message: str) -> tuple[int, ...]:
        """Return the tokens of a chat with this user message, up to the start of the answer.

        Raises:
            BadRequestError: when true paths come from a file that has none of this prompt.
        """
        return self.encode_turns((message,), (), None)

    def encode_turns(
        self, turns: Sequence[str], answers: Sequence[Sequence[int]], sampling: SamplingParams | None
    ) -> tuple[int, ...]:
        """Return the tokens of a conversation, up to the start of the next answer.

        Args:
            turns: the user's messages; answers: the target's, as tokens, to all of them but the last.
            sampling: by which the answers were drawn.

        Raises:
            BadRequestError: when true paths come from a file that has none of this conversation.
        """
        if self.kept is not None:
            return self.kept.encode(turns, sampling)
        messages = [{"role": "user", "content": turns[0]}]
        for drawn, turn in zip(answers, turns[1:], strict=True):
            shown = [token for token in drawn if token not in self.eos]
            answer = self.tokenizer.decode(shown, skip_special_tokens=True)
            messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": turn}]
        tokens = tuple(encode_messages(self.tokenizer, messages))
        self.turns[tokens] = tuple(turns)
        return tokens

    def path_source(self, directory: Path) -> PathSource:
        """Return the source of true paths, which stores in a directory what it computes."""
        if self.kept is not None:
            return self.kept
        dtype = torch_dtype(self.facts.dtype)
        return PathStore(directory / "paths", self.checkpoint, self.head, self.drafter.taps, dtype)

    def drafter_for(self, share: DraftShare) -> Drafter:
        """Return the drafter over a part of the target's vocabulary, in a format. Each is loaded once.

        The part has the most frequent tokens, by the target's ranking among the profiles.

        Raises:
            BadRequestError: when no ranking of the target's tokens is shipped.
        """
        if share == WHOLE:
            return self.drafter
        if share not in self._drafters:
            self._drafters[share] = self._loaded(share)
        return self._drafters[share]

    def _loaded(self, share: DraftShare) -> Drafter:
        vocabulary, vocab_size = None, self.facts.vocab_size
        if share.share < 1:
            ranking = library.token_ranking(self.facts.fingerprint)
            ids = np.array(ranking.ids[: priced_tokens(share.share, vocab_size)], dtype=np.int64)
            vocabulary = DraftVocabulary(ids, vocab_size)
        target = replace(self.drafted, form=DrafterFormat(share.quant), vocabulary=vocabulary)
        drafter = load_drafter(self.drafter_names, target)
        assert drafter is not None  # `load` has loaded it whole
        return drafter

    def middle_parts(self, counts: Sequence[int]) -> list[list[LanguageModel]]:
        """Return each middle model as the parts that so many devices hold. Each division is loaded once.

        Raises:
            BadRequestError: when a middle model has fewer layers than devices.
        """
        return [self._divided(place, count) for place, count in enumerate(counts)]

    def _divided(self, place: int, count: int) -> list[LanguageModel]:
        key = (place, count)
        if key not in self._middle_parts:
            middle = self.middles[place]
            ranges = layer_ranges(even_split(middle.block.stop, count))
            self._middle_parts[key] = middle.parts(ranges)
        return self._middle_parts[key]

    def blocks(self, split: tuple[int, ...]) -> list[LayerBlock]:
        """Return the target's layers in blocks of these sizes. Each split is loaded once."""
        if split not in self._blocks:
            dtype, device = self.drafted.dtype, self.drafted.device
            self._blocks[split] = load_blocks(self.checkpoint, split, dtype=dtype, device=device)
        return self._blocks[split]

    def _on_disk(self) -> LoadedTarget:
        if self.target is None:
            assert self.kept is not None
            raise BadRequestError(
                f"{self.kept.file} stands for {self.facts.title}, whose weights are not loaded: use the "
                "replay clock, or leave --paths out and name the model"
            )
        return self.target


def _dtype_name(dtype: torch.dtype) -> Any:
    return str(dtype).removeprefix("torch.")


def _chosen(device: str, model: str) -> str:
    """Return cpu or cuda.

    Raises:
        BadRequestError: when there is no such device.
    """
    if device == "auto":
        return "cuda" if model != BUNDLED and torch.cuda.is_available() else "cpu"
    if device not in ("cpu", "cuda"):
        raise BadRequestError(f"--device {device}: give cpu, cuda or auto")
    if device == "cuda" and not torch.cuda.is_available():
        raise BadRequestError(
            f"--device cuda: torch {torch.__version__} finds no GPU here; give --device cpu, or install a "
            "torch that is built for the machine's GPU"
        )
    return device


def _check_dtype(kept: PathFile, dtype: torch.dtype | None) -> None:
    stored = kept.header.target.dtype
    if dtype is not None and _dtype_name(dtype) != stored:
        raise BadRequestError(
            f"{kept.file} was computed in {stored}, not in {_dtype_name(dtype)}; leave --dtype out"
        )


def _check_is_target(found: TargetFacts, kept: PathFile, model: str) -> None:
    """Check that a model on disk is the one whose true paths a file holds.

    Raises:
        BadRequestError: when it is another, or has another tokenizer.
    """
    stored = kept.header.target
    if found.fingerprint != stored.fingerprint:
        raise BadRequestError(
            f"{kept.file} holds the true paths of {stored.title} (fingerprint {stored.fingerprint[:12]}), "
            f"and --model {model} is another model ({found.fingerprint[:12]}); name the model of the file"
        )
    if found.tokenizer != stored.tokenizer:
        raise BadRequestError(
            f"{kept.file} holds the true paths of {stored.title}, and --model {model} has another tokenizer "
            "than that model had then; write the file again by --save-paths"
        )


def _drafted(
    facts: TargetFacts, target: LoadedTarget | None, device: str, drafter: Sequence[str]
) -> TargetModel:
    """Return the target as drafters of these names know it.

    Raises:
        CheckpointError: when a language model has another tokenizer than a target that is not on disk.
    """
    dtype = torch_dtype(facts.dtype)
    if target is not None:
        return TargetModel(target.checkpoint, target.head, target.tokenizer, dtype)
    models = [name for name in drafter if drafter_kinds((name,)) == ("lm",)]
    equal = [_equal_tokenizer("drafter", Checkpoint(drafter_directory(name)), facts) for name in models]
    return TargetModel(
        None,
        None,
        equal[0] if equal else None,
        dtype,
        stated_name=facts.title,
        stated_vocab=facts.vocab_size,
        stated_device=device,
    )


def _equal_tokenizer(what: str, checkpoint: Checkpoint, facts: TargetFacts) -> Any:
    """Return a model's tokenizer, which equals the target's.

    Raises:
        CheckpointError: when it does not.
    """
    tokenizer = tokenizer_of(checkpoint)
    if vocabulary_digest(tokenizer) != facts.tokenizer:
        raise CheckpointError(
            f"{what} {checkpoint.place} has another tokenizer than the target {facts.title}; a language "
            "model drafts only for models with its own tokenizer"
        )
    return tokenizer


def _load_middle(
    middle: str, facts: TargetFacts, target: LoadedTarget | None, drafted: TargetModel
) -> LanguageModel:
    config, size = PipelineConfig(model=middle), facts.vocab_size
    if target is None:
        checkpoint = WholeModel(config, 0, 0).open(hub=True)
        _equal_tokenizer("middle model", checkpoint, facts)
    else:
        named = f"the target {facts.title}"
        _, checkpoint = WholeModel.matching(config, target.tokenizer, vocab_size=size, target=named)
    return LanguageModel.load(checkpoint, size, drafted.dtype, drafted.device)
