"""The LM head that a drafter proposes with: the exact head, or a copy of some of its rows."""

from __future__ import annotations

import torch
from torch import nn

from flowedge.drafting.draft_quant import head_quant
from flowedge.drafting.draft_vocabulary import DraftVocabulary
from flowedge.models.host.copies import to_device
from flowedge.models.kernels.linear import KernelLinear
from flowedge.models.lm_head import LMHead
from flowedge.models.quant.quantize import module_bytes, quantize_linear
from flowedge.models.token_table import PackedTable

# Tokens beyond its vocabulary that a session adds. Later ones are left out, so that neither memory nor time
# grows with the text.
MOST_SEEN = 512


class ProposalHead:
    """Logits of the tokens that a drafter can propose.

    Drafts decide no token, so the copy may lack tokens and be quantised. Verification keeps the exact head.

    Attributes:
        exact: the LM head that is copied.
        vocabulary: the tokens of the columns; None where columns are token ids.
        quant: the format of the copy; "none" is the dtype of the exact head.
        ids: int64 [columns] on the head's device, the token of each column; None where columns are token ids.
    """

    def __init__(
        self,
        exact: LMHead,
        vocabulary: DraftVocabulary | None = None,
        quant: str = "none",
        vocab_size: int | None = None,
        most_bytes: int | None = None,
    ) -> None:
        """Copy the rows of `vocabulary` in the format `quant`; nothing is copied without both.

        Args:
            vocab_size: the number of tokens that exist, where rows of padding follow them in the exact head.
            most_bytes: of a quantised copy, as in `head_quant`.
        """
        self.exact = exact
        self._wanted_quant, self._most_bytes = quant, most_bytes
        self._vocab_size = exact.vocab_size if vocab_size is None else min(vocab_size, exact.vocab_size)
        self.copy(vocabulary)

    def copy(self, vocabulary: DraftVocabulary | None) -> None:
        """Copy the rows of another vocabulary in place of the present copy, which is freed first."""
        self._copy: LMHead | nn.Module | None = None
        self.vocabulary = None if vocabulary is None else vocabulary.within(self._vocab_size)
        self.ids: torch.Tensor | None = None
        self.quant = "none"
        exact, rows = self.exact, self.exact.weight
        if self.vocabulary is not None:
            (self.ids,) = to_device(exact.device, self.vocabulary.ids)
            rows = nn.Parameter(exact.weight[self.ids], requires_grad=False)
        elif isinstance(rows, PackedTable):
            return  # the exact head is as fast
        copied = LMHead(rows, exact.tensor_name, exact.divisor, exact.softcap)
        self.quant = head_quant(
            self._wanted_quant, copied.vocab_size, exact.hidden_size, rows.dtype, self._most_bytes
        )
        if self.quant != "none":
            self._copy = quantize_linear(copied.linear(), self.quant)
        elif self.vocabulary is not None:
            self._copy = copied

    @property
    def columns(self) -> int:
        return self._vocab_size if self.vocabulary is None else self.vocabulary.size

    @property
    def copied_bytes(self) -> int:
        """The bytes of the copy."""
        if isinstance(self._copy, nn.Module):
            return module_bytes(self._copy)
        return 0 if self._copy is None else self._copy.weight_bytes

    @property
    def session_bytes(self) -> int:
        """The most bytes of the exact head's rows that a session keeps beside the copy."""
        if self.vocabulary is None:
            return 0
        return MOST_SEEN * self.exact.hidden_size * self.exact.weight.dtype.itemsize

    @property
    def fingerprint(self) -> str:
        """What the logits depend on beside the exact head; empty for the exact head itself."""
        form = "" if self.vocabulary is None else f"+vocabulary {self.vocabulary.fingerprint}"
        return form if self.quant == "none" else f"{form}+head {self.quant}"

    def logits(self, states: torch.Tensor) -> torch.Tensor:
        """Return logits float32 [n, columns] of states [n, hidden]."""
        copy = self._copy
        if copy is None or isinstance(copy, LMHead):
            return (copy or self.exact).logits(states)[:, : self.columns]
        # In float32, which the layer of the kernels would round.
        logits = copy.product(states) if isinstance(copy, KernelLinear) else copy(states).float()
        return self.exact.scaled(logits)[:, : self.columns]
