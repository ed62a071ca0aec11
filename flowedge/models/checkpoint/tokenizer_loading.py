"""Loading of a checkpoint's tokenizer, the tokens that end its answers, and the model's own sampling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flowedge.core.errors import BadRequestError, CheckpointError
from flowedge.core.generate_options import GREEDY, GenerateOptions
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.model_source import TOKENIZER_FILES
from flowedge.models.files.config_numbers import check_token_ids
from flowedge.text.json_object import check_is_file, errors_of_file, read_json_object
from flowedge.text.template_renderer import RENDERER
from flowedge.text.tokenizer import UNUSABLE, chat_template
from flowedge.text.tokenizer_bounds import check_tokenizer

_MAX_FILE = 256 << 20  # bytes of a tokenizer's file; those of 300,000 tokens have about 35 MiB
_PROBE = "Hi"  # a text that every tokenizer can encode


def load_tokenizer(checkpoint: Checkpoint) -> Any:
    """Load a checkpoint's tokenizer and try its chat template.

    Raises:
        CheckpointError: when there is no usable tokenizer, or it or its chat template exceeds a limit.
    """
    from transformers import AutoTokenizer  # noqa: PLC0415 (a stage needs no tokenizer)

    directory = checkpoint.tokenizer_directory()
    with errors_of_file(directory, UNUSABLE):
        _check_files(directory)
        tokenizer = AutoTokenizer.from_pretrained(
            directory, config=_config_of(checkpoint), local_files_only=True, trust_remote_code=False
        )
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is not None:
            check_tokenizer(backend, str(directory))
        template = chat_template(tokenizer)
        tokenizer.decode(tokenizer.encode(_PROBE))
    if template:
        RENDERER.check(template, str(directory))
    return tokenizer


def _config_of(checkpoint: Checkpoint) -> Any | None:
    """The config that tells transformers the class of a tokenizer; None for a tokenizer of another model.

    Given the config, transformers does not make one of its own, whose import takes 140 MiB.
    """
    return checkpoint.config if checkpoint.family.own_config and checkpoint.tokenizer is None else None


def _check_files(directory: Path) -> None:
    """Check the kinds and sizes of a tokenizer's files, which are read whole."""
    for name in (*TOKENIZER_FILES, "additional_chat_templates/*"):
        for path in directory.glob(name):
            if path.exists() and not path.is_dir() and check_is_file(path) > _MAX_FILE:
                raise CheckpointError(f"{path}: has more than {_MAX_FILE >> 20} MiB")


def generation_sampling(checkpoint: Checkpoint) -> dict[str, float]:
    """Return how the model's generation config has tokens drawn, as far as it says so; empty for greedily.

    The names are those of GenerateOptions: temperature, top_p and top_k.

    Raises:
        CheckpointError: when a value cannot be used.
    """
    path = checkpoint.directory / "generation_config.json"
    content = read_json_object(path) if path.is_file() else {}
    if content.get("do_sample") is not True:
        return {}
    found = {name: content[name] for name in GREEDY if content.get(name) is not None}
    try:
        options = GenerateOptions(**({"temperature": 1.0} | found))
    except BadRequestError as error:
        raise CheckpointError(f"{path}: {error}") from error
    return {name: getattr(options, name) for name in {"temperature": 0, **found}}


def eos_token_ids(checkpoint: Checkpoint, tokenizer: Any | None = None) -> frozenset[int]:
    """The token ids that end an answer, from the generation config, the model's config and the tokenizer."""
    found = [checkpoint.config.eos_token_id, getattr(tokenizer, "eos_token_id", None)]
    path = checkpoint.directory / "generation_config.json"
    if path.is_file():
        found.append(read_json_object(path).get("eos_token_id"))
    ids: set[int] = set()
    for entry in found:
        ids.update(check_token_ids(entry, "eos_token_id", path))
    return frozenset(ids)
