"""Runs of stages, models and draft nodes on a GPU of fake tensors, with the copies that each may make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from flowedge.core.messages import CONTEXT
from flowedge.core.sampling import SamplingParams
from flowedge.drafting.draft_vocabulary import ENOUGH_TOKENS
from flowedge.drafting.drafter import DraftPrefix
from flowedge.drafting.drafter_format import DrafterFormat
from flowedge.drafting.heads import head_drafter
from flowedge.drafting.token_counts import CountsFile, TokenCounts
from flowedge.engine.draw import Draw
from flowedge.engine.executors.block_executor import BlockExecutor
from flowedge.engine.executors.draft_models import DraftModels
from flowedge.engine.executors.head_executor import HeadExecutor
from flowedge.engine.jobs import (
    DraftBatch,
    DropCache,
    ExtendDraft,
    Forward,
    GrowDraft,
    KeepDraft,
    OpenCache,
    OpenDraft,
    Verify,
)
from flowedge.models.attention.kv_store import KvFormat
from flowedge.models.attention.ordered import AttentionSizes
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.cuda_graphs import static_decoding
from flowedge.models.cuda_graphs.recording import CallingMaker, PieceFunction, Recording
from flowedge.models.cuda_graphs.static_decoding import BlockDecoding
from flowedge.models.exact import exactness
from flowedge.models.host.payloads import to_tensor
from flowedge.models.language_model import LanguageModel
from flowedge.models.lm_head import LMHead
from flowedge.models.row_counts import RowCounts
from flowedge.models.session_rows import SessionRows
from tests.models.tiny_families import LAYERS, VOCAB
from tests.support.fake_cuda import CUDA, FakeCuda
from tests.support.session_jobs import run_alone

SAMPLINGS = [
    SamplingParams(),
    SamplingParams(temperature=1.0, seed=3),
    SamplingParams(temperature=0.8, top_k=20, top_p=0.9, seed=3),
]


def forward(cached: int, rows: int, parents: list[int], payload: np.ndarray, **changes: object) -> Forward:
    """A forward of rows behind 3 rows of context."""
    settings = {
        "session": "s",
        "gathered_until": cached,
        "slots": np.zeros(0, dtype=np.int64),
        "context": 3 if cached else 0,
        "cached": cached,
        "tail_parents": np.array(parents),
        "positions": np.arange(cached, cached + rows),
        "payload": payload,
    } | changes
    return Forward(**settings)


def run_stage(gpu: FakeCuda, executor: BlockExecutor, mixtures: int) -> None:
    """Compute a prompt, a tree, and a tree behind a prune."""

    def rows(count: int) -> np.ndarray:
        if executor.block.is_first:
            return np.arange(count, dtype=np.int32)
        return np.zeros((count, executor.row_width), dtype=np.uint16)

    executor.run(OpenCache("s", 200))
    prompt = forward(0, 3, [CONTEXT, 0, 1], rows(3))
    tree = forward(3, 4, [CONTEXT, 3, 3, 4], rows(4))
    tree.positions[:] = [3, 4, 4, 5]
    pruned = forward(5, 1, [CONTEXT, 3, 3], rows(1), gathered_until=3, slots=np.array([3, 5]))
    pruned.positions[:] = 4
    for job in (prompt, tree, pruned):
        uploads, downloads = gpu.copies_of(partial(run_alone, executor, job))
        assert downloads == 1 + mixtures, "a forward waits for its rows alone, and for the choice of experts"
        # Beside them, which rows update states, before and in the forward, and which rows are kept.
        assert uploads <= 5 + mixtures + (3 if executor.block.session_bytes else 0)
    executor.run(DropCache("s"))


def run_sessions(gpu: FakeCuda, block: LayerBlock, mixtures: int) -> None:
    """Compute the prompts of two sessions together, and a tree of each together."""

    def rows(count: int) -> torch.Tensor:
        if block.is_first:
            return to_tensor(np.arange(count), "cpu")
        return torch.zeros((count, block.input_width), dtype=block.dtype, device=CUDA)

    caches = [block.new_cache(200) for _ in range(2)]
    prompts, trees = list[SessionRows](), list[SessionRows]()
    for cache, context in zip(caches, (3, 60), strict=True):
        chain, parents = np.arange(context), np.array([CONTEXT, context, context])
        prompts.append(SessionRows(rows(context), chain, cache, 0, 0, chain - 1))
        depths = np.array([0, 1, 1])
        trees.append(SessionRows(rows(3), context + depths, cache, context, context, parents))
    for parts in (prompts, trees):
        before = gpu.uploads, gpu.downloads
        found = block.forward_together(parts, lambda: False)
        uploads, downloads = gpu.uploads - before[0], gpu.downloads - before[1]
        assert found is not None
        assert [len(own) for own in found] == [part.count for part in parts]
        assert {own.device.type for own in found} == {"cuda"}
        assert downloads == mixtures, "nothing waits but the choice of experts"
        assert uploads <= 7 + mixtures


def on_cuda(executor: BlockExecutor) -> bool:
    tensors = [p for layer in executor.block.layers for p in (*layer.parameters(), *layer.buffers())]
    return all(tensor.device.type == "cuda" for tensor in tensors)


def mixtures_in(executor: BlockExecutor) -> int:
    return sum("ExpertLinears" in repr(layer) for layer in executor.block.layers)


def run_family(gpu: FakeCuda, directory: Path) -> None:
    checkpoint, middle = Checkpoint(directory), LAYERS // 2
    for start, stop in ((0, middle), (middle, LAYERS)):
        with gpu.load():
            block = LayerBlock.load(checkpoint, start, stop, dtype=torch.bfloat16, device=CUDA)
        executor = BlockExecutor(block, taps=(1, 2))
        assert on_cuda(executor)
        run_stage(gpu, executor, mixtures_in(executor))
        run_sessions(gpu, block, mixtures_in(executor))


def run_exact_family(gpu: FakeCuda, directory: Path, kv: KvFormat) -> None:
    executor = BlockExecutor(exact_block(gpu, directory, kv))
    run_stage(gpu, executor, mixtures_in(executor))
    run_sessions(gpu, executor.block, mixtures_in(executor))


def exact_block(gpu: FakeCuda, directory: Path, kv: KvFormat) -> LayerBlock:
    """Load a block that is exact by sizes that are given here: a fake GPU has no bits to compare."""
    checkpoint = Checkpoint(directory)
    with gpu.load(), pytest.MonkeyPatch.context() as patch:
        group_rows = 1 if kv == "native" else None  # both ways of reading tails
        patch.setattr(exactness, "attention_sizes", lambda *_: AttentionSizes(16, group_rows))
        patch.setattr(exactness, "product_counts", lambda *_: RowCounts((16, 128)))
        patch.setattr(exactness, "_rows_are_equal", lambda *_: True)
        # In 16 bits, a cache in 8 bits saves too little for the narrow heads here.
        dtype = torch.bfloat16 if kv == "native" else torch.float32
        block = LayerBlock.load(checkpoint, 0, LAYERS, dtype=dtype, device=CUDA, exact=True, kv=kv)
    assert block.exact
    return block


@dataclass
class RecordingMaker:
    """Makes pieces that are called, and notes their functions."""

    functions: list[PieceFunction] = field(default_factory=list)

    def make(self, functions: Sequence[PieceFunction]) -> list[Recording]:
        self.functions.extend(functions)
        return CallingMaker().make(functions)

    def check(self, gpu: FakeCuda) -> None:
        assert self.functions
        for function in self.functions:
            assert gpu.copies_of(torch.inference_mode()(function)) == (0, 0), (
                "a GPU cannot record a copy from or to the host"
            )


def run_static_stage(gpu: FakeCuda, block: LayerBlock, taps: tuple[int, ...] = ()) -> None:
    """Run a stage whose small forwards are called as a GPU would record them: without any copy."""
    maker = RecordingMaker()
    block.decoding = BlockDecoding(block, maker, uncaptured=0)
    run_stage(gpu, BlockExecutor(block, taps), 0)
    run_sessions(gpu, block, 0)
    maker.check(gpu)


def run_static_family(gpu: FakeCuda, directory: Path) -> None:
    with gpu.load():
        block = LayerBlock.load(Checkpoint(directory), 1, LAYERS, dtype=torch.bfloat16, device=CUDA)
    run_static_stage(gpu, block, (1, 2))
    run_static_stage(gpu, exact_block(gpu, directory, "native"))


def run_whole_model(gpu: FakeCuda, directory: Path) -> None:
    with gpu.load():
        model = LanguageModel.load(Checkpoint(directory), VOCAB, torch.float16, CUDA)
    run_stage(gpu, BlockExecutor(model.block, model=model), 0)


def run_last_stage(gpu: FakeCuda, sampling: SamplingParams) -> None:
    """Compute the end of a prompt and a tree on a stage that draws, with and without hidden states."""
    checkpoint = Checkpoint.open("bundled")
    layers = int(checkpoint.config.num_hidden_layers)
    with gpu.load():
        block = LayerBlock.load(checkpoint, layers - 1, layers, dtype=torch.bfloat16, device=CUDA)
        head = LMHead.load(checkpoint, torch.bfloat16, CUDA)
    executor = BlockExecutor(block, head=head)
    states = np.zeros((3, executor.row_width), dtype=np.uint16)
    executor.run(OpenCache("s", 200))
    for features in (True, False):
        alone, tree = np.full(3, -1), np.array([-1, 0, 0])
        draws = [Draw(sampling, features, first, np.zeros(3, np.int64), tree) for first in (0, None)]
        prompt = Draw(sampling, features, 2, np.zeros(3, np.int64), alone)
        for job in (
            forward(0, 3, [CONTEXT, 0, 1], states, draw=prompt, committed=True),
            *(forward(3, 3, [CONTEXT, 3, 3], states, draw=draw) for draw in draws),
        ):
            uploads, downloads = gpu.copies_of(partial(run_alone, executor, job))
            drawn = job.draw is not draws[1]
            assert downloads <= drawn + features, "a forward waits for its draws, and for the rows wanted"
            assert uploads <= 7


def run_draft_node(
    gpu: FakeCuda,
    drafters: tuple[str, ...],
    sampling: SamplingParams,
    cuda_graphs: bool = False,
    state: Path | None = None,
) -> None:
    """Run all jobs of a draft node; with `state`, a directory, its drafters propose a part of the tokens."""
    checkpoint = Checkpoint.open("bundled")
    if state is not None:
        counts = TokenCounts(4096)
        counts.add(np.arange(ENOUGH_TOKENS) % 1000)
        CountsFile(state, checkpoint.fingerprint, 4096).write(counts)
    with gpu.load():
        models = DraftModels.load(
            checkpoint,
            drafters,
            "bfloat16",
            CUDA,
            cuda_graphs=cuda_graphs,
            form=DrafterFormat("none", 140),
            state=state,
        )
    if drafters[0] in ("bundled", "bundled-small"):
        assert models.draft_tokens == (4096 if state is None else 140)
    executor, noise = models.executor, None if sampling.greedy else sampling
    if sampling.greedy:  # as an exact head, which computes fixed numbers of rows
        executor.head.row_counts, executor.head.exact = RowCounts((16, 128)), True
    width = int(models.config.hidden_size) * (4 if "bundled-eagle3" in drafters else 1)
    executor.run(OpenDraft("s", 300, 5, noise))
    run_alone(executor, ExtendDraft("s", np.zeros((150, width), dtype=np.uint16), np.arange(150)))
    for growth in (1, 2):
        grow_tree(gpu, executor, growth)
        run_alone(executor, ExtendDraft("s", np.zeros((2, width), dtype=np.uint16), np.array([7, 8])))
    verify(gpu, executor, sampling, width)
    run_batches(gpu, executor, sampling, width)
    executor.run(KeepDraft("s"))
    executor.run(DropCache("s"))


def run_static_draft_node(
    gpu: FakeCuda, drafters: tuple[str, ...], sampling: SamplingParams, state: Path | None = None
) -> None:
    """Run a draft node whose drafters' small forwards are called as a GPU would record them."""
    maker = RecordingMaker()
    with pytest.MonkeyPatch.context() as patch:
        for module in (head_drafter, static_decoding):
            patch.setattr(module, "CapturingMaker", lambda _device: maker)
        run_draft_node(gpu, drafters, sampling, True, state)
    maker.check(gpu)


def grow_tree(gpu: FakeCuda, executor: HeadExecutor, growth: int) -> None:
    layers = [([0], [-1], [8]), ([1, 2, 3], [0, 0, 0], [1, 2, 3]), ([4, 5], [1, 3], [9, 9])]
    for frontier in layers:
        nodes, parents, tokens = (np.array(part) for part in frontier)
        job = GrowDraft("s", growth, nodes, parents, tokens, 4, None, None)
        _, downloads = gpu.copies_of(partial(run_alone, executor, job))
        assert downloads <= 1, "a grown layer waits for its children alone"


def run_batches(gpu: FakeCuda, executor: HeadExecutor, sampling: SamplingParams, width: int) -> None:
    """Draft and verify for two sessions together, of which one begins with rows of the other."""
    noise = None if sampling.greedy else replace(sampling, seed=sampling.seed + 1)
    executor.run(OpenDraft("t", 300, 5, noise, DraftPrefix("s", 100)))
    root, two = np.zeros(1, dtype=np.int64), np.array([1, 2])
    given = np.zeros((3, width), dtype=np.uint16), np.array([7, 8, 9])
    of_s = [(root, root - 1, root, None, None), (two, two * 0, two, None, None)]
    of_t = [(root, root - 1, root, *given), (root + 1, root, root, None, None)]
    for first, second in zip(of_s, of_t, strict=True):
        jobs = [
            GrowDraft(name, 3, nodes, above, tokens, 4, *rows)
            for name, (nodes, above, tokens, *rows) in (("s", first), ("t", second))
        ]
        _, downloads = gpu.copies_of(partial(executor.run, DraftBatch(jobs)))
        assert downloads <= 2, "layers wait for their children, and perhaps for what joined drafters learn"
    tree = np.array([1, 0, 0]), np.array([-1, 0, 1]), np.arange(3) + 150
    segments = [
        Verify(name, own, np.zeros((3, width), dtype=np.uint16), *tree)
        for name, own in (("s", sampling), ("t", replace(sampling, seed=99)))
    ]
    assert gpu.copies_of(partial(executor.run, DraftBatch(segments))) == (1, 1)
    executor.run(DropCache("t"))


def verify(gpu: FakeCuda, executor: HeadExecutor, sampling: SamplingParams, width: int) -> None:
    tokens, parents = np.array([1, 0, 0, 3]), np.array([-1, 0, 1, 1])
    job = Verify("s", sampling, np.zeros((4, width), dtype=np.uint16), tokens, parents, np.arange(4) + 150)
    assert gpu.copies_of(partial(run_alone, executor, job)) == (1, 1)
