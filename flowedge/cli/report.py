"""`--json`: the answers and their statistics, with the settings beside them (fields: docs/output.md)."""

from __future__ import annotations

import json
import platform
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from flowedge.cli.pipelines.request import PipelineRequest, split_text
from flowedge.cli.prompt_answer import PromptAnswer
from flowedge.client import Device
from flowedge.core.errors import FlowEdgeError
from flowedge.core.generate_options import GenerateOptions
from flowedge.core.pipeline_config import drafter_label
from flowedge.drafting.drafter_format import DrafterFormat
from flowedge.engine.statistics import StageUse
from flowedge.version import VERSION

_PACKAGES = ("torch", "transformers", "bitsandbytes", "numpy", "grpcio", "protobuf")
_TIMES = ("queue_s", "ttft_s", "decode_s", "total_s", "tokens_per_s")
_COUNTS = (
    "segments",
    "empty_segments",
    "prunes",
    "draft_layers",
    "draft_rows_sent",
    "reused_rows",
    "plain_tokens_per_s",
)
_WORK = ("rows_computed", "rows_trimmed", "rows_wasted", "segments", "aborted", "busy_s")


@dataclass
class JsonReport:
    """The answers so far, written as a JSON file if a file was asked for.

    Attributes:
        options: how the prompts are answered.
        file: None if no file was asked for.
        concurrency: how many prompts are asked at once.
        draft_node: what the draft node reports about itself and its stages; None before it was asked.
    """

    request: PipelineRequest
    options: GenerateOptions
    file: Path | None
    concurrency: int = 1
    answers: list[PromptAnswer] = field(default_factory=list)
    draft_node: Device | None = None

    @property
    def passed(self) -> bool:
        """Whether no answer was found to differ from the plain model's."""
        return all(answer.verdict is None or answer.verdict.passed for answer in self.answers)

    def write(self) -> None:
        """Write the file, if a file was asked for.

        Raises:
            FlowEdgeError: when it cannot be written.
        """
        if self.file is None:
            return
        try:
            self.file.write_text(json.dumps(self.content(), indent=1), encoding="utf-8")
        except OSError as error:
            raise FlowEdgeError(f"--json {self.file}: cannot be written: {error.strerror}") from error

    def content(self) -> dict[str, Any]:
        device = self.draft_node
        return {
            "settings": {
                **self.request.model_dump(),
                "drafter": drafter_label(self.request.drafters),
                "split": split_text(self.request.split) or None,
                "draft_form": asdict(DrafterFormat.of(self.request)),
                **asdict(self.options),
                "concurrency": self.concurrency,
                "dtype": self.request.dtype if device is None else device.dtype,
                "draft_node": None if device is None else device.address,
                "stage_addresses": [] if device is None else list(device.stage_addresses),
            },
            "versions": _versions(),
            "prompts": [_entry(answer) for answer in self.answers],
        }


def _entry(answer: PromptAnswer) -> dict[str, Any]:
    statistics, counters, verdict = answer.statistics, answer.statistics.counters, answer.verdict
    return {
        "prompt": answer.prompt,
        "prompt_tokens": len(answer.prompt_ids),
        "token_ids": answer.token_ids,
        "text": answer.text,
        "seed": answer.seed,
        "finish_reason": answer.finish_reason,
        "rounds": len(counters.accepted_per_round),
        **{name: getattr(statistics, name) for name in _TIMES},
        "itl_s": statistics.itl_s,
        "accepted_per_segment": counters.accepted_per_segment,
        "accepted_per_round": counters.accepted_per_round,
        **{name: getattr(counters, name) for name in _COUNTS},
        "draft_node": _device_work(statistics.draft_node),
        "stages": [_device_work(stage) for stage in statistics.stages],
        "link_bytes": statistics.link_bytes,
        "verification": statistics.verification,
        "middles": [_device_work(middle) for middle in statistics.middles],
        "rollbacks": counters.rollbacks,
        "client_ttft_s": answer.client_ttft_s,
        "check": None if verdict is None else {**asdict(verdict), "passed": verdict.passed},
    }


def _device_work(device: StageUse) -> dict[str, Any]:
    work = {name: getattr(device.report, name) for name in _WORK}
    return {"device": device.report.device, "use": device.use, **work}


def _versions() -> dict[str, str]:
    """Return the versions of this process; its devices run the same FlowEdge or refuse to work together."""
    versions = {"flowedge": VERSION, "python": platform.python_version(), "machine": platform.machine()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions
