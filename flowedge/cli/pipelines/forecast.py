"""What a command says before a pipeline loads: its weights and drafter, how long and how fast."""

from __future__ import annotations

import time
from pathlib import Path

from flowedge.cli.pipelines.model_choice import model_label
from flowedge.client.assembly import PipelineSpec
from flowedge.core.errors import CheckpointError
from flowedge.core.pipeline_config import Quantisation, drafter_label
from flowedge.drafting.choice import MTP, NGRAM
from flowedge.models.checkpoint.model_source import BUNDLED, BUNDLED_PATH, FoundModel, find_here
from flowedge.planning.profile.model import STORED_BYTES, weight_bytes

_SAMPLE = 32 << 20  # bytes of a file that are read to measure its rate
_COPIED = 128 << 20  # bytes of memory that are copied to measure its bandwidth, more than caches hold
_COPIES = 2  # of which the quicker counts: the machine may be doing something else


def forecast(spec: PipelineSpec, *, on_this_machine: bool) -> str:
    """Return one line about a pipeline that is to be loaded.

    Args:
        on_this_machine: whether its agents compute here, whose memory says how fast they may be.
    """
    parts = [f"{model_label(spec.model)} {_weights(spec)}", f"drafts by {_drafter(spec)}"]
    files = _files(spec.model)
    if files:
        size = sum(path.stat().st_size for path in files)
        parts[0] += f", {size / 2**30:.2f} GiB in files"
        parts.append(f"reading them takes {max(size / _read_rate(files[0]), 0.1):.1f} s or more")
        if on_this_machine:
            bandwidth = _bandwidth()
            held = size if _is_gguf(files) else size * weight_bytes(spec.quant) / STORED_BYTES
            parts.append(
                f"plain decoding reads them for each token: at most {bandwidth / held:.3g} tokens/s, at the "
                f"{bandwidth / 1e9:.1f} GB/s that a thread moves now; drafts that are right add to that"
            )
    return "; ".join(parts)


def _weights(spec: PipelineSpec) -> str:
    if spec.quant != "none":
        return f"in {spec.quant}, as --quant says"
    if spec.model.endswith(".gguf"):
        return "as its file stores it"
    smaller: Quantisation = "int4"
    share = weight_bytes(smaller) / STORED_BYTES
    return f"as it is stored, because no --quant is given ({smaller} takes {share:.0%} of 16 bits)"


def _drafter(spec: PipelineSpec) -> str:
    if not spec.drafters:
        return "nothing (plain decoding)"
    if spec.drafters == (NGRAM,):
        return "lookup in the text (ngram), which needs no weights"
    if spec.drafters == (MTP,):
        return "the layer that comes with the model (mtp)"
    return drafter_label(spec.drafters)


def _files(model: str) -> list[Path]:
    """Return the files of the weights as far as they are on this machine, the largest first."""
    try:
        found = FoundModel(BUNDLED_PATH / "model") if model == BUNDLED else find_here(model, needed=False)
    except CheckpointError:  # whoever loads it says so
        return []
    if found is None:
        return []
    files = list(found.gguf) or list(found.directory.glob("*.safetensors"))
    return sorted(files, key=lambda path: -path.stat().st_size)


def _is_gguf(files: list[Path]) -> bool:
    return files[0].suffix == ".gguf"


def _read_rate(path: Path) -> float:
    """Return the bytes per second at which the beginning of a file is read."""
    began = time.monotonic()
    with path.open("rb") as file:
        read = len(file.read(_SAMPLE))
    return read / max(time.monotonic() - began, 1e-6)


def _bandwidth() -> float:
    """Return the bytes per second that a thread moves while it copies memory, read and written together."""
    source, target = bytearray(b"1") * _COPIED, bytearray(b"2") * _COPIED  # both are in memory then
    copied_s = []
    for _ in range(_COPIES):
        began = time.monotonic()
        memoryview(target)[:] = source
        copied_s.append(time.monotonic() - began)
    return 2 * _COPIED / max(min(copied_s), 1e-6)
