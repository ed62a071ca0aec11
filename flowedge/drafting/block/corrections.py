"""What the token of a node changes in the probabilities of the tokens that follow."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from flowedge.drafting.block.block_settings import Selection


class MarkovBias(nn.Module):
    """DSpark: a token adds the product of two small matrices to the logits of the token after it."""

    def __init__(self, vocab: int, rank: int) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(vocab, rank, _weight=torch.zeros(vocab, rank))
        self.markov_w2 = nn.Linear(rank, vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return float32 [..., vocab] for int64 tokens [...]."""
        added: Tensor = self.markov_w2(self.markov_w1(tokens))
        return added.float()

    def corrected(self, logits: Tensor, ids: Tensor | None, tokens: Tensor, states: Tensor) -> Tensor:  # noqa: ARG002
        """Return the logits below nodes; arguments as in CandidateSelector."""
        added: Tensor = self(tokens)
        return logits + (added[:, : logits.shape[1]] if ids is None else added[:, ids])


class CandidateSelector(nn.Module):
    """DFlash2: a token changes how the likeliest tokens of the next depth share their probability.

    A candidate's logit gets the product of a vector of the token, one of the head's state and one of the
    candidate. The candidates together stay as likely as they were, and so do all other tokens: the head was
    trained to choose among its candidates alone.
    """

    def __init__(self, vocab: int, hidden: int, selection: Selection) -> None:
        super().__init__()
        self._candidates = selection.candidates
        self.hidden_projection = nn.Linear(hidden, selection.rank, bias=False)
        self.predecessor_codebook = nn.Parameter(torch.zeros(vocab, selection.rank))
        self.successor_codebook = nn.Parameter(torch.zeros(vocab, selection.rank))

    def corrected(self, logits: Tensor, ids: Tensor | None, tokens: Tensor, states: Tensor) -> Tensor:
        """Return the logits [f, columns] below nodes.

        Args:
            logits: float32 [f, columns], those of the nodes' depths.
            ids: int64 [columns], the token of each column; None where columns are token ids.
            tokens: int64 [f], of the nodes.
            states: [f, hidden], the head's, which predict the logits.
        """
        before, columns = logits.topk(min(self._candidates, logits.shape[1]), dim=-1)
        candidates = self.successor_codebook[columns if ids is None else ids[columns]].float()
        context = self.predecessor_codebook[tokens].float() * self.hidden_projection(states).float()
        scores = before + (candidates @ context[..., None])[..., 0]
        kept = before.logsumexp(-1, keepdim=True) - scores.logsumexp(-1, keepdim=True)
        return logits.scatter(-1, columns, scores + kept)
