"""Train the BPE tokenizer.

Run: python -m testbed.tools.models.train_tokenizer --data DIR --out DIR
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from testbed.tools.models.texts.corpus import Corpus, load_corpus

BOS, EOS, USER, ASSISTANT, PAD = "<s>", "</s>", "<|user|>", "<|assistant|>", "<pad>"
CHAT_TEMPLATE = (Path(__file__).parent / "texts" / "chat_template.jinja").read_text(encoding="utf-8")


def train_tokenizer(corpus: Corpus, vocabulary: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer of exactly `vocabulary` entries that splits numbers into digits."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[BOS, EOS, USER, ASSISTANT, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_texts(corpus), trainer)
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        extra_special_tokens=[USER, ASSISTANT],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )


def load_with_template(folder: Path) -> PreTrainedTokenizerBase:
    """Load a tokenizer of `train_tokenizer`, with the template that the target is trained in now."""
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def training_texts(corpus: Corpus) -> Iterator[str]:
    """Yield the texts of the training pairs, and one plain text in three: chat dominates the merges."""
    for pair in corpus.training_pairs:
        yield pair.prompt
        yield pair.response
    yield from corpus.texts[::3]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of *.jsonl with prompt and response")
    parser.add_argument("--out", type=Path, required=True, help="folder to write the tokenizer to")
    parser.add_argument("--vocabulary", type=int, default=4096)
    arguments = parser.parse_args()
    tokenizer = train_tokenizer(load_corpus(arguments.data), arguments.vocabulary)
    tokenizer.save_pretrained(arguments.out)
    print(f"{len(tokenizer)} tokens -> {arguments.out}")


if __name__ == "__main__":
    main()
