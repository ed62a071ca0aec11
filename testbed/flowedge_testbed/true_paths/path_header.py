"""The header of a file of true paths: the target, the settings, and the paths in their order."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field

from flowedge.core.sampling import SamplingParams
from flowedge.device.disk_cache.digest import HEX_PATTERN
from flowedge.planning.profile.model import StoredDtype, YamlDocument

METADATA = "flowedge_true_paths"

Positive = Annotated[int, Field(gt=0)]
Digest = Annotated[str, Field(pattern=f"^{HEX_PATTERN}$")]


class TargetFacts(YamlDocument):
    """What is known of a target without its weights.

    Attributes:
        title: the name that it was loaded by, without its folders.
        fingerprint: Checkpoint.fingerprint.
        tokenizer: vocabulary_digest of its tokenizer.
        parameters: their number; None where they are stored quantised.
        dtype, device: what it computes in, and where.
    """

    title: str
    fingerprint: str
    tokenizer: Digest
    parameters: Positive | None
    vocab_size: Positive
    hidden_size: Positive
    max_positions: Positive
    eos: list[Annotated[int, Field(ge=0)]]
    dtype: StoredDtype
    device: str


class KeptPath(YamlDocument):
    """One path of a file.

    Attributes:
        prompt: turns_digest of the user's messages.
        prompt_tokens: number of the path's tokens that belong to the prompt; tokens: of all.
        temperature, top_k, top_p, seed: see SamplingParams.
    """

    prompt: Digest
    prompt_tokens: Positive
    tokens: Positive
    temperature: float
    top_k: int
    top_p: float
    seed: int

    @property
    def sampling(self) -> SamplingParams:
        return SamplingParams(self.temperature, self.top_k, self.top_p, self.seed)


class PathFileHeader(YamlDocument):
    """The settings of a file.

    Attributes:
        taps: layers whose inputs are in the features beside the final hidden state.
        max_new_tokens: of each path, which ends earlier with an end token alone.
        versions: of the packages that computed the paths.
    """

    format: Literal[1] = 1
    target: TargetFacts
    taps: list[int]
    max_new_tokens: Positive
    versions: dict[str, str]
    paths: list[KeptPath] = Field(min_length=1)


def turns_digest(turns: Sequence[str]) -> str:
    """Return a digest of the user's messages of a conversation."""
    return hashlib.sha256("\0".join(turns).encode("utf-8")).hexdigest()


def vocabulary_digest(tokenizer: Any) -> str:
    """Return a digest of a tokenizer's tokens and their ids."""
    pairs = sorted((id_, token) for token, id_ in tokenizer.get_vocab().items())
    return hashlib.sha256(json.dumps(pairs).encode()).hexdigest()


def drawn_as(sampling: SamplingParams) -> SamplingParams:
    """Return the sampling without what does not matter: greedy draws depend on nothing else."""
    return SamplingParams() if sampling.greedy else sampling
