"""`--check`: holds what came out against the plain model in one process."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flowedge.core.sampling import SamplingParams

if TYPE_CHECKING:
    from flowedge.models.check.judging import Difference, Judgement, Tolerance
    from flowedge.models.check.reference import ReferenceModel

_MEASURED_TOKENS = 256


@dataclass(frozen=True)
class Verdict:
    """What checking one output, or several, found.

    Attributes:
        tolerance: in logits; a difference within it is a tie.
        measured: the largest difference between 1-row and 16-row forwards, over `measured_tokens` tokens.
        complaint: what is wrong; None when the output is that of the plain model.
    """

    tokens: int
    ties: int
    tolerance: float
    measured: float
    measured_tokens: int
    complaint: str | None

    @property
    def passed(self) -> bool:
        return self.complaint is None

    def line(self) -> str:
        """One line for a person."""
        basis = (
            f"tolerance {self.tolerance:.2g} in logits: 1-row against 16-row forwards differ by up to "
            f"{self.measured:.2g} over {self.measured_tokens} tokens"
        )
        if self.complaint is not None:
            return f"check: the output DIFFERS from the plain model's: {self.complaint} ({basis})"
        ties = f" up to {self.ties} tie{'s' * (self.ties != 1)}" if self.ties else ""
        return f"check: the output is identical to the plain model's{ties}, {self.tokens} tokens ({basis})"


class Checker:
    """The whole model in this process, as transformers runs it, one token at a time."""

    def __init__(self, model: str, quant: str) -> None:
        """Loads it; CapacityError gives the sums when it does not fit."""
        from flowedge.models.libraries import import_libraries  # noqa: PLC0415

        import_libraries()
        from transformers.utils import logging as transformers_logging  # noqa: PLC0415

        from flowedge.models.check.reference import ReferenceModel  # noqa: PLC0415
        from flowedge.models.checkpoint.checkpoint import Checkpoint  # noqa: PLC0415
        from flowedge.models.checkpoint.tokenizer import eos_token_ids  # noqa: PLC0415
        from flowedge.models.quant.quant_cache import QuantCache  # noqa: PLC0415

        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        logging.getLogger("transformers").setLevel(logging.ERROR)
        checkpoint = Checkpoint.open(model)
        self.required_bytes = ReferenceModel.required_bytes(checkpoint)
        self._eos = eos_token_ids(checkpoint)
        self._reference: ReferenceModel = ReferenceModel.load(
            checkpoint, quant, quant_cache=QuantCache.configured()
        )
        self._tolerance: Tolerance | None = None

    def judge(
        self,
        prompt_ids: Sequence[int],
        token_ids: Sequence[int],
        sampling: SamplingParams,
        finish_reason: str,
        max_new_tokens: int,
    ) -> Verdict:
        """Compares an output token for token, and how it ended."""
        if self._tolerance is None:
            self._tolerance = self._measure([*prompt_ids, *token_ids])
        judgement = self._reference.judge(prompt_ids, token_ids, sampling, self._tolerance.value)
        complaint = self._difference(judgement, len(prompt_ids)) or self._wrong_end(
            token_ids, finish_reason, max_new_tokens
        )
        return Verdict(
            tokens=judgement.checked,
            ties=len(judgement.ties),
            tolerance=judgement.tolerance,
            measured=self._tolerance.max_logit_difference,
            measured_tokens=self._tolerance.tokens,
            complaint=complaint,
        )

    def _measure(self, text: Sequence[int]) -> Tolerance:
        """Measures once, on the first text that is checked, repeated when it is short."""
        repeated = list(text) * (1 + _MEASURED_TOKENS // len(text))
        return self._reference.measure_tolerance(repeated[:_MEASURED_TOKENS])

    def _difference(self, judgement: Judgement, prompt_tokens: int) -> str | None:
        difference: Difference | None = judgement.failure
        if difference is None:
            return None
        return (
            f"output token {difference.position - prompt_tokens + 1} is {difference.ours}, "
            f"the plain model draws {difference.reference}, which is ahead by {difference.gap:.3g}"
        )

    def _wrong_end(self, token_ids: Sequence[int], finish_reason: str, max_new_tokens: int) -> str | None:
        if any(token in self._eos for token in token_ids[:-1]):
            return "it goes on after a token that ends it"
        ended = bool(token_ids) and token_ids[-1] in self._eos
        if finish_reason == "eos" and not ended:
            return "it ended without a token that ends it"
        if finish_reason == "length" and len(token_ids) != max_new_tokens:
            return f"it ended for its length after {len(token_ids)} of {max_new_tokens} tokens"
        return None


def sum_up(verdicts: Sequence[Verdict]) -> Verdict:
    """One verdict over all outputs; at least one is needed."""
    failed = [number for number, verdict in enumerate(verdicts, 1) if not verdict.passed]
    complaint = None
    if failed:
        first = verdicts[failed[0] - 1]
        complaint = f"{len(failed)} of {len(verdicts)} outputs, first number {failed[0]}: {first.complaint}"
    return Verdict(
        tokens=sum(verdict.tokens for verdict in verdicts),
        ties=sum(verdict.ties for verdict in verdicts),
        tolerance=max(verdict.tolerance for verdict in verdicts),
        measured=verdicts[-1].measured,
        measured_tokens=verdicts[-1].measured_tokens,
        complaint=complaint,
    )
