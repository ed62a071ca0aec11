"""What transformers computes from the files of a model: scores of texts, and the likeliest continuation."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


@dataclass(frozen=True)
class Score:
    """How likely a text is after a context.

    Attributes:
        logprob: the sum over the tokens of the text; greedy: whether each of them is the likeliest.
    """

    logprob: float
    greedy: bool


class Reference:
    """A model as transformers runs it, in float32."""

    def __init__(self, path: Path) -> None:
        self._tokenizer = AutoTokenizer.from_pretrained(path)
        self._model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()

    def score(self, context: str, text: str) -> Score:
        """Return how likely a text is after a context; both are encoded as one."""
        known = len(self._encoded(context))
        tokens = self._encoded(context + text)
        with torch.inference_mode():
            logprobs = self._model(torch.tensor([tokens])).logits[0].log_softmax(-1)
        rows = logprobs[known - 1 : len(tokens) - 1]
        chosen = torch.tensor(tokens[known:])
        total = rows.gather(1, chosen[:, None]).sum()
        return Score(float(total), bool((rows.argmax(-1) == chosen).all()))

    def text_after(self, context: str, *, tokens: int, until: str) -> str:
        """Return the likeliest continuation of so many tokens, up to the text `until`."""
        ids = torch.tensor([self._encoded(context)])
        with torch.inference_mode():
            found = self._model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False
            )
        text: str = self._tokenizer.decode(found[0, ids.shape[1] :], skip_special_tokens=True)
        return text.partition(until)[0]

    def _encoded(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids
