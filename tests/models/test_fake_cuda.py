"""Everything that computes, run on a GPU of fake tensors: devices never mix, the host waits where it may."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from transformers import LlamaConfig, LlamaForCausalLM

import flowedge
from flowedge.core.messages import CONTEXT
from flowedge.core.sampling import SamplingParams
from flowedge.drafting.block.block_drafter import BlockDrafter
from flowedge.drafting.drafter import Frontier
from flowedge.drafting.heads.head_drafter import HeadDrafter
from flowedge.drafting.loading import TargetModel, load_drafter
from flowedge.engine.executors.block_executor import BlockExecutor
from flowedge.engine.executors.draft_models import DraftModels
from flowedge.engine.jobs import OpenCache
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.cuda_graphs.recording import CallingMaker
from flowedge.models.cuda_graphs.static_decoding import BlockDecoding, capture_decoding
from flowedge.models.lm_head import LMHead
from flowedge.planning.measuring import draft_timing, layer_timing
from flowedge.planning.measuring.layer_timing import RECORDING_RUNS
from tests.drafting.block_files import SIZE, save_block_head
from tests.drafting.mtp_files import make_mtp
from tests.drafting.parallel_files import save_parallel_head
from tests.drafting.trees import extend, predict
from tests.models.fake_runs import (
    SAMPLINGS,
    exact_block,
    forward,
    run_draft_node,
    run_exact_family,
    run_family,
    run_last_stage,
    run_stage,
    run_static_draft_node,
    run_static_family,
    run_static_stage,
    run_whole_model,
)
from tests.models.tiny_families import LAYERS, TINY, VOCAB, make_tiny
from tests.support.breadth import dealt
from tests.support.fake_cuda import CUDA, FakeCuda, HostWaitError, fake_cuda, on_cpu, really
from tests.support.session_jobs import run_alone

ALL_DRAFTERS = "bundled+bundled-eagle3+bundled-small+recall+ngram"
REFUSALS = (
    HostWaitError,
    RuntimeError,
    NotImplementedError,
    DataDependentOutputException,
    DynamicOutputShapeException,
)
# Modules that import torch and are not run on a fake GPU, and packages of modules, with the reason.
ELSEWHERE = {
    "flowedge.models.attention.attention": "declares what a layer asks",
    "flowedge.models.recurrent.recurrent_layer": "declares what a layer asks",
    "flowedge.drafting.draft_quant": "names formats",
    "flowedge.drafting.drafter_memory": "counts bytes",
    "flowedge.drafting.block.kernel_blocks": "serves CPUs",
    "flowedge.drafting.heads.kernel_head": "serves CPUs",
    "flowedge.models.check.compute_probe": "tries a real device",
    "flowedge.models.exact.self_test_attention": "compares the bits of a real device",
    "flowedge.models.exact.self_test_products": "compares the bits of a real device",
    "flowedge.models.exact.exactness": "compares the bits of a real device",
    "flowedge.models.sampling.draw_timing": "times a real device, and waits for it",
    "flowedge.models.sampling.path_logits": "serves heads that the kernels compute",
    "flowedge.models.sampling.ruled_draws": "draws on the host, from logits that `to_host` has copied",
    "flowedge.models.host.memory_errors": "reads the messages of errors",
    "flowedge.planning.in_process": "builds the executors that are run here",
}
PACKAGES_ELSEWHERE = {
    "flowedge.agent": "names dtypes and devices, and computes nothing",
    "flowedge.cli": "names dtypes, and computes nothing",
    "flowedge.models.check": "runs transformers' own model",
    "flowedge.models.checkpoint": "reads files to the host",
    "flowedge.models.files": "reads files to the host",
    "flowedge.models.gguf": "reads files to the host",
    "flowedge.models.kernels": "serves CPUs",
    "flowedge.models.quant": "encodes weights on the host, and calls kernels that need a real device",
    "flowedge.planning.measuring": "times a real device, and waits for it",
    "flowedge.training": "trains on a real device, where waiting delays no answer",
    "flowedge.weights": "encodes weights on the host",
}


@pytest.fixture
def gpu() -> Iterator[FakeCuda]:
    with fake_cuda() as seen:
        yield seen


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    @cache
    def make(name: str) -> Path:
        with really():
            return make_tiny(tmp_path_factory.mktemp(name), name)

    return make


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose weights are as wide as quantisation needs."""
    directory = tmp_path_factory.mktemp("wide")
    widths = {"vocab_size": VOCAB, "hidden_size": 128, "intermediate_size": 256}
    config = LlamaConfig(**widths, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
    LlamaForCausalLM(config).save_pretrained(directory)
    return directory


@pytest.mark.parametrize("name", dealt(TINY, "phi3-longrope".__eq__))
def test_stages_of_every_family(name: str, gpu: FakeCuda, families: Callable[[str], Path]) -> None:
    run_family(gpu, families(name))


@pytest.mark.parametrize(
    "name",
    dealt(("llama", "gemma3", "mixtral", "phi3-longrope"), "mixtral".__eq__),
)
def test_exact_stages(name: str, gpu: FakeCuda, families: Callable[[str], Path]) -> None:
    run_exact_family(gpu, families(name), "native")


@pytest.mark.proof  # `test_every_module_that_computes_is_run` has gemma2
@pytest.mark.parametrize("name", ["gemma3", "smollm3"])
def test_static_forwards(name: str, gpu: FakeCuda, families: Callable[[str], Path]) -> None:
    run_static_family(gpu, families(name))


def test_static_forwards_with_a_cache_in_8_bits(gpu: FakeCuda, families: Callable[[str], Path]) -> None:
    run_static_stage(gpu, exact_block(gpu, families("qwen3"), "int8"))


@pytest.mark.parametrize("exact", [False, True])
def test_the_inputs_of_a_static_forward_share_a_copy(
    exact: bool, gpu: FakeCuda, families: Callable[[str], Path]
) -> None:
    directory = families("llama")
    with gpu.load():
        block = LayerBlock.load(Checkpoint(directory), 1, LAYERS, device=CUDA, dtype=torch.bfloat16)
    if exact:
        block = exact_block(gpu, directory, "native")
    block.decoding = BlockDecoding(block, CallingMaker(), uncaptured=0)
    executor = BlockExecutor(block)
    executor.run(OpenCache("s", 200))
    payload = np.zeros((3, executor.row_width), dtype=np.uint16)
    prompt = forward(0, 3, [CONTEXT, 0, 1], np.arange(3, dtype=np.int32) if exact else payload)
    for _ in range(2):
        uploads = 2 if exact else 1  # a plan of exact attention is a copy of its own
        assert gpu.copies_of(partial(run_alone, executor, prompt)) == (uploads, 1)


def test_a_gpu_is_given_graphs(gpu: FakeCuda, families: Callable[[str], Path]) -> None:
    with gpu.load():
        block, mixture = (
            LayerBlock.load(Checkpoint(families(name)), 0, 1, device=CUDA) for name in ("llama", "mixtral")
        )
    capture_decoding(block)
    capture_decoding(mixture)
    assert isinstance(block.decoding, BlockDecoding)
    assert mixture.decoding is None


@pytest.mark.one_in(2)
@pytest.mark.parametrize("quant", ["int4", "w8a16"])  # the products of bitsandbytes need a real device
def test_quantised_stages(quant: str, gpu: FakeCuda, wide: Path) -> None:
    with gpu.load():
        block = LayerBlock.load(Checkpoint(wide), 0, 2, quant=quant, dtype=torch.bfloat16, device=CUDA)
    run_stage(gpu, BlockExecutor(block), 0)
    run_static_stage(gpu, block)


def test_what_was_read_for_a_gpu_leaves_the_page_cache(
    gpu: FakeCuda, wide: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped: list[str] = []

    def note(own: Checkpoint, name: str, start: int = 0, stop: int | None = None) -> None:
        if stop is None:
            dropped.append(name)

    monkeypatch.setattr(Checkpoint, "drop_cached_pages", note)
    checkpoint = Checkpoint(wide)
    for quant in ("none", "int4"):
        with gpu.load():
            LayerBlock.load(checkpoint, 0, 1, quant=quant, device=CUDA)
        parts = {name for name in checkpoint.names if name.startswith("model.layers.0.")}
        assert parts and parts <= set(dropped), "after each weight"
        dropped.clear()
    with really():
        LayerBlock.load(checkpoint, 0, 1, quant="int4")
    assert not dropped, "for a CPU with enough memory, the system frees cached files by itself"


@pytest.mark.parametrize("sampling", SAMPLINGS[:2], ids=["T0", "T1"])
def test_a_last_stage_that_draws(sampling: SamplingParams, gpu: FakeCuda) -> None:
    run_last_stage(gpu, sampling)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("drafters", "sampling"),
    dealt(
        (
            *(("bundled", 1), ("bundled+recall", 2), ("bundled-eagle3", 1), ("bundled-small", 2)),
            *(("ngram", 0), ("ngram", 1), (ALL_DRAFTERS, 0), (ALL_DRAFTERS, 2)),
        ),
        lambda case: case in (("bundled", 1), ("ngram", 1), (ALL_DRAFTERS, 0)),
    ),
)
def test_draft_nodes_with_every_drafter(drafters: str, sampling: int, gpu: FakeCuda) -> None:
    run_draft_node(gpu, tuple(drafters.split("+")), SAMPLINGS[sampling])


@pytest.mark.parametrize(
    ("drafters", "static"),
    dealt(
        itertools.product(("bundled+recall", "bundled-small"), (False, True)),
        lambda case: case == ("bundled+recall", False),
    ),
)
def test_draft_nodes_that_propose_a_part(drafters: str, static: bool, gpu: FakeCuda, tmp_path: Path) -> None:
    run = run_static_draft_node if static else run_draft_node
    run(gpu, tuple(drafters.split("+")), SAMPLINGS[-1], state=tmp_path)


@pytest.mark.parametrize("recalls", [False, True])
def test_the_inputs_of_a_static_head_share_a_copy(recalls: bool, gpu: FakeCuda) -> None:
    with gpu.load():
        drafters = ("bundled", "recall") if recalls else ("bundled",)
        models = DraftModels.load(Checkpoint.open("bundled"), drafters, "bfloat16", CUDA)
    drafter = models.executor.drafter
    assert isinstance(drafter, HeadDrafter)
    drafter.decode_statically(CallingMaker(), uncaptured=0)
    drafter.open("s", 100, 5)
    features = np.zeros((3, int(models.config.hidden_size)), dtype=np.uint16)
    for growth in range(2):
        assert gpu.copies_of(partial(extend, drafter, "s", features, np.arange(3))) == (1, 0)
        predict(drafter, "s", growth, Frontier([0], [-1], [8]))
        below = partial(predict, drafter, "s", growth, Frontier([1, 2], [0, 0], [3, 4]))
        assert gpu.copies_of(below) == (1, 0)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("family", "static"), [("qwen3_5", True), ("qwen3_5_moe", False), ("glm4_moe_lite", False)]
)
def test_the_layer_that_comes_with_a_model(family: str, static: bool, gpu: FakeCuda, tmp_path: Path) -> None:
    run_mtp_head(gpu, tmp_path, family, static=static)


def run_mtp_head(gpu: FakeCuda, directory: Path, family: str, *, static: bool) -> None:
    with really():
        make_mtp(directory, family)
    with gpu.load():
        checkpoint = Checkpoint(directory)
        head = LMHead.load(checkpoint, torch.bfloat16, CUDA)
        drafter = load_drafter(("mtp",), TargetModel(checkpoint, head, None, torch.bfloat16))
    assert isinstance(drafter, HeadDrafter) and drafter.head.is_recordable == static
    if static:
        drafter.decode_statically(CallingMaker(), uncaptured=0)
    drafter.open("s", 100, 5)
    for growth in range(2):
        extend(drafter, "s", np.zeros((3, 32), dtype=np.uint16), np.arange(3))
        predict(drafter, "s", growth, Frontier([0], [-1], [8]))
        predict(drafter, "s", growth, Frontier([1, 2], [0, 0], [3, 4]))


def run_block_head(gpu: FakeCuda, directory: Path, kind: str) -> None:
    with really():
        make_mtp(directory / "target", "qwen3_5")
        vocab = int(Checkpoint(directory / "target").config.vocab_size)
        if kind == "peagle":
            save_parallel_head(directory / "head", hidden=32, vocab=vocab, windows=True)
        else:
            passes = {"pass_depths": 1} if kind == "jetspec" else {}
            save_block_head(directory / "head", kind, hidden=32, vocab=vocab, windows=True, **passes)
    with gpu.load():
        checkpoint = Checkpoint(directory / "target")
        head = LMHead.load(checkpoint, torch.bfloat16, CUDA)
        target = TargetModel(checkpoint, head, None, torch.bfloat16)
        drafter = load_drafter((str(directory / "head"),), target)
    assert isinstance(drafter, BlockDrafter)
    drafter.open("s", 100, 5)
    for growth in range(2):
        extend(drafter, "s", np.zeros((3, 3 * 32), dtype=np.uint16), np.arange(3))
        predict(drafter, "s", growth, Frontier([0], [-1], [8]))
        predict(drafter, "s", growth, Frontier([1, 2], [0, 0], [3, 4]))
        beyond = list(range(3, 3 + 2 * SIZE))  # a chain that is longer than blocks reach
        predict(drafter, "s", growth, Frontier(beyond, [1, *beyond[:-1]], [7] * len(beyond)))


@pytest.mark.proof
def test_draft_jobs_are_timed(gpu: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a profile times them."""
    waits: list[int] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append(1))
    monkeypatch.setattr(draft_timing, "random_rows", on_cpu(draft_timing.random_rows))
    monkeypatch.setattr(layer_timing, "LEAST_S", 0.0)
    with gpu.load():
        models = DraftModels.load(Checkpoint.open("bundled"), ("bundled",), "float16", CUDA)
    verified = draft_timing.verify_times(models.executor, 1)
    drafted = draft_timing.draft_times(models.executor, 20, 1)
    assert all(seconds > 0 for seconds in verified.values())
    assert all(ms > 0 for ms in drafted.grow_ms.values())
    assert len(waits) == len(drafted.extend_ms) * (RECORDING_RUNS + 1)


def test_waiting_and_mixing_are_errors(gpu: FakeCuda) -> None:
    x = torch.ones(4, device=CUDA)
    operations: list[Callable[[torch.Tensor], object]] = [
        lambda x: x.cpu(),
        lambda x: x.sum().item(),
        lambda x: x.tolist(),
        torch.nonzero,
        lambda x: x[x > 0],
        lambda x: x.numpy(),
        lambda x: bool((x > 0).all()),
        lambda x: x + torch.ones(4),
        lambda x: x[torch.tensor([0, 1])],
        lambda x: x.index_select(0, torch.tensor([0, 1])),
        lambda x: x.copy_(torch.ones(4)),
        lambda x: torch.ones(4).to(x.device),
        torch.unique,
    ]
    for operation in operations:
        with pytest.raises(REFUSALS):
            operation(x)


def imports_torch(path: Path) -> bool:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        if any(name.split(".")[0] == "torch" for name in names):
            return True
    return False


@pytest.mark.proof
def test_every_module_that_computes_is_run(
    gpu: FakeCuda, families: Callable[[str], Path], tmp_path: Path
) -> None:
    run_family(gpu, families("qwen3_moe"))
    run_family(gpu, families("qwen3_5"))
    run_family(gpu, families("lfm2"))
    run_family(gpu, families("granitehybrid"))
    run_family(gpu, families("gemma4-small"))
    run_family(gpu, families("gemma4-moe"))
    run_family(gpu, families("glm4_moe_lite"))
    run_exact_family(gpu, families("gemma2"), "native")
    run_exact_family(gpu, families("qwen3"), "int8")
    run_static_family(gpu, families("gemma2"))
    run_whole_model(gpu, families("gemma2"))
    run_last_stage(gpu, SAMPLINGS[-1])
    run_static_draft_node(gpu, tuple(ALL_DRAFTERS.split("+")), SAMPLINGS[-1], tmp_path)
    run_mtp_head(gpu, tmp_path / "mtp", "qwen3_5", static=True)
    for kind in ("dspark", "jetspec", "dflash2", "peagle"):
        run_block_head(gpu, tmp_path / kind, kind)
    root = Path(flowedge.__file__).parent
    computing = {
        ".".join(("flowedge", *path.relative_to(root).with_suffix("").parts))
        for path in root.rglob("*.py")
        if imports_torch(path)
    }
    packages = tuple(f"{package}." for package in PACKAGES_ELSEWHERE)
    missing = {name for name in computing - gpu.modules - set(ELSEWHERE) if not name.startswith(packages)}
    assert not missing, f"no test runs {sorted(missing)} on a fake GPU; run it here, or say why not"
    assert not set(ELSEWHERE) - computing, "exceptions that import no torch"
