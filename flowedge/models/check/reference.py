"""The same model as transformers runs it, alone, one token at a time: what our output is checked against."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.utils.logging import disable_progress_bar

from flowedge.core.errors import BadRequestError
from flowedge.core.sampling import SamplingParams, gumbel_noise
from flowedge.models.check.judging import Difference, Judgement, Tolerance, gap_behind
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.families import LM_HEAD
from flowedge.models.layers.block import LayerBlock
from flowedge.models.layers.experts import split_experts
from flowedge.models.layers.loading import checkpoint_quant
from flowedge.models.quant.bitsandbytes import settle
from flowedge.models.quant.cached_encoding import cached_encoding
from flowedge.models.quant.quant_cache import QuantCache
from flowedge.models.quant.quantize import check_quant, quantize_block
from flowedge.system.memory import gib, read_available_cuda_memory, read_available_memory, require_memory


@dataclass(frozen=True)
class ReferenceOutput:
    """What the reference generated."""

    token_ids: list[int]  # without the prompt, the end token included
    margins: list[float]  # of each token: its perturbed logit (or log-probability) minus the runner-up's


class ReferenceModel:
    """transformers' own causal LM, with its own attention, cache and generate."""

    def __init__(self, model: Any) -> None:
        self.model = model

    @classmethod
    def load(
        cls,
        source: str | Checkpoint,
        quant: str = "none",
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        quant_cache: QuantCache | None = None,
    ) -> ReferenceModel:
        """Loads the whole model; the layers' linear weights are quantised as a block's are.

        quant_cache: where quantised weights are taken from, by what transformers has read, and put.
        CapacityError when it would not fit the memory available now, CheckpointError as for Checkpoint.
        """
        check_quant(quant)
        checkpoint = source if isinstance(source, Checkpoint) else Checkpoint.open(source)
        quant = checkpoint_quant(checkpoint, quant)
        device = torch.device(device)
        _require_memory(_weight_sums(checkpoint, dtype), device)
        disable_progress_bar()  # type: ignore[no-untyped-call]
        causal_lm = checkpoint.family.causal_lm
        model = causal_lm.from_pretrained(
            checkpoint.directory,
            config=checkpoint.config,
            key_mapping=dict(checkpoint.family.renames) if checkpoint.family.multimodal else None,
            dtype=dtype,
            # transformers' own sdpa does not do soft-capping.
            attn_implementation="sdpa" if causal_lm._supports_sdpa else "eager",
            local_files_only=True,
            # A quantised checkpoint is put where it belongs while it is read.
            device_map=None if checkpoint.quant == "none" else {"": device},
        ).eval()
        if checkpoint.quant != "none":
            settle(model.model.layers, dtype)
        else:
            model.to(device)
            if quant != "none":
                encode = None if quant_cache is None else cached_encoding(checkpoint, quant, quant_cache)
                quantize_block(split_experts(model.model.layers), quant, encode=encode)
        # The checkpoint's own defaults (a repetition penalty, say) are no part of the rule that tokens
        # are drawn by.
        model.generation_config = _generation_config()
        return cls(model)

    @staticmethod
    def required_bytes(checkpoint: Checkpoint, dtype: torch.dtype = torch.float32) -> int:
        """The bytes that loading takes at its peak: all weights in `dtype`, before any is quantised."""
        return sum(_weight_sums(checkpoint, dtype).values())

    def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        max_new_tokens: int,
        eos_ids: Collection[int] = (),
    ) -> ReferenceOutput:
        """Draws tokens until an end token or `max_new_tokens`; BadRequestError for an empty prompt."""
        margins = _Margins()
        processors = LogitsProcessorList([_Raw(), *_drawing(sampling), margins])
        tokens = self._generate(prompt_ids, max_new_tokens, processors, eos_ids=eos_ids)
        return ReferenceOutput(tokens, margins.values)

    def judge(
        self, prompt_ids: Sequence[int], ours: Sequence[int], sampling: SamplingParams, tolerance: float
    ) -> Judgement:
        """Compares our tokens with the reference's, in order, and judges every difference.

        tolerance: the largest difference of two logits that rounding explains (`Tolerance.value`). At a
        difference the reference's perturbed logits of the two tokens are compared: within the tolerance it
        is a tie, and generation goes on from our token; beyond it the check fails there. The prompt is the
        same; whether we should have stopped later than we did is not judged.
        """
        ties: list[Difference] = []
        done = 0
        while done < len(ours):
            found = self._first_difference([*prompt_ids, *ours[:done]], ours[done:], sampling, tolerance)
            if found is None:
                break
            done = found.position - len(prompt_ids) + 1
            if not found.gap <= tolerance:
                return Judgement(done, tolerance, tuple(ties), found)
            ties.append(found)
        return Judgement(len(ours), tolerance, tuple(ties), None)

    @torch.inference_mode()
    def measure_tolerance(self, token_ids: Sequence[int], rows: int = 16) -> Tolerance:
        """How much a token's logits depend on the number of rows it is computed with, over this text.

        token_ids: at least two tokens of text like that to be checked; a few hundred are enough.
        """
        if len(token_ids) < 2:
            raise BadRequestError("measuring the tolerance needs a text of two tokens or more")
        single, several = DynamicCache(config=self.model.config), DynamicCache(config=self.model.config)
        largest = 0.0
        for start in range(0, len(token_ids), rows):
            chunk = list(token_ids[start : start + rows])
            together = self._logits(chunk, several)
            for row, token in enumerate(chunk):
                alone = self._logits([token], single)
                largest = max(largest, float((alone[0] - together[row]).abs().max()))
        return Tolerance(largest, len(token_ids))

    def _logits(self, chunk: list[int], cache: DynamicCache) -> torch.Tensor:
        ids = torch.tensor([chunk], device=self.model.device)
        logits: torch.Tensor = self.model(input_ids=ids, past_key_values=cache, use_cache=True).logits[0]
        return logits.float()

    def _first_difference(
        self, prefix: Sequence[int], ours: Sequence[int], sampling: SamplingParams, tolerance: float
    ) -> Difference | None:
        raw = _Raw()
        comparison = _Comparison(raw, len(prefix), ours, sampling, tolerance)
        processors = LogitsProcessorList([raw, *_drawing(sampling), comparison])
        self._generate(prefix, len(ours), processors, stop=comparison)
        return comparison.found

    @torch.inference_mode()
    def _generate(
        self,
        prompt_ids: Sequence[int],
        max_new_tokens: int,
        processors: LogitsProcessorList,
        *,
        eos_ids: Collection[int] = (),
        stop: _Comparison | None = None,
    ) -> list[int]:
        if not len(prompt_ids):
            raise BadRequestError("the prompt has no tokens")
        ids = torch.tensor([list(prompt_ids)], device=self.model.device)
        settings = _generation_config(
            do_sample=False,
            num_beams=1,
            max_new_tokens=max_new_tokens,
            eos_token_id=sorted(eos_ids) or None,
            pad_token_id=0,
            use_cache=True,
        )
        output = self.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            generation_config=settings,
            logits_processor=processors,
            stopping_criteria=StoppingCriteriaList([_StopAtDifference(stop)] if stop else []),
        )
        return [int(token) for token in output[0, len(prompt_ids) :]]


def _generation_config(**settings: Any) -> Any:
    return GenerationConfig(**settings)  # type: ignore[no-untyped-call]


def _drawing(sampling: SamplingParams) -> list[LogitsProcessor]:
    """The processors whose argmax is the draw: none at temperature 0."""
    if sampling.temperature == 0:
        return []
    steps: list[LogitsProcessor] = [TemperatureLogitsWarper(float(sampling.temperature))]
    if sampling.top_k:
        steps.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        steps.append(TopPLogitsWarper(sampling.top_p))
    return [*steps, PositionKeyedNoise(sampling.seed)]


class PositionKeyedNoise(LogitsProcessor):
    """Turns scores into log-probabilities and adds the noise of (seed, the position that is being drawn)."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """scores: [1, vocab], already warped. Returns float64 [1, vocab]."""
        noise = gumbel_noise(self._seed, input_ids.shape[1], scores.shape[-1])
        return torch.log_softmax(scores.double(), dim=-1) + torch.from_numpy(noise).to(scores.device)


class _Raw(LogitsProcessor):
    """Goes first: the sampler works in float64 throughout, and judging needs the unwarped logits."""

    logits: torch.Tensor

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        self.logits = scores.double()
        return self.logits


class _Margins(LogitsProcessor):
    """Goes last: notes how clear each draw was."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        best = torch.topk(scores[0], min(2, scores.shape[-1])).values
        self.values.append(float(best[0] - best[-1]))
        return scores


class _Comparison(LogitsProcessor):
    """Goes last: compares each draw with our token, and keeps the first that differs."""

    def __init__(
        self, raw: _Raw, prefix: int, ours: Sequence[int], sampling: SamplingParams, tolerance: float
    ) -> None:
        self.found: Difference | None = None
        self._raw = raw
        self._prefix = prefix
        self._ours = ours
        self._sampling = sampling
        self._tolerance = tolerance

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        position = input_ids.shape[1]
        ours, drawn = int(self._ours[position - self._prefix]), int(scores[0].argmax())
        if ours != drawn and self.found is None:
            logits = self._raw.logits[0].cpu().numpy().astype(np.float64)
            gap = gap_behind(
                logits,
                ours,
                drawn,
                position=position,
                sampling=self._sampling,
                tolerance=self._tolerance,
            )
            self.found = Difference(position, ours, drawn, gap)
        return scores


class _StopAtDifference(StoppingCriteria):
    def __init__(self, comparison: _Comparison) -> None:
        self._comparison = comparison

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:  # noqa: ARG002
        stop = self._comparison.found is not None
        return torch.full((input_ids.shape[0],), stop, dtype=torch.bool, device=input_ids.device)


def _weight_sums(checkpoint: Checkpoint, dtype: torch.dtype) -> dict[str, int]:
    """Bytes of each part of the model."""
    config = checkpoint.config
    table = int(config.vocab_size * config.hidden_size * dtype.itemsize)
    whole = LayerBlock.required_bytes(checkpoint, 0, config.num_hidden_layers, dtype=dtype)
    return {
        "layers": whole - table,
        "embedding": table,
        "LM head": table if checkpoint.head_name == LM_HEAD else 0,
    }


def _require_memory(parts: dict[str, int], device: torch.device) -> None:
    available = (read_available_cuda_memory() if device.type == "cuda" else read_available_memory()).available
    require_memory(
        f"the reference model does not fit on {device}",
        parts,
        available,
        f"{gib(available)} are available",
        "check where there is more memory, or a smaller model",
    )
