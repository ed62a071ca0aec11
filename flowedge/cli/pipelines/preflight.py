"""The checks of a command that asks a pipeline, before agents or torch are started."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flowedge.agent.config_loading import load_config
from flowedge.cli.pipelines.request import PipelineRequest
from flowedge.cli.pipelines.stored_tokenizer import StoredTokenizer
from flowedge.core.errors import BadRequestError, CapacityError, CheckpointError
from flowedge.core.generate_options import GenerateOptions
from flowedge.device.files import expand_home
from flowedge.drafting.choice import (
    BUNDLED_FOLDERS,
    MTP,
    NGRAM,
    RECALL,
    DrafterKind,
    check_recall,
    check_target,
    kind_of_checkpoint,
    unknown_drafter,
)
from flowedge.models.checkpoint.model_header import ModelHeader, read_head_header, read_header
from flowedge.models.checkpoint.model_source import (
    BUNDLED,
    BUNDLED_PATH,
    FoundModel,
    find_here,
    is_hub_model,
    is_word,
    tokenizer_directory,
)
from flowedge.planning.split import check_split, even_split


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
            _check_writable(self.json_file)
        self._check_layers(None)
        if request.is_made_already and not self.check:
            return  # the draft node has its model, whatever --model says
        agents_here = request.stages is not None
        if not request.model:  # that of a pipeline which runs, or of the user's answer
            self._check_drafters(None, needed=agents_here)
            return
        target = _find_target(request.model, needed=agents_here or self.check)
        header = None if target is None else read_header(target, request.model)
        for middle in request.middles:
            _find("--middle", middle, needed=agents_here)
        self._check_drafters(header, needed=agents_here)
        tokenizer = self._tokenizer(target, needed=agents_here or self.check)
        if header is not None:
            self._check_layers(header.layers)
            check_capacity(header, 1, self._needed_tokens)
        if tokenizer is not None and tokenizer.is_readable:
            self._check_prompts(header, tokenizer)
        if agents_here:
            limits = load_config(path=Path(os.devnull)).config.limits  # of agents that are started here
            for prompt in self.prompts:
                limits.check_prompt_text("".join(each["content"] for each in self.options.messages(prompt)))

    @property
    def _needed_tokens(self) -> int:
        """New tokens that the context must have room for."""
        return 1 if self.options.fit_context else self.options.max_new_tokens

    def _check_layers(self, layers: int | None) -> None:
        """Check that a model of so many layers can be split as it is asked for."""
        counts, stages = self.request.split, self.request.stage_count
        if counts:
            check_split(counts, layers, stages)
        elif layers is not None and stages is not None:
            even_split(layers, stages)

    def _check_drafters(self, target: ModelHeader | None, *, needed: bool) -> None:
        names = self.request.drafters
        check_recall(
            names, [self._drafter_kind(name, target, needed=needed) for name in names if name != RECALL]
        )

    def _drafter_kind(self, name: str, target: ModelHeader | None, *, needed: bool) -> DrafterKind | None:
        """Check one drafter; return its kind, None where only the agents know it."""
        if name == NGRAM:
            return "ngram"
        if name == MTP:
            if target is not None and target.predicts_ahead is False:
                raise BadRequestError(
                    f"--drafter {MTP}: {target.place} has no layer that predicts further tokens; leave "
                    "--drafter out to draft by lookup (ngram), or name a head"
                )
            return "mtp"
        found = _find_drafter(name, needed=needed)
        if found is None:
            return None
        kind = "lm" if found.gguf else kind_of_checkpoint(found.directory)
        if kind != "lm" and target is not None:
            head = read_head_header(found.directory, name)
            try:
                check_target(name, head.sizes, f"but {target.place}", target.sizes)
            except CheckpointError as error:
                raise BadRequestError(
                    f"--{error}; leave --drafter out to draft by lookup (ngram), or train a head with "
                    "flowedge train-drafter"
                ) from error
        return kind

    def _tokenizer(self, target: FoundModel | None, *, needed: bool) -> StoredTokenizer | None:
        """Return the tokenizer, None where its files are not here."""
        source = self.request.tokenizer
        if not source:
            return None if target is None or target.gguf else StoredTokenizer(target.directory)
        elsewhere = is_hub_model(source) or (source.startswith(("/", "~")) and not needed)
        if elsewhere and not expand_home(source).is_dir():
            return None
        with _refusing("--"):
            return StoredTokenizer(tokenizer_directory(source, hub=False))

    def _check_prompts(self, header: ModelHeader | None, tokenizer: StoredTokenizer) -> None:
        if header is None or header.positions is None:
            return
        new = self._needed_tokens
        for number, prompt in enumerate(self.prompts, 1):
            messages = self.options.messages(prompt)
            least = tokenizer.least_tokens(messages, header.positions - new)
            check_capacity(header, least, new, f"prompt {number}: " if len(self.prompts) > 1 else "")


def check_capacity(header: ModelHeader, prompt_tokens: int, new: int, prefix: str = "") -> None:
    """Check that a prompt and its answer fit the model's positions.

    Args:
        prompt_tokens: at least so many tokens has the prompt.
        new: tokens of the answer.
        prefix: of the error, such as "prompt 3: ".

    Raises:
        CapacityError: when they do not fit.
    """
    wanted = prompt_tokens + new
    if header.positions is None or wanted <= header.positions:
        return
    if new >= header.positions:
        raise CapacityError(
            f"{prefix}--max-new-tokens {new} leaves no room for a prompt: {header.place} takes "
            f"{header.positions} tokens in all, the prompt included; lower it"
        )
    advice = "lower --max-new-tokens" if prompt_tokens < header.positions else "shorten the prompt"
    raise CapacityError(
        f"{prefix}{prompt_tokens} tokens of the prompt and {new} new ones make {wanted}, but "
        f"{header.place} takes {header.positions}; {advice}"
    )


def _find_target(source: str, *, needed: bool) -> FoundModel | None:
    if source == BUNDLED:
        return FoundModel(BUNDLED_PATH / "model")
    if is_word(source):
        close = difflib.get_close_matches(source, [BUNDLED], n=1)
        meant = f"did you mean {close[0]}?" if close else f"the only word for a model is {BUNDLED}"
        raise BadRequestError(
            f"--model {source}: no such directory or GGUF file, and not a hub id (owner/name); {meant}"
        )
    return _find("--model", source, needed=needed)


def _find_drafter(source: str, *, needed: bool) -> FoundModel | None:
    if source in BUNDLED_FOLDERS:
        return FoundModel(BUNDLED_PATH / BUNDLED_FOLDERS[source])
    if is_word(source):
        raise unknown_drafter(source)
    return _find("--drafter", source, needed=needed)


def _find(option: str, source: str, *, needed: bool) -> FoundModel | None:
    """Return the files of a model that an option names; see `find_here`."""
    with _refusing(f"{option} "):
        return find_here(source, needed=needed)


@contextmanager
def _refusing(prefix: str) -> Iterator[None]:
    """Turn the error of a model that an option names into one of wrong usage, which begins with a prefix."""
    try:
        yield
    except CheckpointError as error:
        raise BadRequestError(f"{prefix}{error}") from error


def _check_writable(file: Path) -> None:
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
