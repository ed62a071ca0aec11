"""Train a small language model to draft for the target, by distillation from it.

`python -m testbed.tools.models.train_small --data DIR --responses FILE --target DIR --out DIR --minutes 25`
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from testbed.tools.models.packing import WeightedDocument, corpus_documents, pair_tokens
from testbed.tools.models.replicas import Replicas
from testbed.tools.models.schedule import TimedSchedule, add_training_options
from testbed.tools.models.texts.corpus import Corpus, jsonl_file_pairs, load_corpus
from testbed.tools.models.train_target import Phases, ResumeState, load_checkpoint, new_optimizers, train

PHASES: Phases = ((0.0, 12, 256), (0.3, 12, 512), (0.85, 4, 1536))
CORPUS_SHARE = 0.3  # how often a document of the corpus comes in an epoch, as a factor


def new_small(target: LlamaForCausalLM) -> LlamaForCausalLM:
    """Return a Llama of about 1.3 million parameters that shares the target's vocabulary.

    Its embedding is the target's, projected on its principal directions. Its layers are fresh.
    """
    theirs = target.config
    small = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=theirs.vocab_size,
            hidden_size=160,
            intermediate_size=448,
            num_hidden_layers=2,
            num_attention_heads=5,
            num_key_value_heads=5,
            max_position_embeddings=theirs.max_position_embeddings,
            rope_parameters=theirs.rope_parameters,
            tie_word_embeddings=True,
            bos_token_id=theirs.bos_token_id,
            eos_token_id=theirs.eos_token_id,
            pad_token_id=theirs.pad_token_id,
        )
    )
    embedding = target.model.embed_tokens.weight.detach()
    directions = torch.linalg.svd(embedding, full_matrices=False).Vh[: small.config.hidden_size]
    with torch.no_grad():
        small.model.embed_tokens.weight.copy_(embedding @ directions.T)
    return small


class Distillation:
    """The Kullback-Leibler divergence from the target's next-token distributions, in nats a token.

    Attributes:
        autocast: whether products are computed in bfloat16.
    """

    def __init__(self, target: LlamaForCausalLM, autocast: bool) -> None:
        self.target, self.autocast = target, autocast

    def __call__(self, small: LlamaForCausalLM, tokens: Tensor) -> Tensor:
        """Return the mean over token ids [rows, length]."""
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.autocast):
            with torch.no_grad():
                wanted = self.target(input_ids=tokens, use_cache=False).logits
            given = small(input_ids=tokens, use_cache=False).logits
        return F.kl_div(
            given.float().flatten(0, 1).log_softmax(dim=-1),
            wanted.float().flatten(0, 1).log_softmax(dim=-1),
            reduction="batchmean",
            log_target=True,
        )


def training_documents(
    tokenizer: PreTrainedTokenizerBase, corpus: Corpus, responses: list[Path]
) -> list[WeightedDocument]:
    """Return the corpus and the target's own responses, each once an epoch."""
    found = [
        WeightedDocument(document.tokens, CORPUS_SHARE * document.repeats, document.is_chat)
        for document in corpus_documents(tokenizer, corpus)
    ]
    for path in responses:
        found += [WeightedDocument(pair_tokens(tokenizer, pair), 1.0) for pair in jsonl_file_pairs(path)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_training_options(parser, minutes=25.0, learning_rate=3e-3, threads=1)
    parser.add_argument("--responses", type=Path, nargs="*", default=[], help="of generate_responses")
    parser.add_argument("--target", type=Path, required=True, help="folder of the target and its tokenizer")
    arguments = parser.parse_args()

    torch.manual_seed(arguments.seed)
    arguments.out.mkdir(parents=True, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(arguments.target)
    target = LlamaForCausalLM.from_pretrained(arguments.target, dtype=torch.float32)
    target.requires_grad_(False)
    corpus = load_corpus(arguments.data)
    documents = training_documents(tokenizer, corpus, arguments.responses)
    small = (
        new_small(target)
        if arguments.init is None
        else LlamaForCausalLM.from_pretrained(arguments.init, dtype=torch.float32)
    )
    optimizers = new_optimizers(small, arguments.learning_rate, muon=True)
    progress = load_checkpoint(arguments.out, small, optimizers) if arguments.resume else ResumeState()
    epoch = sum(len(document.tokens) * document.repeats for document in documents)
    print(f"{small.num_parameters()} parameters, {epoch:.0f} tokens an epoch", flush=True)
    schedule = TimedSchedule(arguments.minutes, progress.elapsed_s)
    loss = Distillation(target, arguments.dtype == "bfloat16")
    replicas = Replicas(small, arguments.threads, loss)
    train(replicas, optimizers, documents, arguments.out, schedule, arguments.learning_rate, progress, PHASES)
    held_out = [
        torch.from_numpy(pair_tokens(tokenizer, pair)[:2048].astype("int64"))
        for pair in corpus.held_out_pairs
    ]
    with torch.no_grad():
        total = sum(loss(small, tokens[None]).item() * len(tokens) for tokens in held_out)
    divergence = total / sum(map(len, held_out))
    print(f"held-out divergence {divergence:.3f} nats a token after {progress.tokens} tokens")


if __name__ == "__main__":
    main()
