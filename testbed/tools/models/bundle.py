"""Copy a trained target and its drafters into the package.

`python -m testbed.tools.models.bundle --target DIR --tokenizer DIR --eagle DIR --small DIR --eagle3 DIR
--out DIR`
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from flowedge.drafting.heads.eagle3_head import load_eagle3_head, save_eagle3_head
from flowedge.drafting.heads.eagle_head import load_eagle_head, save_eagle_head
from testbed.tools.models.train_tokenizer import load_with_template


def bundle_model(source: Path, tokenizer: Path | None, out: Path) -> None:
    """Write a language model in bfloat16, with a tokenizer if given, replacing `out` file by file."""
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        model.save_pretrained(folder)
        if tokenizer is not None:
            load_with_template(tokenizer).save_pretrained(folder)
        for path in Path(folder).iterdir():
            path.chmod(0o644)
            path.replace(out / path.name)


def bundle_head(source: Path, out: Path) -> None:
    """Write an EAGLE-1/2 head in bfloat16."""
    save_eagle_head(load_eagle_head(source, torch.bfloat16), out)
    for path in out.iterdir():
        path.chmod(0o644)


def bundle_eagle3_head(source: Path, out: Path) -> None:
    """Write an EAGLE-3 head in bfloat16."""
    save_eagle3_head(load_eagle3_head(source, torch.bfloat16), out)
    for path in out.iterdir():
        path.chmod(0o644)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, help="folder of train_target's model")
    parser.add_argument("--tokenizer", type=Path, help="folder of train_tokenizer")
    parser.add_argument("--eagle", type=Path, help="folder of train-drafter's head")
    parser.add_argument("--small", type=Path, help="folder of train_small's model")
    parser.add_argument("--eagle3", type=Path, help="folder of train-drafter's head")
    parser.add_argument("--out", type=Path, required=True, help="gets model/, eagle/, small/ and eagle3/")
    arguments = parser.parse_args()
    if arguments.target is not None:
        bundle_model(arguments.target, arguments.tokenizer or arguments.target, arguments.out / "model")
    if arguments.eagle is not None:
        bundle_head(arguments.eagle, arguments.out / "eagle")
    if arguments.small is not None:
        bundle_model(arguments.small, None, arguments.out / "small")
    if arguments.eagle3 is not None:
        bundle_eagle3_head(arguments.eagle3, arguments.out / "eagle3")


if __name__ == "__main__":
    main()
