"""Copy a trained pair into the package.

`python -m testbed.models.bundle --target DIR --tokenizer DIR --eagle DIR --out DIR`
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from flowedge.drafting.eagle_head import EagleHead, load_eagle_head, save_eagle_head


def bundle_target(target: Path, tokenizer: Path, out: Path) -> None:
    """Write the target in bfloat16 with its tokenizer, replacing `out` file by file."""
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.bfloat16)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder)
        for path in Path(folder).iterdir():
            path.chmod(0o644)
            path.replace(out / path.name)


def bundle_head(head: EagleHead, out: Path) -> None:
    """Write the head in bfloat16."""
    save_eagle_head(head.to(torch.bfloat16), out)
    for path in out.iterdir():
        path.chmod(0o644)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, help="folder of train_target's model")
    parser.add_argument("--tokenizer", type=Path, help="folder of train_tokenizer")
    parser.add_argument("--eagle", type=Path, help="folder of train_eagle's head")
    parser.add_argument("--out", type=Path, required=True, help="folder that gets model/ and eagle/")
    arguments = parser.parse_args()
    if arguments.target is not None:
        bundle_target(arguments.target, arguments.tokenizer or arguments.target, arguments.out / "model")
    if arguments.eagle is not None:
        bundle_head(load_eagle_head(arguments.eagle, torch.bfloat16), arguments.out / "eagle")


if __name__ == "__main__":
    main()
