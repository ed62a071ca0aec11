"""`--json`: what came out and what it took, with the settings beside it."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from flowedge.cli.answers import PromptAnswer
from flowedge.cli.pipelines import PipelineRequest
from flowedge.client import Device
from flowedge.client.request import GenerateOptions
from flowedge.core.errors import BadRequestError
from flowedge.drafting.choice import drafter_label
from flowedge.version import VERSION

_PACKAGES = ("torch", "transformers", "bitsandbytes", "numpy", "grpcio", "protobuf")


class JsonReport:
    """The answers so far; written as one JSON file when there is one to write."""

    def __init__(self, request: PipelineRequest, options: GenerateOptions, file: Path | None) -> None:
        """BadRequestError when the file cannot be written, before anything has been computed for it."""
        self.request = request
        self.answers: list[PromptAnswer] = []
        self._options = options
        self._file = file
        self._draft_node: Device | None = None
        if file is not None and not (file.parent.is_dir() and os.access(file.parent, os.W_OK)):
            raise BadRequestError(f"--json {file}: its folder does not exist or cannot be written")

    @property
    def passed(self) -> bool:
        """Whether no answer was found to differ."""
        return all(answer.verdict is None or answer.verdict.passed for answer in self.answers)

    def note_devices(self, draft_node: Device) -> None:
        """Keeps what the draft node says of itself and its stages."""
        self._draft_node = draft_node

    def add(self, answer: PromptAnswer) -> None:
        """Takes one answer in."""
        self.answers.append(answer)

    def write(self) -> None:
        """Writes the file, if there is one."""
        if self._file is None:
            return
        try:
            self._file.write_text(json.dumps(self.content(), indent=1), encoding="utf-8")
        except OSError as error:
            raise BadRequestError(f"--json {self._file}: cannot be written: {error}") from error

    def content(self) -> dict[str, Any]:
        """Everything, as JSON has it; docs/output.md explains the fields."""
        device = self._draft_node
        return {
            "settings": {
                **asdict(self.request),
                "drafter": drafter_label(self.request.drafter),
                **asdict(self._options),
                "draft_node": None if device is None else device.address,
                "stage_addresses": [] if device is None else list(device.stage_addresses),
            },
            "versions": _versions(),
            "prompts": [_entry(answer) for answer in self.answers],
        }


def _entry(answer: PromptAnswer) -> dict[str, Any]:
    measured = answer.measured
    return {
        "prompt": answer.prompt,
        "prompt_tokens": len(answer.prompt_ids),
        "token_ids": answer.token_ids,
        "text": answer.text,
        "seed": answer.seed,
        "finish_reason": answer.finish_reason,
        "rounds": measured.rounds,
        **asdict(measured),
        "client_ttft_s": answer.client_ttft_s,
        "check": None
        if answer.verdict is None
        else {**asdict(answer.verdict), "passed": answer.verdict.passed},
    }


def _versions() -> dict[str, str]:
    """Of this process; its devices run the same FlowEdge or refuse to work together."""
    versions = {"flowedge": VERSION, "python": platform.python_version(), "machine": platform.machine()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions
