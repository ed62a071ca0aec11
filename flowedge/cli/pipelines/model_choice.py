"""What a command does before it has a pipeline: it asks for a model if none is named, and checks."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from flowedge.cli.options import choose_drafting, local_path
from flowedge.cli.output import ask, warn
from flowedge.cli.pipelines.preflight import Preflight
from flowedge.cli.pipelines.request import PipelineRequest
from flowedge.client.assembly import OnProgress
from flowedge.core.errors import CheckpointError, FlowEdgeError
from flowedge.core.generate_options import GenerateOptions
from flowedge.models.checkpoint.model_source import BUNDLED, CONFIG, find_model, is_hub_model
from flowedge.models.gguf.split_files import SUFFIX

_MOST_NAMED = 8  # models that a question or an error names
_QUESTION = "Which? A number, a directory, a GGUF file or a hub id: "


class NoModelError(FlowEdgeError):
    """No pipeline runs that a command could use, and the command names no model for a new one."""


@dataclass(frozen=True)
class Preparation:
    """The checks, the question and the downloads of a command that asks a pipeline.

    Attributes:
        report: called before each download.
        note: called with a choice that is made for the user.
        prompts: that are to be answered; json_file: where the answers are to be written; see Preflight.
        check: whether this process is to load the plain model.
        quiet: whether to show no progress bars of downloads.
        asks: whether a person at a terminal may be asked for a model.
    """

    report: OnProgress
    note: Callable[[str], None]
    options: GenerateOptions
    prompts: Sequence[str] = ()
    check: bool = False
    json_file: Path | None = None
    quiet: bool = False
    asks: bool = True

    def run(self, request: PipelineRequest) -> None:
        """Find wrong options before anything is started; download what is missing.

        Raises the errors of Preflight.run and download_models.
        """
        preflight = Preflight(request, self.options, self.prompts, check=self.check, json_file=self.json_file)
        preflight.run()
        if request.model and download_models(request, self.report, check=self.check, quiet=self.quiet):
            preflight.run()  # the files that have come tell more

    def with_model(self, request: PipelineRequest) -> PipelineRequest:
        """Return a request for a new pipeline with its model, which a person at a terminal is asked for.

        Raises:
            NoModelError: when no model is named and nobody can be asked.
        """
        if request.model:
            return request
        model = local_path(_of_user() if self._may_ask else _nobody_of_user())
        drafting = choose_drafting(
            model, None if request.drafter is None else request.drafters, self.options.strategy
        )
        if drafting.notice:
            self.note(drafting.notice)
        chosen = request.changed(model=model, drafter=drafting.drafter)
        self.run(chosen)
        return chosen

    @property
    def _may_ask(self) -> bool:
        return self.asks and sys.stdin.isatty() and sys.stderr.isatty()


def models_here() -> list[str]:
    """Return names of models that can be opened on this machine without a download, the bundled one first."""
    folder = Path.cwd()
    found = [BUNDLED, *_of_hub_cache()]
    found += sorted(f"./{file.name}" for file in folder.glob(f"*{SUFFIX}"))
    return found + sorted(f"./{config.parent.name}" for config in folder.glob(f"*/{CONFIG}"))


def model_label(model: str) -> str:
    """Return a model's name for people: of a path, the last part."""
    return PurePath(model).name if model.startswith("/") else model


def _of_hub_cache() -> Iterator[str]:
    """Yield the hub ids whose weights were downloaded, GGUF files by their names."""
    from huggingface_hub.constants import HF_HUB_CACHE  # noqa: PLC0415 (only a question needs it)

    for snapshot in sorted(Path(HF_HUB_CACHE).glob("models--*--*/snapshots/*")):
        hub_id = "/".join(snapshot.parent.parent.name.split("--")[1:])
        if (snapshot / CONFIG).is_file() and any(snapshot.glob("*.safetensors")):
            yield hub_id
        yield from sorted(f"{hub_id}/{file.name}" for file in snapshot.glob(f"*{SUFFIX}"))


def _of_user() -> str:
    """Ask the person at the terminal for a model."""
    found = models_here()[:_MOST_NAMED]
    warn("No pipeline runs that could be used, and no --model is given. Models on this machine:")
    for number, name in enumerate(found, 1):
        tried = ", of 9 million parameters, to try FlowEdge with" if name == BUNDLED else ""
        warn(f"  {number}  {name}{tried}")
    answer = ask(_QUESTION)
    if answer.isdecimal() and 1 <= int(answer) <= len(found):
        return found[int(answer) - 1]
    if not answer:
        raise NoModelError("no model was named; give --model MODEL")
    return answer


def _nobody_of_user() -> str:
    others = [name for name in models_here() if name != BUNDLED][: _MOST_NAMED - 1]
    here = f", or a model of this machine such as {', '.join(others)}" if others else ""
    raise NoModelError(
        "no pipeline runs that could be used, and no model is named: give --model with a directory, a GGUF "
        f"file or a hub id{here}; --model {BUNDLED} is the small one that comes with FlowEdge"
    )


def download_models(request: PipelineRequest, report: OnProgress, *, check: bool, quiet: bool) -> bool:
    """Download the hub models that processes of this machine are to open and that are not here yet.

    Returns whether there was a model to download.

    Args:
        report: called before each download.
        check: whether this process is to load the plain model.
        quiet: whether to show no progress bars; without a terminal there are none anyway.

    Raises:
        CheckpointError: when a model cannot be downloaded.
    """
    if request.stages is not None:
        names = [request.model, *request.drafters, *request.middles]
    else:
        names = [request.model] if check else []
    missing = [name for name in names if is_hub_model(name) and not _is_here(name)]
    if not missing:
        return False
    from huggingface_hub.utils.tqdm import disable_progress_bars  # noqa: PLC0415 (loads in half a second)

    if quiet or not sys.stderr.isatty():
        disable_progress_bars()
    for name in missing:
        report("this machine", f"downloading {name} from the hub")
        find_model(name)
    return True


def _is_here(name: str) -> bool:
    try:
        return find_model(name, hub=False).is_complete
    except CheckpointError:
        return False
