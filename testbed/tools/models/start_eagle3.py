"""Make an EAGLE-3 head of the target's own weights, as a start for a short training.

The head's layer is the target's last layer and reads the highest of the three taps. Weights that read the
token are random.

Run: python -m testbed.tools.models.start_eagle3 --target DIR --data FILE --draft-vocab 2048 --out DIR
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from flowedge.drafting.heads.eagle3_head import Eagle3Head, save_eagle3_head
from flowedge.training.documents import document_of
from flowedge.training.examples import read_examples
from flowedge.training.heads.eagle3_training import draft_vocabulary
from flowedge.training.heads.head_kinds import new_eagle3_head


@torch.no_grad()
def start_head(target: LlamaForCausalLM, ids: torch.Tensor, seed: int) -> Eagle3Head:
    """Return the head for a draft vocabulary of ids [draft_vocab], ascending."""
    generator = torch.Generator().manual_seed(seed)
    head = new_eagle3_head(target.config, ids, target.lm_head.weight, generator)
    theirs, ours = target.model.layers[-1], head.midlayer
    hidden = target.config.hidden_size
    head.fc.weight.zero_()[:, -hidden:].copy_(torch.eye(hidden))
    for name in ("q_proj", "k_proj", "v_proj"):
        getattr(ours.self_attn, name).weight[:, hidden:] = getattr(theirs.self_attn, name).weight
    ours.self_attn.o_proj.weight.copy_(theirs.self_attn.o_proj.weight)
    ours.mlp.load_state_dict(theirs.mlp.state_dict())
    ours.hidden_norm.load_state_dict(theirs.input_layernorm.state_dict())
    ours.post_attention_layernorm.load_state_dict(theirs.post_attention_layernorm.state_dict())
    head.norm.load_state_dict(target.model.norm.state_dict())
    return head


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, required=True, help="folder of the target and its tokenizer")
    parser.add_argument(
        "--data", type=Path, required=True, help="of train-drafter, for the tokens' frequencies"
    )
    parser.add_argument("--draft-vocab", type=int, default=2048)
    parser.add_argument("--out", type=Path, required=True, help="folder for the head")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(arguments.target)
    target = LlamaForCausalLM.from_pretrained(arguments.target, dtype=torch.float32)
    documents = [document_of(tokenizer, example) for example in read_examples(arguments.data)]
    ids = draft_vocabulary(documents, target.config.vocab_size, arguments.draft_vocab)
    save_eagle3_head(start_head(target, ids, arguments.seed), arguments.out)
    counted = sum(int(document.counted.sum()) for document in documents)
    covered = sum(
        int(torch.isin(torch.from_numpy(each.tokens[each.counted]), ids).sum()) for each in documents
    )
    print(f"{len(ids)} tokens cover {covered / counted:.1%} of what the assistant writes -> {arguments.out}")


if __name__ == "__main__":
    main()
