"""The model that our output is checked against: transformers' own, one token at a time."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.utils.logging import disable_progress_bar

from flowedge.core.errors import BadRequestError, NonFiniteError
from flowedge.core.gumbel_noise import gumbel_noise
from flowedge.core.sampling import SamplingParams
from flowedge.device.memory import gib, read_available_cuda_memory, read_available_memory, require_memory
from flowedge.models.architecture import LM_HEAD
from flowedge.models.block import LayerBlock
from flowedge.models.check.gguf_reference import load_gguf_model
from flowedge.models.check.judging import Difference, Judgement, Tolerance, gap_behind
from flowedge.models.check.plain_weights import load_plain_model, quantise_as_stored
from flowedge.models.check.split_experts import layers_as_stored, stored_name
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.loading import checkpoint_quant
from flowedge.models.quant.backend import Tensors, WeightRows
from flowedge.models.quant.bitsandbytes import match_built_layers
from flowedge.models.quant.block_repacking import repack_blocks
from flowedge.models.quant.quant_cache import CacheKey, QuantCache, content_digest
from flowedge.models.quant.quantize import Encode, backend_of, check_quant, quantize_block
from flowedge.models.token_table import PackedTable, TokenTable, is_packed, load_table


@dataclass(frozen=True)
class ReferenceOutput:
    """An answer of the reference."""

    token_ids: list[int]  # without the prompt, the end token included
    margins: list[float]  # the perturbed logit or log-probability of each token minus the runner-up's


class ReferenceModel:
    """transformers' causal LM, with transformers' attention, cache and generate.

    Attributes:
        forwards: of the model so far, by which a caller of another thread sees how far a check is.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.forwards = 0

    @classmethod
    def load(
        cls,
        source: str | Checkpoint,
        quant: str = "none",
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        quant_cache: QuantCache | None = None,
    ) -> ReferenceModel:
        """Load the whole model, with the layers' linear weights quantised like those of a LayerBlock.

        `quant_cache` is the cache that quantised weights are taken from and put into.

        Raises:
            CapacityError: when the model does not fit the memory that is available now.
            CheckpointError: when the source cannot be found or is not supported.
        """
        check_quant(quant)
        checkpoint = source if isinstance(source, Checkpoint) else Checkpoint.open(source)
        quant = checkpoint_quant(checkpoint, quant)
        device = torch.device(device)
        _require_memory(_weight_sums(checkpoint, dtype), device)
        disable_progress_bar()  # type: ignore[no-untyped-call]
        model = _load_model(checkpoint, dtype, device)
        _lift_least_steps(model)
        if checkpoint.integer_format is not None:
            model.to(device)
            quantise_as_stored(checkpoint, model)
        elif checkpoint.quant != "none":
            match_built_layers(model.model.layers, dtype)
        else:
            model.to(device)
            if quant != "none":
                encode = _encoding(checkpoint, quant, quant_cache)
                quantize_block(layers_as_stored(checkpoint, model), quant, encode=encode)
            elif checkpoint.stores_blocks:
                quantise_as_stored(checkpoint, model)
            _quantise_tables(checkpoint, model, dtype, device, quant, quant_cache)
        # The checkpoint's defaults, such as a repetition penalty, are no part of the sampling rule.
        model.generation_config = _generation_config()
        return cls(model)

    @staticmethod
    def required_bytes(checkpoint: Checkpoint, dtype: torch.dtype = torch.float32) -> int:
        """The peak of memory while loading: the bytes of all weights in `dtype`, before quantisation."""
        return sum(_weight_sums(checkpoint, dtype).values())

    def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        max_new_tokens: int,
        eos_ids: Collection[int] = (),
        rules: Sequence[LogitsProcessor] = (),
    ) -> ReferenceOutput:
        """Draw tokens until an end token or `max_new_tokens`.

        rules: applied to the logits, in float64, before temperature, filters and noise.

        Raises:
            NonFiniteError: when the model's logits are not finite.
        """
        margins = _Margins()
        processors = LogitsProcessorList([_Raw(), *rules, *_drawing(sampling), margins])
        tokens = self._generate(prompt_ids, max_new_tokens, processors, eos_ids=eos_ids)
        return ReferenceOutput(tokens, margins.values)

    def judge(
        self, prompt_ids: Sequence[int], ours: Sequence[int], sampling: SamplingParams, tolerance: float
    ) -> Judgement:
        """Compare our tokens with the reference's, in order, and judge every difference.

        A difference whose gap (see `gap_behind`) is within `tolerance` is a tie, and the reference goes on
        from our token. A larger gap is a failure and ends the check. An answer that ends too early passes.

        Raises:
            NonFiniteError: when the model's logits are not finite, so that they compare with nothing.
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
    def measure_tolerance(self, token_ids: Sequence[int], rows: Sequence[int] = (16, 2, 5, 3)) -> Tolerance:
        """Measure how much the logits of a text depend on the number of rows in a forward.

        Args:
            token_ids: a text similar to the text to check; a few hundred tokens are enough.
            rows: the numbers of rows that are compared with one, in turns: libraries multiply a few rows
                by other operations than many.

        Raises:
            BadRequestError: when the text is shorter than two tokens.
            NonFiniteError: when the model's logits are not finite.
        """
        if len(token_ids) < 2:
            raise BadRequestError(
                f"measuring the tolerance needs a text of two tokens or more, not of {len(token_ids)}"
            )
        single, several = DynamicCache(config=self.model.config), DynamicCache(config=self.model.config)
        largest = 0.0
        left, widths = iter(token_ids), cycle(rows)
        while chunk := list(islice(left, next(widths))):
            together = self._logits(chunk, several)
            for row, token in enumerate(chunk):
                alone = self._logits([token], single)
                largest = max(largest, float((alone[0] - together[row]).abs().max()))
        return Tolerance(largest, len(token_ids))

    def _logits(self, chunk: list[int], cache: DynamicCache) -> torch.Tensor:
        self.forwards += 1
        ids = torch.tensor([chunk], device=self.model.device)
        logits: torch.Tensor = self.model(input_ids=ids, past_key_values=cache, use_cache=True).logits[0]
        _check_finite(logits)
        return logits.float()

    def _count(self, _ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Count a forward of `generate`, as a processor of its logits."""
        self.forwards += 1
        return scores

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
        processors = LogitsProcessorList([self._count, *processors])
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
            stopping_criteria=StoppingCriteriaList([stop.stop] if stop else []),
        )
        return [int(token) for token in output[0, len(prompt_ids) :]]


def _load_model(checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device) -> Any:
    """The whole model; a checkpoint that is stored quantised is on `device`, others are on the CPU."""
    causal_lm = checkpoint.family.causal_lm
    # transformers' sdpa does not apply soft-capping, and not every version says so by _supports_sdpa.
    capped = getattr(checkpoint.config, "attn_logit_softcapping", None) is not None
    attention = "sdpa" if causal_lm._supports_sdpa and not capped else "eager"
    if checkpoint.gguf:
        return load_gguf_model(checkpoint, dtype, attention).eval()
    if checkpoint.integer_format is not None:
        return load_plain_model(checkpoint, dtype, attention).eval()
    return causal_lm.from_pretrained(
        checkpoint.directory,
        config=checkpoint.transformers_config,
        key_mapping=dict(checkpoint.family.renames) if checkpoint.family.multimodal else None,
        dtype=dtype,
        attn_implementation=attention,
        local_files_only=True,
        # transformers moves a quantised checkpoint to its device while reading.
        device_map=None if checkpoint.quant == "none" else {"": device},
    ).eval()


def _lift_least_steps(model: Any) -> None:
    """Take the least length of steps off Mamba layers of Nemotron-H.

    transformers limits the steps of prompts by the config's `time_step_min`, which is about initial weights,
    and those of single tokens not at all. The model's own code has no limit.
    """
    for module in model.modules():
        if hasattr(module, "time_step_limit"):
            module.time_step_limit = (0.0, math.inf)


class _Predicting(nn.Module):
    """The LM head over a packed table, in float32, which the layer of that table would round."""

    def __init__(self, table: PackedTable) -> None:
        super().__init__()
        self.table = table

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits [..., vocab] of final hidden states [..., hidden]."""
        logits = self.table.linear.product(hidden.reshape(-1, hidden.shape[-1]))
        return logits.view(*hidden.shape[:-1], -1)


def _quantise_tables(
    checkpoint: Checkpoint,
    model: Any,
    dtype: torch.dtype,
    device: torch.device,
    quant: str,
    cache: QuantCache | None,
) -> None:
    """Embed and predict tokens with the tables that draft node and stages have, where these are packed."""
    tables: dict[str, TokenTable] = {
        name: load_table(checkpoint, name, dtype, device, quant, cache)
        for name in {checkpoint.embedding_name, checkpoint.head_name}
        if is_packed(checkpoint, name, device, quant)
    }
    if (embedded := tables.get(checkpoint.embedding_name)) is not None:
        model.get_input_embeddings().weight = nn.Parameter(embedded[:], requires_grad=False)
    if isinstance(predicting := tables.get(checkpoint.head_name), PackedTable):
        model.lm_head = _Predicting(predicting)


def _encoding(checkpoint: Checkpoint, quant: str, cache: QuantCache | None) -> Encode:
    """The encoding of weights, given by their paths in the model's list of layers.

    Weights that the layers of a pipeline only repack are repacked here as well. Other weights are taken from
    the cache if there is one; its keys are made from the weights that transformers has read into memory,
    independently of our reader.
    """
    backend = backend_of(quant)

    def encode(path: str, weight: torch.Tensor) -> Tensors:
        name = stored_name(checkpoint, path)
        rows = WeightRows.of(weight, f"{checkpoint.place}: {name}")
        if not checkpoint.has(name):  # a layer has it in parts, whose rows are encoded alike
            return backend.encode(rows)
        tensors = repack_blocks(checkpoint, name, quant)
        if tensors is not None or cache is None:
            return backend.encode(rows) if tensors is None else tensors
        stored = checkpoint.dtype(name)
        if torch.promote_types(stored, weight.dtype) != weight.dtype:
            return backend.encode(rows)  # the weight was rounded, so the stored content is not known
        chunks = (chunk.to(stored) for _, chunk in rows.chunks())
        key = CacheKey(content_digest(stored, weight.shape, chunks), "", quant, backend.format)
        return cache.encoded(key, lambda: backend.encode(rows))

    return encode


def _generation_config(**settings: Any) -> Any:
    return GenerationConfig(**settings)  # type: ignore[no-untyped-call]


def _drawing(sampling: SamplingParams) -> list[LogitsProcessor]:
    """The processors after which the argmax is the drawn token; none at temperature 0."""
    if sampling.temperature == 0:
        return []
    steps: list[LogitsProcessor] = [TemperatureLogitsWarper(float(sampling.temperature))]
    if sampling.top_k:
        steps.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        steps.append(TopPLogitsWarper(sampling.top_p))
    return [*steps, PositionKeyedNoise(sampling.seed)]


class PositionKeyedNoise(LogitsProcessor):
    """Turns scores into log-probabilities and adds the noise of the seed and the drawn position."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return float64 [1, vocab] for warped scores [1, vocab]."""
        noise = gumbel_noise(self._seed, input_ids.shape[1], scores.shape[-1])
        return torch.log_softmax(scores.double(), dim=-1) + torch.from_numpy(noise).to(scores.device)


def _check_finite(logits: torch.Tensor) -> None:
    """Raise NonFiniteError if a row of logits [n, vocab] has no finite maximum: NaN counts as the largest."""
    if not logits.amax(dim=-1).isfinite().all():
        raise NonFiniteError.of("the plain model's logits", str(logits.dtype).removeprefix("torch."))


class _Raw(LogitsProcessor):
    """The first processor: it converts logits to float64, and notes them for the judgement."""

    logits: torch.Tensor

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        _check_finite(scores)
        self.logits = scores.double()
        return self.logits


class _Margins(LogitsProcessor):
    """The last processor: it notes the distance of each drawn token from the runner-up."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        best = torch.topk(scores[0], min(2, scores.shape[-1])).values
        self.values.append(float(best[0] - best[-1]))
        return scores


@dataclass(eq=False)
class _Comparison(LogitsProcessor):
    """The last processor: it compares each drawn token with ours, and notes the first difference."""

    raw: _Raw
    prefix: int  # the tokens before ours
    ours: Sequence[int]
    sampling: SamplingParams
    tolerance: float
    found: Difference | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        position = input_ids.shape[1]
        ours, drawn = int(self.ours[position - self.prefix]), int(scores[0].argmax())
        if ours != drawn and self.found is None:
            logits = self.raw.logits[0].cpu().numpy().astype(np.float64)
            gap = gap_behind(
                logits, ours, drawn, position=position, sampling=self.sampling, tolerance=self.tolerance
            )
            self.found = Difference(position, ours, drawn, gap)
        return scores

    def stop(self, input_ids: torch.Tensor, _scores: Any, **_: Any) -> torch.Tensor:
        """The stopping criterion of `generate`: nothing after the first difference counts."""
        return torch.full((len(input_ids),), self.found is not None, device=input_ids.device)


def _weight_sums(checkpoint: Checkpoint, dtype: torch.dtype) -> dict[str, int]:
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
        "run the check on a machine with more memory, or check a smaller model",
    )
