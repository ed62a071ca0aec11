"""The head that a drafter proposes with gives the exact head's logits of its tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from flowedge.drafting.draft_vocabulary import DraftVocabulary
from flowedge.drafting.proposal_head import MOST_SEEN, ProposalHead
from flowedge.drafting.seen_tokens import SeenTokens, seen_by
from flowedge.models.lm_head import LMHead

VOCAB, HIDDEN = 2000, 64
PART = DraftVocabulary(np.array([7, 3, 1999, 12]), VOCAB)


def exact(dtype: torch.dtype = torch.float32) -> LMHead:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(VOCAB, HIDDEN).to(dtype), requires_grad=False)
    return LMHead(weight, "lm_head.weight", divisor=2.0, softcap=30.0)


def states(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(5, HIDDEN, generator=torch.Generator().manual_seed(1)).to(dtype)


def test_without_a_part_and_a_format_nothing_is_copied() -> None:
    head = ProposalHead(exact(), vocab_size=1990)
    assert (head.columns, head.copied_bytes, head.session_bytes, head.fingerprint) == (1990, 0, 0, "")
    assert head.ids is None and seen_by(head) is None
    assert torch.equal(head.logits(states()), exact().logits(states())[:, :1990])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_columns_are_the_parts_tokens(dtype: torch.dtype) -> None:
    head = ProposalHead(exact(dtype), PART)
    wanted = exact(dtype).logits(states(dtype))[:, PART.ids]
    assert head.logits(states(dtype)).dtype == torch.float32
    torch.testing.assert_close(head.logits(states(dtype)), wanted, rtol=1e-2, atol=1e-2)
    assert head.ids is not None and head.ids.tolist() == PART.ids.tolist()
    assert head.copied_bytes == 4 * HIDDEN * dtype.itemsize
    assert head.session_bytes == MOST_SEEN * HIDDEN * dtype.itemsize


@pytest.mark.parametrize(("quant", "error"), [("int8", 0.03), ("int4", 0.3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("part", [PART, None])
def test_a_copy_in_fewer_bits_gives_about_the_logits(
    quant: str, error: float, dtype: torch.dtype, part: DraftVocabulary | None
) -> None:
    head = ProposalHead(exact(dtype), part, quant)
    columns = slice(None) if part is None else part.ids
    wanted = exact(dtype).logits(states(dtype))[:, columns]
    difference = (head.logits(states(dtype)) - wanted).std() / wanted.std()
    assert difference < error
    assert head.copied_bytes < 0.6 * max(head.columns, 16) * HIDDEN * 2
    assert head.fingerprint.endswith(f"+head {quant}")


def test_a_copy_beyond_the_limit_stays_in_the_dtype_of_the_head() -> None:
    whole = ProposalHead(exact(), None, "int8", most_bytes=10_000)
    assert (whole.quant, whole.copied_bytes) == ("none", 0)
    whole.copy(PART)
    assert whole.quant == "int8" and 0 < whole.copied_bytes <= 10_000


def test_a_head_with_fewer_tokens_copies_those_that_it_has() -> None:
    head = ProposalHead(exact(), PART, vocab_size=10)
    assert head.ids is not None and head.ids.tolist() == [7, 3]
    seen = SeenTokens(head)
    seen.add(0, np.array([12, 5]))
    assert seen.ids.tolist() == [7, 3, 5]


def test_tokens_of_the_text_are_added_once_and_forgotten_with_their_rows() -> None:
    head = ProposalHead(exact(), PART)
    seen = SeenTokens(head)
    seen.add(0, np.array([7, 100, 100, 200]))
    seen.add(4, np.array([200, 3, 300]))
    assert seen.ids.tolist() == [*PART.ids.tolist(), 100, 200, 300]
    wanted = exact().logits(states())[:, [100, 200, 300]]
    torch.testing.assert_close(seen.logits(states()), wanted)
    seen.truncate(5)
    assert seen.ids.tolist() == [*PART.ids.tolist(), 100, 200]
    seen.add(5, np.array([400]))
    torch.testing.assert_close(seen.logits(states()), exact().logits(states())[:, [100, 200, 400]])


def test_no_more_tokens_are_added_than_there_is_room_for() -> None:
    seen = SeenTokens(ProposalHead(exact(), PART))
    for start in range(0, 1000, 100):
        seen.add(start, np.arange(start, start + 100) + 500)
    assert seen.count == MOST_SEEN
    assert seen.ids.tolist() == [*PART.ids.tolist(), *range(500, 500 + MOST_SEEN)]
    wanted = exact().logits(states())[:, 500 : 500 + MOST_SEEN]
    torch.testing.assert_close(seen.logits(states()), wanted)
