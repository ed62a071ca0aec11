"""Loading a draft head takes hardly more memory than its weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from flowedge.drafting.heads.eagle_head import EagleHead, load_eagle_head
from flowedge.models.quant.quantize import module_bytes
from tests.models.test_loading_memory import ALLOWANCE, resident, write_sparse
from tests.support.fork_pool import fork_server

CONFIG = LlamaConfig(
    vocab_size=128,
    hidden_size=4096,
    intermediate_size=11008,
    num_hidden_layers=1,
    num_attention_heads=32,
    num_key_value_heads=32,
)


def load(directory: Path) -> tuple[int, int]:
    """Load a head; return the memory that the process took at its peak, and the bytes of the head."""
    torch.set_num_threads(1)
    before = resident("VmRSS")
    head = load_eagle_head(directory, torch.float16)
    return resident("VmHWM") - before, module_bytes(head)


@pytest.mark.proof
def test_a_head_of_a_model_of_7b_is_in_memory_once(tmp_path: Path) -> None:
    CONFIG.save_pretrained(tmp_path)
    with torch.device("meta"):
        parameters = EagleHead(CONFIG, fc_bias=True).named_parameters()
    tensors = {name: ("BF16", tuple(parameter.shape)) for name, parameter in parameters}
    write_sparse(tmp_path / "model.safetensors", tensors)
    with fork_server().Pool(1) as pool:  # a process of its own has a peak of its own
        taken, size = pool.apply(load, (tmp_path,))
    assert size > 400 * 2**20
    assert taken <= size + ALLOWANCE
