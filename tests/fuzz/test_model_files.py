"""Mutated files of models and drafters: each is loaded or refused by a FlowEdgeError, in bounded memory.

FLOWEDGE_FUZZ_FILES says how many of each kind, FLOWEDGE_FUZZ_SEED from which seed; a failure names the
mutation. The proof divides them into fifths.
"""

from __future__ import annotations

import faulthandler
import os
import resource
import shutil
import sys
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

import flowedge
from flowedge.core.errors import FlowEdgeError
from flowedge.drafting.drafter_memory import drafter_memory
from flowedge.drafting.loading import TargetModel, load_drafter
from flowedge.models.block import LayerBlock
from flowedge.models.check.inspection import inspect_checkpoint
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.tokenizer_loading import eos_token_ids, load_tokenizer
from flowedge.models.lm_head import LMHead, load_embedding
from flowedge.text.tokenizer import encode_chat
from tests.drafting.eagle3_files import save_eagle3_head
from tests.fuzz.file_mutation import FileMutator
from tests.models.tiny_families import make_multimodal, make_tiny
from tests.support.blocks import fifths
from tests.support.gguf_files import write_gguf

FEW = range(9)
MANY = range(int(os.environ.get("FLOWEDGE_FUZZ_FILES", "500")))
SEED = int(os.environ.get("FLOWEDGE_FUZZ_SEED", "1"))
GROWTH_MIB = 600  # of the peak of this process's memory, over all mutations of a kind
HANG_S = 60.0  # a file that takes longer ends the process, with the place where it hangs
BUNDLED = Path(flowedge.__file__).parent / "bundled"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")

Make = Callable[[Path], Path]
shards = pytest.mark.parametrize(
    "numbers", [pytest.param(part, id=f"shard{shard}") for shard, part in enumerate(fifths(MANY))]
)


def family(name: str) -> Make:
    def make(directory: Path) -> Path:
        make_tiny(directory, name, max_shard_size="60KB" if name == "llama" else "1GB")
        for tokenizer_file in TOKENIZER:
            if (BUNDLED / "model" / tokenizer_file).is_file():
                shutil.copy(BUNDLED / "model" / tokenizer_file, directory)
        return directory

    return make


def multimodal(directory: Path) -> Path:
    make_multimodal(directory)
    return directory


def gguf(name: str) -> Make:
    def make(directory: Path) -> Path:
        model = family(name)(directory.with_name("source"))
        directory.mkdir()
        write_gguf(directory / "model.gguf", model, "F16")
        return directory

    return make


def load_model(directory: Path) -> None:
    """Load everything that stages and a draft node read of a model."""
    checkpoint = Checkpoint.open(str(directory), hub=False)
    sizes = inspect_checkpoint(checkpoint, "float32", [])
    LayerBlock.load(checkpoint, 0, sizes.num_layers)
    load_embedding(checkpoint)
    if checkpoint.gguf or (checkpoint.directory / "tokenizer_config.json").exists():
        tokenizer = load_tokenizer(checkpoint)
        eos_token_ids(checkpoint, tokenizer)
        encode_chat(tokenizer, "Hi")
    eos_token_ids(checkpoint)


MODELS: dict[str, Make] = {
    "llama": family("llama"),
    "gemma3": family("gemma3"),
    "qwen3_moe": family("qwen3_moe"),
    "mixtral": family("mixtral"),
    "phi3-longrope": family("phi3-longrope"),
    "smollm3": family("smollm3"),
    "qwen3_next": family("qwen3_next"),
    "lfm2_moe": family("lfm2_moe"),
    "gpt_oss": family("gpt_oss"),
    "glm4_moe_lite": family("glm4_moe_lite"),
    "granitehybrid": family("granitehybrid-experts"),
    "nemotron_h": family("nemotron_h"),
    "multimodal": multimodal,
    "gguf": gguf("qwen2"),
    "gguf-flash": gguf("glm4_moe_lite"),
    "gguf-recurrent": gguf("qwen3_5_moe"),
}


def mutations(
    kind: str, source: Path, work: Path, load: Callable[[Path], None], numbers: Sequence[int]
) -> Counter[str]:
    """Load a mutated copy of a directory for each number; return how many had each outcome."""
    outcomes: Counter[str] = Counter()
    load(source)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    files = sorted(path.name for path in source.iterdir() if path.suffix != ".jinja")
    for number in numbers:
        seed = SEED * 1_000_000 + number + zlib.crc32(kind.encode())
        mutator = FileMutator(seed)
        copy = Path(shutil.copytree(source, work / "mutated", dirs_exist_ok=True))
        name = mutator.random.choice(files)
        mutator.mutate(copy / name)
        faulthandler.dump_traceback_later(HANG_S, exit=True, file=sys.__stderr__)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                load(copy)
            outcomes["loaded"] += 1
        except FlowEdgeError as error:
            assert "\x1b" not in str(error), f"mutation {seed} of {name}: {str(error)!r}"
            outcomes[type(error).__name__] += 1
        except BaseException as error:
            raise AssertionError(f"mutation {seed} of {name} in {copy} ended with {error!r}") from error
        finally:
            faulthandler.cancel_dump_traceback_later()
        shutil.rmtree(copy)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10
    print(f"{kind}: {len(numbers)} mutations, {dict(outcomes)}, {grown} MiB more at the peak")
    assert grown < GROWTH_MIB, f"{grown} MiB more than before the mutations"
    return outcomes


def check_model(name: str, tmp_path: Path, numbers: Sequence[int]) -> None:
    source = MODELS[name](tmp_path / "source-model")
    outcomes = mutations(name, source, tmp_path, load_model, numbers)
    assert outcomes["CheckpointError"] > len(numbers) // 8, outcomes
    assert outcomes["loaded"], outcomes


@pytest.mark.one_in(4)
@pytest.mark.parametrize("name", MODELS)
def test_mutated_models(name: str, tmp_path: Path) -> None:
    check_model(name, tmp_path, FEW)


@pytest.mark.proof
@pytest.mark.timeout(1800)
@shards
@pytest.mark.parametrize("name", MODELS)
def test_many_mutated_models(name: str, numbers: Sequence[int], tmp_path: Path) -> None:
    check_model(name, tmp_path, numbers)


@pytest.fixture(scope="module")
def target() -> TargetModel:
    checkpoint = Checkpoint.open("bundled")
    return TargetModel(checkpoint, LMHead.load(checkpoint), load_tokenizer(checkpoint), torch.float32)


def check_drafters(kind: str, target: TargetModel, tmp_path: Path, numbers: Sequence[int]) -> None:
    source = tmp_path / "head"
    if kind == "eagle":
        shutil.copytree(BUNDLED / "eagle", source)
    else:
        hidden, vocab = int(target.checkpoint.config.hidden_size), target.vocab_size
        save_eagle3_head(source, hidden=hidden, vocab=vocab, draft_vocab=64)

    def load(directory: Path) -> None:
        drafter_memory([str(directory)], target.checkpoint, torch.float32)
        load_drafter([str(directory)], target)

    outcomes = mutations(kind, source, tmp_path, load, numbers)
    assert outcomes["CheckpointError"] > len(numbers) // 8, outcomes


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_mutated_draft_heads(kind: str, target: TargetModel, tmp_path: Path) -> None:
    check_drafters(kind, target, tmp_path, FEW)


@pytest.mark.proof
@pytest.mark.timeout(1800)
@shards
@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_many_mutated_draft_heads(
    kind: str, numbers: Sequence[int], target: TargetModel, tmp_path: Path
) -> None:
    check_drafters(kind, target, tmp_path, numbers)
