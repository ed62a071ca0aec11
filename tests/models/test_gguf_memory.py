"""Loading from a GGUF file takes hardly more memory than the block that is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from gguf.constants import GGMLQuantizationType

from tests.models.test_loading_memory import ALLOWANCE, CONFIG, LAYERS, load
from tests.support.breadth import dealt
from tests.support.fork_pool import fork_server
from tests.support.gguf_files import add_metadata

WIDTH, INNER = CONFIG.hidden_size, CONFIG.intermediate_size
MATRICES = {
    "attn_q": (WIDTH, WIDTH),
    "attn_k": (WIDTH, WIDTH),
    "attn_v": (WIDTH, WIDTH),
    "attn_output": (WIDTH, WIDTH),
    "ffn_gate": (INNER, WIDTH),
    "ffn_up": (INNER, WIDTH),
    "ffn_down": (WIDTH, INNER),
}
BLOCK_WEIGHTS, BLOCK_BYTES = 256, 144  # of Q4_K


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A billion weights in Q4_K; they are a hole of a sparse file, which reads as zeros."""
    path = tmp_path_factory.mktemp("large") / "large.gguf"
    file = GGUFWriter(path, "llama")
    add_metadata(file, CONFIG, "llama")
    sizes = [
        add(file, "token_embd.weight", (CONFIG.vocab_size, WIDTH)),
        add(file, "output_norm.weight", (WIDTH,)),
    ]
    for layer in range(LAYERS):
        sizes += [add(file, f"blk.{layer}.{name}.weight", (WIDTH,)) for name in ("attn_norm", "ffn_norm")]
        sizes += [add(file, f"blk.{layer}.{name}.weight", shape) for name, shape in MATRICES.items()]
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_ti_data_to_file()
    file.close()
    with path.open("r+b") as opened:
        opened.truncate(path.stat().st_size + sum(sizes) + 32 * len(sizes))
    yield path
    path.unlink()


def add(file: GGUFWriter, name: str, shape: tuple[int, ...]) -> int:
    """Adds a tensor's entry without its data; returns the bytes of its data."""
    if len(shape) == 1:
        file.add_tensor_info(name, shape, np.dtype(np.float32), 4 * shape[0])
        return 4 * shape[0]
    stored = (shape[0], shape[1] // BLOCK_WEIGHTS * BLOCK_BYTES)
    size = stored[0] * stored[1]
    file.add_tensor_info(name, stored, np.dtype(np.uint8), size, raw_dtype=GGMLQuantizationType.Q4_K)
    return size


@pytest.mark.parametrize(
    ("quant", "dtype"),
    dealt([("none", "float16"), ("int4", "float32"), ("nf4", "float32")], lambda _case: False),
)
def test_a_quarter_of_a_billion_weights(large: Path, quant: str, dtype: str) -> None:
    with fork_server().Pool(1) as pool:  # a process of its own has a peak of its own
        before, peak, block = pool.apply(load, (large, quant, getattr(torch, dtype)))
    assert block > 100 * 2**20
    assert peak - before <= block + ALLOWANCE
    print(f"{quant}: block {block >> 20} MiB, beside it {(peak - before - block) >> 20} MiB")
