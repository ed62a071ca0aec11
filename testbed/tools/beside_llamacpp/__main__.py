"""Measure FlowEdge beside llama.cpp: decoding, prefill, layers by rows, and the bundled model by stages.

Run: python -m testbed.tools.beside_llamacpp --llamacpp DIR [--out FILE.json]

DIR is llama.cpp's source, which is built with its RPC backend, or the folder of such a build. The source is
got by `git clone https://github.com/ggml-org/llama.cpp`. It also lies in vendor/llama.cpp of the source
distribution of llama-cpp-python (`pip download --no-binary :all: --no-deps llama-cpp-python`).
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from transformers import LlamaConfig

from flowedge.cli.prompts import read_prompt_lines
from flowedge.device.disk_cache.limits import DIRECTORY_VARIABLE, CacheLimits
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.tokenizer_loading import load_tokenizer
from flowedge.text.tokenizer import encode_chat
from flowedge_testbed.prompts import OWN_FILE
from testbed.tools.beside_llamacpp.comparisons import LAYERS, MEASURED, ONE, PAIR, TWO, Comparison
from testbed.tools.beside_llamacpp.formats import DEFAULT_FORMATS, FORMATS, STORED, Format, format_of
from testbed.tools.beside_llamacpp.installation import LlamaCpp
from testbed.tools.beside_llamacpp.report import describe_machine, markdown, write_json
from testbed.tools.random_model import write_model

WORK = CacheLimits.configured().root / "beside-llamacpp"
LAYERS_OF_MODEL, HIDDEN, INTERMEDIATE, HEADS, KV_HEADS = 22, 2048, 5632, 32, 4
PROMPTS = 4
PAIR_FORMATS = ("float32", "bf16")  # of the bundled model


def random_model(directory: Path) -> Path:
    """Return the folder of a Llama of 0.99 B random weights, which is made if it does not exist."""
    if not directory.is_dir():
        bundled = Checkpoint.open("bundled").config
        config = LlamaConfig(
            vocab_size=bundled.vocab_size,
            hidden_size=HIDDEN,
            intermediate_size=INTERMEDIATE,
            num_hidden_layers=LAYERS_OF_MODEL,
            num_attention_heads=HEADS,
            num_key_value_heads=KV_HEADS,
            max_position_embeddings=4096,
            bos_token_id=bundled.bos_token_id,
            eos_token_id=bundled.eos_token_id,
            pad_token_id=bundled.pad_token_id,
            tie_word_embeddings=False,
        )
        partial = directory.with_name(f"{directory.name}.{os.getpid()}.partial")
        write_model(partial, config)
        partial.rename(directory)
    return directory


def own_prompts(count: int) -> list[tuple[int, ...]]:
    """Return the first prompts of the project as token ids of the bundled model."""
    tokenizer = load_tokenizer(Checkpoint.open("bundled"))
    return [tuple(encode_chat(tokenizer, text)) for text in read_prompt_lines(OWN_FILE)[:count]]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m testbed.tools.beside_llamacpp",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--llamacpp", type=Path, required=True, help="llama.cpp's source, or a build of it")
    parser.add_argument("--llamacpp-version", default="", help="how the source was got, for the report")
    parser.add_argument(
        "--model",
        type=Path,
        help="a Llama in safetensors, or any GGUF file, as it is stored; a random one of 0.99 B if not given",
    )
    parser.add_argument("--work", type=Path, default=WORK, help=f"where models and builds stay: {WORK}")
    parser.add_argument(
        "--only", nargs="+", choices=[each.name for each in MEASURED], help="tables to measure"
    )
    parser.add_argument(
        "--formats",
        nargs="+",
        default=[],
        help=f"{', '.join(FORMATS)}, or any --quant of FlowEdge; by default {' '.join(DEFAULT_FORMATS)}, "
        f"and {STORED!r} of a GGUF file",
    )
    parser.add_argument(
        "--strategies", nargs="+", default=["autoregressive", "auto"], help="on the bundled model"
    )
    parser.add_argument("--repeats", type=int, default=3, help="turns of each side")
    parser.add_argument("--minutes", type=float, default=60.0, help="after which no further turn begins")
    parser.add_argument("--tokens", type=int, default=64, help="decoded for a figure of the large model")
    parser.add_argument("--out", type=Path, help="a JSON file with all values, written again and again")
    return parser.parse_args()


def measure(comparison: Comparison, forms: Sequence[Format], only: Sequence[str]) -> None:
    """Measure the named tables."""
    for form in forms:
        if ONE.name in only or LAYERS.name in only:
            comparison.in_one_process(form, decoding=ONE.name in only, rows=LAYERS.name in only)
        if TWO.name in only:
            comparison.over_two_stages(form)
    if PAIR.name in only:
        comparison.on_the_bundled_model([FORMATS[name] for name in PAIR_FORMATS])


def main() -> None:
    arguments = parse_arguments()
    # The end by a signal has to stop agents and servers, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    work = arguments.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    os.environ[DIRECTORY_VARIABLE] = str(work / "cache")
    own = arguments.model is not None and arguments.model.suffix == ".gguf"
    forms = [format_of(name) for name in arguments.formats or ((STORED,) if own else DEFAULT_FORMATS)]
    comparison = Comparison(
        llamacpp=LlamaCpp.at(arguments.llamacpp.resolve(), work / "llama.cpp"),
        model=arguments.model or random_model(work / "model"),
        work=work,
        repeats=arguments.repeats,
        deadline=time.monotonic() + 60 * arguments.minutes,
        tokens=arguments.tokens,
        strategies=arguments.strategies,
        prompts=own_prompts(PROMPTS),
    )
    machine = describe_machine()

    def about() -> dict[str, object]:
        return {
            "command": shlex.join(sys.orig_argv),
            "llama.cpp": [*sorted(comparison.builds), arguments.llamacpp_version],
            "machine": machine,
            "load average at the end": round(os.getloadavg()[0], 1),
            "commands of llama.cpp": comparison.commands,
        }

    if arguments.out is not None:
        comparison.save = lambda: write_json(arguments.out, comparison.figures, about())
    measure(comparison, forms, arguments.only or [each.name for each in MEASURED])
    print("\n" + markdown(comparison.figures) + "\n")
    print(json.dumps(about(), indent=1))


if __name__ == "__main__":
    main()
