"""From logits to the children of nodes."""

from __future__ import annotations

import torch

from flowedge.drafting.drafter import DraftLayer


def likeliest(logits: torch.Tensor, width: int) -> DraftLayer:
    """The `width` likeliest tokens of each row of logits [f, vocab], with their log-probabilities."""
    log_probs = torch.log_softmax(logits, dim=-1)
    best = torch.topk(log_probs, min(width, log_probs.shape[-1]), dim=-1)
    return DraftLayer(tokens=best.indices.cpu().numpy(), log_probs=best.values.double().cpu().numpy())
