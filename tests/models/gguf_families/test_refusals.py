"""Files that hold no model, and metadata that FlowEdge's layers would not follow, are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFWriter

from flowedge.core.errors import CheckpointError
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.gguf_families.metadata import Metadata
from flowedge.models.gguf_families.refusals import check_computation
from tests.support.gguf_files import finish


def adapter(path: Path) -> None:
    """Writes the file of a LoRA adapter as llama.cpp's converter does."""
    file = GGUFWriter(path, "llama")
    file.add_type("adapter")
    file.add_string("adapter.type", "lora")
    file.add_float32("adapter.lora.alpha", 16.0)
    close(file, "blk.0.attn_q.weight.lora_a")


def imatrix(path: Path) -> None:
    """Writes an importance matrix, which names no architecture."""
    file = GGUFWriter(path, "")
    file.add_type("imatrix")
    file.add_array("imatrix.datasets", ["text"])
    close(file, "blk.0.attn_q.weight.in_sum2")


def projector(path: Path) -> None:
    """Writes the vision part of a multimodal model."""
    file = GGUFWriter(path, "clip")
    file.add_type("mmproj")
    close(file, "v.patch_embd.weight")


def close(file: GGUFWriter, tensor: str) -> None:
    file.add_tensor(tensor, np.ones((2, 32), dtype=np.float32))
    finish(file)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (adapter, "no model but a LoRA adapter; merge it into its model"),
        (imatrix, "no model but an importance matrix"),
        (projector, "no model but the vision or audio part"),
    ],
)
def test_files_that_hold_no_model(tmp_path: Path, write: Any, message: str) -> None:
    path = tmp_path / "x.gguf"
    write(path)
    with pytest.raises(CheckpointError, match=message) as raised:
        Checkpoint.open(str(path))
    assert str(path) in str(raised.value)


OTHER_COMPUTATIONS: list[tuple[str, str, Any, Any]] = [
    ("llama", ".attention.causal", False, True),
    ("qwen3", ".attention.causal", False, True),
    ("llama", ".attention.clamp_kqv", 8.0, 0.0),
    ("llama", ".attention.scale", 0.1, 0.0),
    ("llama", ".attention.temperature_scale", 0.1, 0.0),
    ("llama", ".logit_scale", 8.0, 1.0),
    ("llama", ".embedding_scale", 12.0, 1.0),
    ("llama", ".residual_scale", 0.2, 1.0),
    ("llama", ".final_logit_softcapping", 30.0, 0.0),
    ("gemma3", ".attn_logit_softcapping", 50.0, 0.0),
    ("llama", ".expert_gating_func", 2, 1),
    ("qwen3moe", ".expert_weights_norm", False, True),
    ("qwen3moe", ".expert_shared_count", 1, 0),
    ("llama", ".rope.scaling.yarn_attn_factor", 1.2, 1.0),
    ("llama", ".rope.scaling.yarn_ext_factor", 0.5, 1.0),
    ("qwen3", ".rope.scaling.attn_factor", 1.2, 1.0),
    ("granite", ".rope.scaling.finetuned", False, True),
]


def test_other_computations() -> None:
    for architecture, key, refused, neutral in OTHER_COMPUTATIONS:
        check_computation(Metadata({architecture + key: neutral}, architecture))
        with pytest.raises(CheckpointError, match=f"{architecture}{key} is {refused}".replace(".", r"\.")):
            check_computation(Metadata({architecture + key: refused}, architecture))


def test_keys_that_an_architecture_reads() -> None:
    check_computation(Metadata({"granite.attention.scale": 0.1, "granite.logit_scale": 8.0}, "granite"))
    check_computation(Metadata({"gemma2.attn_logit_softcapping": 50.0}, "gemma2"))
    check_computation(Metadata({"phi3.rope.scaling.attn_factor": 1.19}, "phi3"))
    check_computation(Metadata({"llama.rope.scaling.finetuned": False}, "llama"))
