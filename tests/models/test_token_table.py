"""Token tables that are packed: rows are read, and products are those of the rows."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from weakref import ref

import pytest
import torch

from flowedge.device.kernel_library import missing_reason
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.lm_head import LMHead, load_embedding
from flowedge.models.quant.quant_cache import QuantCache
from flowedge.models.token_table import PackedTable, load_table, table_bytes
from tests.models.conftest import edit_tensors
from tests.models.tiny_families import make_tiny
from tests.support.gguf_files import write_gguf

pytestmark = pytest.mark.skipif(bool(missing_reason()), reason=missing_reason())


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny(tmp_path_factory.mktemp("tied"), "gemma3")


@pytest.fixture(scope="module")
def gguf(directory: Path, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    file = tmp_path_factory.mktemp("gguf") / "model.gguf"
    return Checkpoint.open(str(write_gguf(file, directory, "Q8_0", tokenizer=None)))


@pytest.mark.parametrize("quant", ["int8", "int4"])
def test_beside_quantised_layers_a_table_has_eight_bits(directory: Path, quant: str, tmp_path: Path) -> None:
    checkpoint, cache = Checkpoint.open(str(directory)), QuantCache(tmp_path, 1 << 30)
    name, exact = checkpoint.head_name, checkpoint.tensor(checkpoint.head_name).float()
    table = load_table(checkpoint, name, torch.float32, quant=quant, quant_cache=cache)
    assert isinstance(table, PackedTable) and table.shape == exact.shape
    assert float((table[:] - exact).norm() / exact.norm()) < 0.01
    assert table.nbytes == table_bytes(checkpoint, name, torch.float32, "cpu", quant)
    assert table.nbytes < exact.nbytes / 2
    rows = table[:]
    del table  # which would be returned as it is
    again = load_table(checkpoint, name, torch.float32, quant=quant, quant_cache=cache)
    assert torch.equal(again[:], rows) and list(tmp_path.glob("*.safetensors"))


@pytest.mark.parametrize("quant", ["nf4", "w8a16", None])
def test_otherwise_it_stays_as_it_is(directory: Path, quant: str | None) -> None:
    checkpoint = Checkpoint.open(str(directory))
    table = load_table(checkpoint, checkpoint.head_name, torch.float32, quant=quant)
    assert not isinstance(table, PackedTable)
    assert torch.equal(table, checkpoint.tensor(checkpoint.head_name).float())


def test_a_table_of_gguf_is_held_as_it_is_stored(gguf: Checkpoint) -> None:
    table = load_table(gguf, gguf.embedding_name, torch.float32, quant="none")
    assert isinstance(table, PackedTable)
    assert torch.equal(table[:], gguf.tensor(gguf.embedding_name))
    assert torch.equal(table[3:5], gguf.rows(gguf.embedding_name, 3, 5))
    assert table.nbytes == table_bytes(gguf, gguf.embedding_name, torch.float32, "cpu", "none")


def test_logits_are_products_with_the_rows(gguf: Checkpoint) -> None:
    head = LMHead.load(gguf, quant="none", exact=True)
    hidden = torch.randn(5, head.hidden_size)
    expected = head.scaled(hidden @ load_table(gguf, gguf.head_name, torch.float32)[:].T)
    found = head.logits(hidden)
    assert float((found - expected).norm() / expected.norm()) < 0.01  # rows are rounded to 8 bits
    assert head.rows_are_apart and torch.equal(head.logits(hidden[2:3]), found[2:3])


def test_a_tied_table_is_one_tensor_in_one_process(gguf: Checkpoint) -> None:
    head = LMHead.load(gguf, quant="none")
    embedding = load_embedding(gguf, quant="none")
    assert embedding.weight is head.weight
    tokens = torch.tensor([[0, 5], [7, 7]])
    assert torch.equal(embedding(tokens), load_embedding(gguf)(tokens))
    block = LayerBlock.load(gguf, 0, int(gguf.config.num_hidden_layers))
    assert LMHead.load(Checkpoint.open(str(gguf.place)), quant="none").weight is block.embedding_weight


def test_two_roles_that_load_a_table_at_the_same_time_hold_one(gguf: Checkpoint) -> None:
    with ThreadPoolExecutor(4) as threads:
        tables = list(threads.map(lambda _: load_table(gguf, gguf.head_name, torch.float32), range(8)))
    assert len({id(table) for table in tables}) == 1
    assert load_table(gguf, gguf.head_name, torch.bfloat16) is not tables[0]
    assert load_table(gguf, gguf.head_name, torch.float32, quant="none") is not tables[0]


def test_a_table_that_nobody_holds_is_freed_and_a_changed_file_read_again(tmp_path: Path) -> None:
    directory = make_tiny(tmp_path / "model", "llama")
    checkpoint = Checkpoint.open(str(directory))
    table = load_table(checkpoint, checkpoint.head_name, torch.float32)
    held = ref(table)
    edit_tensors(directory, {checkpoint.head_name: table + 1})
    changed = Checkpoint.open(str(directory))
    assert torch.equal(load_table(changed, changed.head_name, torch.float32), table + 1)
    del table
    assert held() is None
