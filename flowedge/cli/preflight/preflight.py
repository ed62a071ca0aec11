"""The checks of a command that asks a pipeline, before agents or torch are started."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flowedge.agent.config.loading import load_config
from flowedge.cli.pipelines.request import PipelineRequest, stage_counts
from flowedge.cli.preflight.demands import check_head, check_layers, check_recall, check_room
from flowedge.cli.preflight.model_header import ModelHeader, read_head_header, read_header
from flowedge.cli.preflight.model_names import check_tokenizer, find_drafter, find_here, find_target
from flowedge.cli.preflight.prompt_length import PromptCounter
from flowedge.client.request import GenerateOptions
from flowedge.core.errors import BadRequestError
from flowedge.drafting.choice import NGRAM, RECALL
from flowedge.drafting.drafter_kind import DrafterKind, kind_of_checkpoint
from flowedge.models.checkpoint.model_source import FoundModel

_HEAD_WEIGHTS = ("model.safetensors", "pytorch_model.bin")


@dataclass(frozen=True)
class Preflight:
    """What a command is about to do.

    Attributes:
        check: whether this process is to load the plain model.
        json_file: where the answers are to be written; None for nowhere.
    """

    request: PipelineRequest
    options: GenerateOptions
    prompts: Sequence[str]
    check: bool = False
    json_file: Path | None = None

    def run(self) -> None:
        """Check everything that the command line and files of this machine tell.

        Raises:
            BadRequestError: when an option cannot be served by any pipeline.
            CapacityError: when a prompt and its answer are longer than the model takes.
            CheckpointError: when a model of this machine cannot be read, or is not supported.
        """
        request = self.request
        if self.json_file is not None:
            check_writable(self.json_file)
        check_layers(stage_counts(request.split), request.stage_count, None)
        if request.is_made_already and not self.check:
            return  # the draft node has its model, whatever --model says
        agents_here = request.stages is not None
        target = find_target(request.model, needed=agents_here or self.check)
        header = None if target is None else read_header(target, request.model)
        for middle in request.middles:
            find_here("--middle", middle, needed=agents_here)
        self._check_drafters(header, needed=agents_here)
        tokenizer = self._tokenizer(target, needed=agents_here or self.check)
        counter = None if tokenizer is None else PromptCounter(tokenizer)
        if header is not None:
            check_layers(stage_counts(request.split), request.stage_count, header.layers)
            check_room(header, 1, self._needed_tokens)
        if counter is not None and counter.is_possible:
            if self.options.system is not None:
                counter.check_takes_system()
            if header is not None and header.positions is not None:
                self._check_prompts(header, header.positions, counter)
        if agents_here:
            limits = load_config(path=Path(os.devnull)).config.limits  # of agents that are started here
            for prompt in self.prompts:
                limits.check_prompt_text("".join(each["content"] for each in self.options.messages(prompt)))

    @property
    def _needed_tokens(self) -> int:
        """New tokens that the context must have room for."""
        return 1 if self.options.fit_context else self.options.max_new_tokens

    def _check_drafters(self, target: ModelHeader | None, *, needed: bool) -> None:
        names = self.request.drafter
        kinds = [self._drafter_kind(name, target, needed=needed) for name in names]
        check_recall(names, kinds)

    def _drafter_kind(self, name: str, target: ModelHeader | None, *, needed: bool) -> DrafterKind | None:
        """Check one drafter; return its kind, None where only the agents know it."""
        if name in (NGRAM, RECALL):
            return "ngram"
        found = find_drafter(name, needed=needed)
        if found is None:
            return None
        if found.gguf:
            return "lm"
        kind = kind_of_checkpoint(found.directory)
        if kind != "lm":
            if needed:
                _check_head_files(name, found.directory)
            if target is not None:
                check_head(f"--drafter {name}", read_head_header(found.directory, name), target)
        return kind

    def _tokenizer(self, target: FoundModel | None, *, needed: bool) -> Path | None:
        """Return the directory of the tokenizer's files, None where they are not here."""
        if self.request.tokenizer:
            return check_tokenizer(self.request.tokenizer, needed=needed)
        return None if target is None or target.gguf else target.directory

    def _check_prompts(self, header: ModelHeader, positions: int, counter: PromptCounter) -> None:
        new = self._needed_tokens
        for number, prompt in enumerate(self.prompts, 1):
            messages = self.options.messages(prompt)
            if counter.fits(messages, positions - new) or not counter.is_countable(messages):
                continue
            check_room(header, counter.count(messages).least, new, self._name(number))

    def _name(self, number: int) -> str:
        return f"prompt {number}" if len(self.prompts) > 1 else ""


def check_writable(file: Path) -> None:
    """Check that the file of `--json` can be written.

    Raises:
        BadRequestError: when it is a directory, or its folder does not exist or cannot be written.
    """
    if file.is_dir():
        raise BadRequestError(f"--json {file}: is a directory; name a file in it")
    if not file.parent.is_dir():
        raise BadRequestError(f"--json {file}: its folder does not exist; make it first")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise BadRequestError(f"--json {file}: cannot be written; check its rights and those of its folder")


def _check_head_files(name: str, directory: Path) -> None:
    if not any((directory / file).is_file() for file in _HEAD_WEIGHTS):
        raise BadRequestError(
            f"--drafter {name}: the directory has a config.json and no weights ({' or '.join(_HEAD_WEIGHTS)})"
        )
