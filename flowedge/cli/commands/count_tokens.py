"""`flowedge count-tokens`: counts the tokens of answers, by which a draft vocabulary is chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flowedge.cli.options import MODEL_HELP, local_path
from flowedge.cli.output import say
from flowedge.device.state_dir import state_dir
from flowedge.drafting.drafter_format import AUTO_TOKENS


def count_tokens(
    model: Annotated[str, typer.Argument(help=f"The target. {MODEL_HELP}")],
    data: Annotated[
        Path,
        typer.Option(metavar="FILE", help="JSON lines with messages, prompt and response, or text."),
    ],
) -> None:
    """Count the tokens of answers, by which drafters choose what to propose.

    They are added to the counts of the model in this device's state directory. A draft node counts what its
    model draws; this command makes a beginning where it has drawn little yet.
    """
    from flowedge.drafting.token_counts import CountsFile, TokenCounts
    from flowedge.models.host.libraries import import_libraries

    import_libraries()
    from flowedge.models.checkpoint.checkpoint import Checkpoint
    from flowedge.models.checkpoint.tokenizer_loading import load_tokenizer
    from flowedge.training.documents import document_of
    from flowedge.training.examples import read_examples

    examples = read_examples(data)
    checkpoint = Checkpoint.open(local_path(model))
    tokenizer, vocab_size = load_tokenizer(checkpoint), int(checkpoint.config.vocab_size)
    added = TokenCounts(vocab_size)
    for example in examples:
        document = document_of(tokenizer, example)
        added.add(document.tokens[document.counted])
    file = CountsFile(state_dir(), checkpoint.fingerprint, vocab_size)
    counts = file.read()
    covered = added.coverage(counts.most_frequent(AUTO_TOKENS)) if counts.total else None
    file.write(TokenCounts(vocab_size, counts.counts + added.counts))
    say(f"{added.total} tokens of {len(examples)} texts are counted, beside {counts.total} before")
    if covered is not None and vocab_size > AUTO_TOKENS:
        say(f"{covered:.1%} of them are among the {AUTO_TOKENS} tokens that were the most frequent before")
