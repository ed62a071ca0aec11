"""FlowEdge's sides time the bundled model, and the GGUF file for llama.cpp holds the same weights."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from flowedge.models.checkpoint.checkpoint import Checkpoint
from testbed.tools.beside_llamacpp import llama_gguf
from testbed.tools.beside_llamacpp.block_side import BlockSide
from testbed.tools.beside_llamacpp.cluster_side import ClusterSide
from testbed.tools.beside_llamacpp.formats import FORMATS
from testbed.tools.beside_llamacpp.installation import LlamaCpp
from testbed.tools.beside_llamacpp.llama_gguf import gguf_of
from tests.support.processes import CLI

NO_PROGRAMS = LlamaCpp(Path("none"), Path("none"), Path("none"))


@pytest.mark.parametrize(("kind", "dtype"), [("F32", torch.float32), ("BF16", torch.bfloat16)])
def test_a_gguf_file_has_the_weights_of_the_checkpoint(tmp_path: Path, kind: str, dtype: torch.dtype) -> None:
    checkpoint = Checkpoint.open("bundled")
    path = gguf_of(checkpoint, kind, tmp_path, NO_PROGRAMS)
    assert [file.name for file in tmp_path.iterdir()] == [f"{kind}.gguf"]
    written = Checkpoint.open(str(path))
    for name in (
        "model.embed_tokens.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.7.self_attn.k_proj.weight",
        "model.layers.3.mlp.down_proj.weight",
        "model.layers.5.input_layernorm.weight",
        "model.norm.weight",
    ):
        assert torch.equal(written.tensor(name).to(dtype), checkpoint.tensor(name).to(dtype)), name
    assert written.config.rope_parameters["rope_theta"] == checkpoint.config.rope_parameters["rope_theta"]
    before = path.stat().st_mtime_ns
    assert gguf_of(checkpoint, kind, tmp_path, NO_PROGRAMS) == path
    assert path.stat().st_mtime_ns == before, "a file that exists is used again"


def test_another_type_is_made_from_bf16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, str]] = []

    def quantize(_: LlamaCpp, source: Path, target: Path, kind: str) -> None:
        made.append((source.name, kind))
        target.write_bytes(b"GGUF")

    monkeypatch.setattr(llama_gguf.LlamaCpp, "quantize", quantize)
    path = gguf_of(Checkpoint.open("bundled"), "Q4_0", tmp_path, NO_PROGRAMS)
    assert path.read_bytes() == b"GGUF"
    assert made == [("BF16.gguf", "Q4_0")]


def test_the_side_in_one_process_times_real_forwards() -> None:
    side = BlockSide(Checkpoint.open("bundled"), FORMATS["float32"], None)
    threads = torch.get_num_threads()
    assert all(seconds > 0 for seconds in side.decode_s(3, threads))
    assert side.prefill_s(200, threads) > 0
    assert len(side.rows_s(4, 16, threads, repeats=2)) == 2


@pytest.mark.slow
def test_the_side_of_agents_times_real_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", CLI[0])
    with ClusterSide("bundled", FORMATS["float32"], 1, 4096, drafter=True) as side:
        processes = [agent.process for agent in side.cluster.agents]
        assert side.decode(4).new_tokens == 5
        assert side.prefill_s(40) > 0
        assert side.token_s([(5, 6, 7)], 8, "auto") > 0
    assert all(process.poll() is not None for process in processes)
