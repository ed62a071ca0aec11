"""Measure what a quantisation costs a model: nats a token on held-out answers, beside float32.

Run: python -m testbed.tools.models.perplexity --data FOLDER [--model M] [--formats bfloat16 int8 int4 ...]

A GGUF file has the format "stored" as well: its integers as they are, in layers and token table.

FOLDER has files of {"prompt": ..., "response": ...} a line. The pairs that were held out of the model's
training are measured: the nats of each token of the answer, given the prompt and the tokens before.
"""

from __future__ import annotations

import argparse
import math
import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from flowedge.core.errors import BadRequestError
from flowedge.device.kernel_library import OFF, forget_library
from flowedge.models.block import LayerBlock
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.tokenizer_loading import load_tokenizer
from flowedge.models.host.payloads import DTYPES
from flowedge.models.lm_head import LMHead
from flowedge.models.quant.quantize import QUANTISATIONS
from flowedge.text.tokenizer import encode_chat, encode_messages
from flowedge_testbed.report.markdown import table
from testbed.tools.models.texts.corpus import jsonl_pairs

REFERENCE = "float32"
STORED = "stored"  # a format of GGUF files
FORMATS = ("bfloat16", "w8a16", "int8", "int4", "nf4")


@dataclass(frozen=True)
class Answered:
    """A conversation as token ids; the answer begins at index `start`."""

    ids: tuple[int, ...]
    start: int


@dataclass(frozen=True)
class Fit:
    """How well a model foresees the answers.

    Attributes:
        nats: float64 [tokens of all answers], negative log-likelihoods.
        likeliest: int64 [tokens of all answers], the tokens that the model holds for the likeliest.
    """

    nats: np.ndarray
    likeliest: np.ndarray


def held_out(checkpoint: Checkpoint, data: Path, count: int, most_tokens: int) -> list[Answered]:
    """Return `count` held-out conversations of at most `most_tokens` tokens, chosen at random.

    Raises:
        BadRequestError: when the folder has none.
    """
    tokenizer = load_tokenizer(checkpoint)
    pairs = [pair for pair in jsonl_pairs(data) if pair.held_out]
    random.Random(0).shuffle(pairs)
    found: list[Answered] = []
    for pair in pairs:
        prompt = encode_chat(tokenizer, pair.prompt)
        messages = [{"role": "user", "content": pair.prompt}, {"role": "assistant", "content": pair.response}]
        ids = encode_messages(tokenizer, messages, answered=True)
        if len(ids) <= most_tokens and ids[: len(prompt)] == prompt and len(found) < count:
            found.append(Answered(tuple(ids), len(prompt)))
    if not found:
        raise BadRequestError(f"{data} has no held-out pair of at most {most_tokens} tokens")
    return found


def measure(checkpoint: Checkpoint, form: str, texts: Sequence[Answered], dtype: str) -> Fit:
    """Return the fit of the model whose layers are held in a format: a dtype, or a quantisation with `dtype`.

    Layers, embedding and LM head compute as those of a stage.
    """
    plain = form in DTYPES
    held = DTYPES[form if plain else dtype]
    quant = "none" if plain or form == STORED else form
    layers = int(checkpoint.config.num_hidden_layers)
    with _kernels_off() if plain and checkpoint.gguf else nullcontext():  # they multiply with what is stored
        block = LayerBlock.load(checkpoint, 0, layers, quant=quant, dtype=held)
        head = LMHead.load(checkpoint, held, quant=quant)
        fits = [_fit(block, head, text) for text in texts]
    return Fit(np.concatenate([nats for nats, _ in fits]), np.concatenate([best for _, best in fits]))


@contextmanager
def _kernels_off() -> Iterator[None]:
    before = os.environ.get(OFF)
    os.environ[OFF] = "off"
    forget_library()
    try:
        yield
    finally:
        del os.environ[OFF]
        if before is not None:
            os.environ[OFF] = before
        forget_library()


def _fit(block: LayerBlock, head: LMHead, text: Answered) -> tuple[np.ndarray, np.ndarray]:
    ids = torch.tensor(text.ids)
    rows = len(ids) - 1
    positions = np.arange(rows)
    cache = block.new_cache(rows)
    hidden = block.forward(ids[:-1], positions, cache, 0, 0, positions - 1, lambda: False)
    assert hidden is not None  # nothing aborts it
    logits = head.logits(hidden[text.start - 1 :])
    drawn = ids[text.start :, None]
    nats = -torch.log_softmax(logits.double(), dim=-1).gather(-1, drawn)[:, 0]
    return nats.numpy(), logits.argmax(dim=-1).numpy()


def lines(fits: dict[str, Fit]) -> Iterator[list[str]]:
    """Yield a line of the table for each format, compared with REFERENCE token by token."""
    reference = fits[REFERENCE]
    for form, fit in fits.items():
        mean, more = fit.nats.mean(), fit.nats - reference.nats
        error = more.std(ddof=1) / math.sqrt(len(more))
        same = (fit.likeliest == reference.likeliest).mean()
        compared = ["", ""] if fit is reference else [f"{more.mean():+.4f} ± {error:.4f}", f"{1 - same:.2%}"]
        yield [form, f"{mean:.4f}", f"{math.exp(mean):.3f}", *compared]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of the training data")
    parser.add_argument("--model", default="bundled")
    choices = [*DTYPES, STORED, *(each for each in QUANTISATIONS if each != "none")]
    parser.add_argument("--formats", nargs="+", default=list(FORMATS), choices=choices)
    parser.add_argument("--dtype", default="bfloat16", choices=DTYPES, help="beside quantised weights")
    parser.add_argument("--count", type=int, default=100, help="conversations")
    parser.add_argument("--most-tokens", type=int, default=512, help="of a conversation")
    arguments = parser.parse_args()
    checkpoint = Checkpoint.open(arguments.model)
    texts = held_out(checkpoint, arguments.data, arguments.count, arguments.most_tokens)
    forms = dict.fromkeys([REFERENCE, *arguments.formats])
    fits = {form: measure(checkpoint, form, texts, arguments.dtype) for form in forms}
    tokens = len(fits[REFERENCE].nats)
    print(f"{arguments.model}: {tokens} tokens of {len(texts)} held-out answers, rows in {arguments.dtype}\n")
    header = [
        "",
        "nats a token",
        "perplexity",
        "more than float32 (± std. error)",
        "other token at T = 0",
    ]
    print(table(header, list(lines(fits))))


if __name__ == "__main__":
    main()
