"""Small random drafters of every kind, made twice alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import LlamaConfig

from flowedge.drafting.draft_vocabulary import DraftVocabulary
from flowedge.drafting.drafter import Drafter
from flowedge.drafting.heads.eagle3_head import load_eagle3_head
from flowedge.drafting.heads.eagle_head import EagleHead
from flowedge.drafting.heads.head_drafter import HeadDrafter
from flowedge.drafting.joined import JoinedDrafter
from flowedge.drafting.lm import LMDrafter
from flowedge.drafting.loading import TargetModel, load_drafter
from flowedge.drafting.lookup.ngram import NGramDrafter
from flowedge.drafting.proposal_head import ProposalHead
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.language_model import LanguageModel
from flowedge.models.lm_head import LMHead
from flowedge.models.quant.quantize import quantize_block
from flowedge.models.taps import eagle3_taps
from tests.drafting.conftest import save_small_lm
from tests.drafting.eagle3_files import save_eagle3_head
from tests.drafting.mtp_files import make_mtp
from tests.models.cuda_graphs.static_pipeline import CountingMaker

HIDDEN, VOCAB = 32, 60
PART = DraftVocabulary(np.array([9, 30, 2, 41, 17, 8, 55, 23]), VOCAB)
Make = Callable[[], Drafter]


def small_config(**changes: Any) -> LlamaConfig:
    """Of one narrow layer, unless it is changed."""
    sizes = {"vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": 48, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return LlamaConfig(**(sizes | heads | changes))


def eagle(
    recalls: bool = False,
    dtype: torch.dtype = torch.float32,
    part: DraftVocabulary | None = None,
    native: bool = True,
    device: str = "cpu",
    quant: str = "none",
) -> HeadDrafter:
    torch.manual_seed(0)
    head = EagleHead(small_config(), fc_bias=True).to(device, dtype).eval().requires_grad_(False)
    weight = nn.Parameter(torch.randn(VOCAB, HIDDEN).to(device, dtype), requires_grad=False)
    embedding = nn.Embedding(VOCAB, HIDDEN).to(device, dtype).requires_grad_(False)
    lm_head = LMHead(weight, "lm_head.weight")
    quantize_block(head, quant)
    drafter = HeadDrafter(head, lm_head, embedding, (), recalls, ProposalHead(lm_head, part, quant))
    if not native:
        vars(vars(drafter)["_forward"])["_kernels"] = None
    return drafter


def static_eagle(recalls: bool) -> HeadDrafter:
    drafter = eagle(recalls)
    drafter.decode_statically(CountingMaker(), uncaptured=0)
    return drafter


def eagle3(directory: Path) -> HeadDrafter:
    if not (directory / "config.json").is_file():
        save_eagle3_head(directory, hidden=HIDDEN, vocab=VOCAB, draft_vocab=20)
    torch.manual_seed(0)
    lm_head = LMHead(nn.Parameter(torch.zeros(VOCAB, HIDDEN), requires_grad=False), "lm_head.weight")
    head = load_eagle3_head(directory, torch.float32)
    return HeadDrafter(head, lm_head, nn.Embedding(VOCAB, HIDDEN), eagle3_taps(8))


def mtp(directory: Path, family: str = "qwen3_5", native: bool = True, static: bool = False) -> HeadDrafter:
    if not (directory / "config.json").is_file():
        make_mtp(directory, family, vocab_size=VOCAB)
    checkpoint = Checkpoint(directory)
    target = TargetModel(checkpoint, LMHead.load(checkpoint), None, torch.float32)
    drafter = load_drafter(("mtp",), target)
    assert isinstance(drafter, HeadDrafter)
    if not native:
        vars(vars(drafter)["_forward"])["_kernels"] = None
    if static:
        drafter.decode_statically(CountingMaker(), uncaptured=0)
    return drafter


def small(directory: Path, part: DraftVocabulary | None = None, native: bool = True) -> LMDrafter:
    if not (directory / "config.json").is_file():
        save_small_lm(directory, vocab_size=VOCAB)
    checkpoint = Checkpoint(directory)
    block, head = LayerBlock.load(checkpoint, 0, 2), LMHead.load(checkpoint)
    if not native:
        block.kernels = None
    return LMDrafter(LanguageModel(block, head, VOCAB, "small"), ProposalHead(head, part))


def makers(directory: Path) -> dict[str, Make]:
    """How drafters are made, by name; their files are in `directory`."""
    folders = ("eagle3", "lm", "mtp", "moe", "latent")
    of_eagle3, of_lm, of_mtp, of_moe, of_latent = (directory / name for name in folders)
    for each in (of_eagle3, of_lm, of_mtp, of_moe, of_latent):
        each.mkdir(exist_ok=True)
    return {
        "eagle": eagle,
        "eagle+recall": lambda: eagle(recalls=True),
        "eagle bf16": lambda: eagle(dtype=torch.bfloat16),
        "eagle of a part": lambda: eagle(part=PART),
        "eagle by torch": lambda: eagle(native=False),
        "eagle+recall by torch": lambda: eagle(recalls=True, native=False),
        "eagle static": lambda: static_eagle(False),
        "eagle+recall static": lambda: static_eagle(True),
        "eagle3": lambda: eagle3(of_eagle3),
        "mtp": lambda: mtp(of_mtp),
        "mtp of experts": lambda: mtp(of_moe, "qwen3_5_moe"),
        "mtp of latent attention": lambda: mtp(of_latent, "glm4_moe_lite"),
        "mtp by torch": lambda: mtp(of_mtp, native=False),
        "mtp static": lambda: mtp(of_mtp, static=True),
        "lm": lambda: small(of_lm),
        "lm of a part": lambda: small(of_lm, PART),
        "lm by torch": lambda: small(of_lm, native=False),
        "ngram": NGramDrafter,
        "mtp+ngram": lambda: JoinedDrafter([mtp(of_mtp)], NGramDrafter(), VOCAB),
        "eagle+ngram": lambda: JoinedDrafter([eagle()], NGramDrafter(), VOCAB),
        "lm+ngram": lambda: JoinedDrafter([small(of_lm)], NGramDrafter(), VOCAB),
        "eagle+lm+ngram": lambda: JoinedDrafter([eagle(True), small(of_lm)], NGramDrafter(), VOCAB),
        "eagle+lm": lambda: JoinedDrafter([eagle(), small(of_lm, PART)], None, VOCAB),
    }


NAMES = (
    *("eagle", "eagle+recall", "eagle bf16", "eagle of a part", "eagle by torch", "eagle+recall by torch"),
    *("mtp", "mtp of experts", "mtp of latent attention", "mtp by torch", "mtp static", "mtp+ngram"),
    *("eagle static", "eagle+recall static", "eagle3", "lm", "lm of a part", "lm by torch", "ngram"),
    *("eagle+ngram", "lm+ngram", "eagle+lm+ngram", "eagle+lm"),
)
# What the kernels compute: a row has the same bits beside any other rows.
EXACT = (
    "eagle",
    "eagle+recall",
    "eagle bf16",
    "mtp",
    "mtp of experts",
    "mtp of latent attention",
    "mtp+ngram",
    "lm",
    "ngram",
    "eagle+ngram",
    "lm+ngram",
)
