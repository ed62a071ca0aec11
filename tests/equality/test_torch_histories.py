"""Random histories of the protocol on a small random model in torch, against transformers' own generate."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from flowedge.core.request import Request
from flowedge.core.sampling import SamplingParams
from flowedge.drafting.drafter import DraftLayer, DraftPrefix, GrowRequest
from flowedge.drafting.suffix_index import SuffixIndex
from flowedge.models.check.reference import ReferenceModel
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.lm_head import LMHead
from flowedge.planning.in_process import load_blocks, virtual_pipeline
from tests.engine.histories import NoText, RandomCosts, express_fault, random_strategy
from tests.equality.conftest import outputs_of, random_config, token_ids
from tests.models.tiny_families import make_tiny
from tests.support.blocks import fifths

VOCAB = 5
LAYERS = 4
TESTED, PROVED = 10, 300  # histories of `make test`, and those of `make proof` beside


class RandomDrafter:
    """A drafter with random proposals; the vocabulary is so small that many are right."""

    needs_features = True
    taps = ()
    weight_bytes = 0
    fingerprint = "random"

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def open(
        self,
        session: str,
        capacity: int,
        first_token: int,
        noise: SamplingParams | None = None,
        prefix: DraftPrefix | None = None,
        earlier: SuffixIndex | None = None,
    ) -> None:
        pass

    def keep(self, session: str) -> None:
        pass

    def close(self, session: str) -> None:
        pass

    def session_bytes(self, capacity: int) -> int:
        return 0

    def rewind(self, session: str, rows: int) -> None:
        pass

    def free_idle(self) -> None:
        pass

    def layer(self, request: GrowRequest) -> DraftLayer:
        if request.next_tokens is not None:
            assert request.features is not None
            assert len(request.features) == len(request.next_tokens)
        rows = [self.rng.permutation(VOCAB)[: request.width] for _ in request.frontier.nodes]
        drafted = np.array(rows, dtype=np.int64).reshape(len(rows), min(request.width, VOCAB))
        weights = np.sort(self.rng.choice([0.1, 0.3, 0.3, 0.6], size=drafted.shape))[:, ::-1]
        return DraftLayer(drafted, np.log(weights))

    def check_request(self, request: GrowRequest) -> None:
        pass

    def grow(self, requests: Sequence[GrowRequest]) -> list[DraftLayer]:
        return [self.layer(request) for request in requests]


@pytest.fixture(scope="module", params=["llama", "qwen3_5"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A model with attention alone, and one of layers with a state beside it."""
    torch.manual_seed(3)
    torch.set_num_threads(1)
    directory: Path = tmp_path_factory.mktemp("tiny")
    if request.param == "llama":
        LlamaForCausalLM(random_config(LAYERS, 0.4, VOCAB)).save_pretrained(directory)
    else:
        make_tiny(directory, request.param, VOCAB)
    return Checkpoint.open(str(directory))


def random_split(rng: np.random.Generator) -> list[int]:
    stages = int(rng.integers(1, LAYERS + 1))
    cuts = sorted(rng.choice(np.arange(1, LAYERS), size=stages - 1, replace=False).tolist())
    return [int(layers) for layers in np.diff([0, *cuts, LAYERS])]


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    "seeds",
    [
        pytest.param(range(TESTED), id="test-shard0"),
        *(
            pytest.param(seeds, id=f"proof-shard{seeds[0]}", marks=pytest.mark.proof)
            for seeds in fifths(range(TESTED, PROVED))
        ),
    ],
)
def test_random_histories_on_torch(checkpoint: Checkpoint, seeds: Sequence[int]) -> None:
    reference = ReferenceModel.load(checkpoint)
    head = LMHead.load(checkpoint)
    blocks = cache(lambda *split: load_blocks(checkpoint, split))
    for seed in seeds:
        rng = np.random.default_rng(seed)
        split = random_split(rng)
        pipeline = virtual_pipeline(
            checkpoint,
            split,
            RandomCosts(rng),
            drafter=RandomDrafter(rng),
            head=head,
            make_text=NoText,
            prefill_rows=int(rng.integers(1, 9)),
            express_fault=express_fault(rng),
            blocks=blocks(*split),
        )
        requests = []
        for i in range(int(rng.integers(1, 9))):
            strategy, options = random_strategy(rng)
            request = Request(
                session=f"s{i}",
                prompt=tuple(rng.integers(0, VOCAB, size=int(rng.integers(1, 20))).tolist()),
                sampling=SamplingParams(
                    temperature=float(rng.choice([0.0, 0.7, 1.0])),
                    top_k=int(rng.choice([0, 3])),
                    top_p=float(rng.choice([1.0, 0.9])),
                    seed=seed,
                ),
                max_new_tokens=int(rng.integers(1, 16)),
                strategy=strategy,
                strategy_options=options,
            )
            requests.append(request)
            pipeline.start(request, time=float(rng.integers(0, 40)))
        pipeline.run()
        for request in requests:
            got = list(token_ids(outputs_of(pipeline, request.session)))
            wanted = reference.generate(
                request.prompt, request.sampling, request.max_new_tokens, frozenset()
            ).token_ids
            assert got == wanted, (seed, request)
