"""The state of a training on disk: its progress as JSON, and its weights as safetensors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from flowedge.core.errors import BadRequestError, CheckpointError
from flowedge.device.disk_cache.digest import hash_range
from flowedge.device.disk_cache.lock import try_lock
from flowedge.device.files import sync

STATE_NAME = "state.json"
IDENTITY_NAME = "identity.json"
LOCK_NAME = "lock"


@dataclass(frozen=True)
class TrainingProgress:
    """The progress of a training.

    Attributes:
        step: the number of updates; epoch, batch: the next batch's place in the data.
        spent_s: seconds of training; tokens: the tokens trained on, with repetitions.
        feature_loss, token_loss, agreement: see LossSums, smoothed over about the last 50 updates.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    spent_s: float = 0.0
    tokens: int = 0
    feature_loss: float = 0.0
    token_loss: float = 0.0
    agreement: float = 0.0


@dataclass(frozen=True)
class TrainingState:
    """A checkpoint of a training: its progress, and the tensors of head and optimizer by name."""

    progress: TrainingProgress
    tensors: dict[str, Tensor]


class StateFolder:
    """The folder of one training, with its identity and its last checkpoint."""

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        """Open or create the folder of the training with this identity: its target, data and settings.

        The folder takes over a larger number of minutes.

        Raises:
            BadRequestError: when the folder belongs to another training.
        """
        self.folder = folder
        path = folder / IDENTITY_NAME
        found = _read(path) if path.exists() else None
        if found is not None:
            self._check(found, identity)
        if found != identity:
            _write(path, identity)

    def progress(self) -> TrainingProgress | None:
        """The progress of the last checkpoint; None before the first."""
        path = self.folder / STATE_NAME
        if not path.exists():
            return None
        try:
            return TrainingProgress(**_read(path)["progress"])
        except (KeyError, TypeError) as error:
            raise _unreadable(path, error) from error

    def load(self) -> TrainingState | None:
        """The last checkpoint; None before the first."""
        path = self.folder / STATE_NAME
        if not path.exists():
            return None
        state = _read(path)
        try:
            progress, weights = TrainingProgress(**state["progress"]), str(state["weights"])
            # The file is data: it may name files of its own folder only.
            if Path(weights).name != weights:
                raise ValueError(f"{weights!r} is no file name")
            path = self.folder / weights
            if state.get("sha256") not in (None, _sha256(path)):  # None: by a former version
                raise ValueError("its bytes are not those that were written")
            return TrainingState(progress, load_file(path))
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise _unreadable(path, error) from error

    def save(self, state: TrainingState) -> None:
        """Replace the last checkpoint in one step. It is on disk before the one before is deleted."""
        weights = self.folder / f"step-{state.progress.step}.safetensors"
        part = weights.with_suffix(".part")
        try:
            save_file(state.tensors, part)
            sha256 = _sha256(part)
            sync(part)
            part.replace(weights)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{weights}: cannot be written: {error}") from error
        content = {"progress": asdict(state.progress), "weights": weights.name, "sha256": sha256}
        _write(self.folder / STATE_NAME, content)
        for older in self.folder.glob("step-*"):
            if older != weights:
                older.unlink()

    def _check(self, found: dict[str, Any], identity: dict[str, Any]) -> None:
        for name in sorted(found.keys() | identity.keys()):
            was, now = found.get(name), identity.get(name)
            if was == now or (name == "minutes" and was is not None and now is not None and now > was):
                continue
            place, restart = self.folder.parent, "or --restart to start over"
            if name != "minutes":
                raise BadRequestError(
                    f"{place} holds a training with another {name.replace('_', ' ')} ({was}, now {now}): "
                    f"give the same command to continue it, {restart}"
                )
            if was is None:
                raise BadRequestError(
                    f"{place} holds a training of {found.get('steps')} steps, which --minutes cannot "
                    f"continue: give --steps {found.get('steps')}, {restart}"
                )
            raise BadRequestError(
                f"{place} holds a training of {was:g} minutes: give --minutes {was:g} or more to continue "
                f"it, {restart}"
            )


@contextmanager
def only_training(folder: Path) -> Iterator[None]:
    """Keep other processes from training in a folder, which is created, until the context ends.

    Raises:
        BadRequestError: when another process is training there.
        CheckpointError: when the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / LOCK_NAME).open("wb")
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be written: {error}") from error
    with file:
        if not try_lock(file.fileno()):
            raise BadRequestError(
                f"--out {folder.parent}: another process trains there; wait for its end, or give "
                "another directory"
            )
        yield


def clear(folder: Path) -> None:
    """Delete the files of a training, whose lock this process holds."""
    for path in folder.iterdir():
        if path.name != LOCK_NAME:
            path.unlink()


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise _unreadable(path, error) from error


def _write(path: Path, content: dict[str, Any]) -> None:
    part = path.with_suffix(".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        sync(part)
        part.replace(path)
        sync(path.parent)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written: {error}") from error


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hash_range(file.fileno(), 0, path.stat().st_size).hexdigest()


def _unreadable(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"{path}: cannot be read ({error}); --restart starts the training over")
