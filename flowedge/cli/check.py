"""`--check`: compares outputs with those of the plain model, loaded into this process. Imports torch."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from transformers.utils import logging as transformers_logging

from flowedge.cli.prompt_answer import Verdict
from flowedge.core.errors import NonFiniteError
from flowedge.core.sampling import SamplingParams
from flowedge.models.check.judging import Judgement, Tolerance
from flowedge.models.check.reference import ReferenceModel
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.model_source import tokenizer_directory
from flowedge.models.checkpoint.tokenizer_loading import eos_token_ids, load_tokenizer
from flowedge.models.host.payloads import torch_dtype
from flowedge.models.quant.quant_cache import QuantCache

_MEASURED_TOKENS = 256


class Checker:
    """The whole model in this process, run by transformers one token at a time."""

    def __init__(self, model: str, quant: str, dtype_name: str, tokenizer: str = "") -> None:
        """Load the model in the quantisation and the dtype of the pipeline.

        tokenizer: names a tokenizer that replaces the model's; "" for the model's.

        Raises:
            CapacityError: when it does not fit, with the sums.
        """
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        logging.getLogger("transformers").setLevel(logging.ERROR)
        checkpoint = Checkpoint.open(model)
        dtype = torch_dtype(dtype_name)
        self.required_bytes = ReferenceModel.required_bytes(checkpoint, dtype)
        if tokenizer:
            checkpoint.tokenizer = tokenizer_directory(tokenizer)
        self._eos = eos_token_ids(checkpoint, load_tokenizer(checkpoint))
        self._reference = ReferenceModel.load(checkpoint, quant, dtype, quant_cache=QuantCache.configured())
        self._tolerance: Tolerance | None = None

    @property
    def progress(self) -> str:
        """How far it is, for people."""
        return f"{self._reference.forwards} forwards of it"

    def judge(
        self,
        prompt_ids: Sequence[int],
        token_ids: Sequence[int],
        sampling: SamplingParams,
        finish_reason: str,
        max_new_tokens: int,
    ) -> Verdict:
        """Compare an output token for token, and how it ended.

        The check fails as well if the plain model's logits are not finite, or there is nothing to compare.
        """
        if not token_ids:
            return Verdict(0, 0, 0.0, 0.0, 0, "it has no token, so there is nothing to compare")
        try:
            if self._tolerance is None:
                self._tolerance = self._measure([*prompt_ids, *token_ids])
            judgement = self._reference.judge(prompt_ids, token_ids, sampling, self._tolerance.value)
        except NonFiniteError as error:
            return Verdict(0, 0, 0.0, 0.0, 0, f"there is nothing to compare with: {error}")
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
        """Measure the tolerance on the first text that is checked, repeated when it is short."""
        repeated = list(text) * (1 + _MEASURED_TOKENS // len(text))
        return self._reference.measure_tolerance(repeated[:_MEASURED_TOKENS])

    def _difference(self, judgement: Judgement, prompt_tokens: int) -> str | None:
        difference = judgement.failure
        if difference is None:
            return None
        return (
            f"output token {difference.position - prompt_tokens + 1} is {difference.ours}, "
            f"the plain model draws {difference.reference}, which is ahead by {difference.gap:.3g}"
        )

    def _wrong_end(self, token_ids: Sequence[int], finish_reason: str, max_new_tokens: int) -> str | None:
        if any(token in self._eos for token in token_ids[:-1]):
            return "it goes on after an end token"
        ended = bool(token_ids) and token_ids[-1] in self._eos
        if finish_reason == "eos" and not ended:
            return "its finish reason is eos, but its last token is not an end token"
        if finish_reason == "length" and len(token_ids) != max_new_tokens:
            return f"its finish reason is length, but it has {len(token_ids)} of {max_new_tokens} tokens"
        return None
