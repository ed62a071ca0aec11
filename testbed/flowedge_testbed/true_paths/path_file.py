"""A file of true paths: what a target drew for some prompts, for replay without that target's layers.

A safetensors file. `tokens`, int32, holds the prompt and the drawn tokens of all paths, one path after the
other. `features` [rows, width] is there if drafters read hidden states: the rows of TruePath.features, in the
dtype that the target computed in. The header's metadata hold a PathFileHeader as JSON.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from pydantic import ValidationError
from safetensors.torch import save_file

from flowedge.core.arrays import IntArray
from flowedge.core.errors import BadRequestError, CheckpointError
from flowedge.core.sampling import SamplingParams
from flowedge.device.disk_cache.digest import hash_range
from flowedge.models.files.weight_file import StoredSlice, WeightFile
from flowedge.models.host.payloads import torch_dtype
from flowedge.planning.profile.profile_files import explain
from flowedge_testbed.true_paths.path_header import (
    METADATA,
    KeptPath,
    PathFileHeader,
    TargetFacts,
    drawn_as,
    turns_digest,
)
from flowedge_testbed.true_paths.true_path import TruePath


@dataclass(frozen=True, eq=False)
class PathFile:
    """A PathSource that reads a file.

    Attributes:
        digest: of the whole file.
    """

    file: Path
    digest: str
    header: PathFileHeader
    _tokens: IntArray  # [all tokens]
    _features: StoredSlice | None  # [all rows, width]
    _places: dict[tuple[tuple[int, ...], SamplingParams], tuple[int, int, int]]
    _prompts: dict[tuple[str, SamplingParams | None], tuple[int, ...]]  # by turns and sampling, and by turns

    @classmethod
    def read(cls, file: Path) -> PathFile:
        """Read a file and check everything but the features' values.

        Raises:
            BadRequestError: when it cannot be read, or is not a valid file of true paths.
        """
        try:
            stored = WeightFile(file)
            header, tokens = _checked(stored)
            digest = _digest(file)
        except (OSError, ValueError, CheckpointError, BadRequestError) as error:
            raise BadRequestError(f"{file}: no file of true paths: {error}") from error
        places: dict[tuple[tuple[int, ...], SamplingParams], tuple[int, int, int]] = {}
        prompts: dict[tuple[str, SamplingParams | None], tuple[int, ...]] = {}
        ends = [0, *accumulate(path.tokens for path in header.paths)]
        for number, path in enumerate(header.paths):
            first, end = ends[number], ends[number + 1]
            prompt = tuple(tokens[first : first + path.prompt_tokens].tolist())
            places[prompt, path.sampling] = first, end, number
            prompts[path.prompt, path.sampling] = prompts[path.prompt, None] = prompt
        return cls(file, digest, header, tokens, stored.get("features"), places, prompts)

    def encode(self, turns: Sequence[str], sampling: SamplingParams | None = None) -> tuple[int, ...]:
        """Return the prompt of a conversation, as the target's tokenizer gave it.

        Args:
            turns: the user's messages.
            sampling: by which the answers to all but the last were drawn; None for a single message.

        Raises:
            BadRequestError: when the file has no path of the prompt.
        """
        known = None if sampling is None else drawn_as(sampling)
        prompt = self._prompts.get((turns_digest(turns), known))
        if prompt is None:
            prompts = len({path.prompt for path in self.header.paths})
            raise BadRequestError(
                f"{self.file} holds the true paths of {prompts} prompts, and none of {turns[-1][:60]!r}; "
                "take fewer samples or turns, or other datasets, or write a file by --save-paths"
            )
        return prompt

    def path(
        self,
        prompt: Sequence[int],
        sampling: SamplingParams,
        max_new_tokens: int,
        eos: frozenset[int],  # noqa: ARG002 (the file's own)
    ) -> TruePath:
        """Return the path of a request, shortened to its number of new tokens; see PathSource.path."""
        place = self._places.get((tuple(prompt), drawn_as(sampling)))
        if place is None:
            known = sorted({path.temperature for path in self.header.paths})
            raise BadRequestError(
                f"{self.file} holds no true path of this prompt at temperature {sampling.temperature:g}, "
                f"top_k {sampling.top_k}, top_p {sampling.top_p:g} and seed {sampling.seed}; it has paths of "
                f"temperature {', '.join(f'{each:g}' for each in known)}"
            )
        longest = self.header.max_new_tokens
        if max_new_tokens > longest:
            raise BadRequestError(
                f"{self.file} holds {longest} new tokens of each prompt, and {max_new_tokens} are asked for"
            )
        first, end, number = place
        stop = min(end, first + len(prompt) + max_new_tokens)
        return TruePath(len(prompt), self._tokens[first:stop], self._rows(first - number, stop - first - 1))

    def key(
        self, prompt: Sequence[int], sampling: SamplingParams, max_new_tokens: int, eos: frozenset[int]
    ) -> str:
        """See PathSource.key."""
        content = [self.digest, list(prompt), asdict(sampling), max_new_tokens, sorted(eos)]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]

    def check_features(self, taps: Sequence[int], drafter: str) -> None:
        """Check that the features are those that a drafter reads, which taps these layers.

        Raises:
            BadRequestError: when they are not.
        """
        held = "no hidden states" if self._features is None else f"hidden states with taps {self.header.taps}"
        if self._features is None or list(taps) != self.header.taps:
            raise BadRequestError(
                f"{self.file} holds {held}, and drafter {drafter} reads hidden states with taps "
                f"{list(taps)}; write the file by --save-paths with this drafter"
            )

    def _rows(self, first: int, count: int) -> npt.NDArray[np.float32]:
        if self._features is None:
            return np.zeros((count, 0), dtype=np.float32)
        rows: npt.NDArray[np.float32] = self._features[first : first + count].float().numpy()
        if not np.isfinite(rows).all():
            raise BadRequestError(f"{self.file}: a hidden state is not finite; write the file again")
        return rows


def _checked(stored: WeightFile) -> tuple[PathFileHeader, IntArray]:
    """Return the header and the tokens of a file.

    Raises:
        ValueError: when something is missing, or does not fit together.
    """
    if METADATA not in stored.metadata:
        raise ValueError(f"its header has no {METADATA!r}; flowedge bench --save-paths writes such files")
    try:
        header = PathFileHeader.model_validate_json(stored.metadata[METADATA])
    except ValidationError as error:
        raise ValueError(f"its header: {explain(error)}") from error
    unknown = sorted(stored.keys() - {"tokens", "features"})
    if unknown:
        raise ValueError(f"it has a tensor {unknown[0][:80]!r}, which is none of true paths")
    target, total = header.target, sum(path.tokens for path in header.paths)
    _check_tensor(stored, "tokens", (total,), (torch.int32,))
    if "features" in stored:
        width = target.hidden_size * (1 + len(header.taps))
        shape = (total - len(header.paths), width)
        _check_tensor(stored, "features", shape, (torch_dtype(target.dtype),))
    tokens: IntArray = stored["tokens"][:].numpy().astype(np.int64)
    if tokens.min() < 0 or tokens.max() >= target.vocab_size:
        raise ValueError(f"it has tokens beyond the target's {target.vocab_size}")
    for path, end in zip(header.paths, accumulate(path.tokens for path in header.paths), strict=True):
        drawn = path.tokens - path.prompt_tokens
        ended = int(tokens[end - 1]) in target.eos
        if not 0 < drawn <= header.max_new_tokens or (drawn < header.max_new_tokens and not ended):
            raise ValueError(f"a path has {drawn} new tokens, not {header.max_new_tokens} or an end token")
        if path.sampling != drawn_as(path.sampling):
            raise ValueError("a path of temperature 0 has a seed, a top_k or a top_p")
    return header, tokens


def _check_tensor(
    stored: WeightFile, name: str, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...]
) -> None:
    found = stored.get(name)
    if found is None:
        raise ValueError(f"it has no tensor {name!r}")
    if found.shape != shape or found.dtype not in dtypes:
        raise ValueError(
            f"its tensor {name!r} is {found.dtype} {list(found.shape)}; the header asks for {dtypes[0]} "
            f"{list(shape)}"
        )


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hash_range(content.fileno(), 0, file.stat().st_size).hexdigest()


def write_path_file(
    file: Path,
    target: TargetFacts,
    paths: Iterable[tuple[Sequence[str], SamplingParams, TruePath]],
    *,
    max_new_tokens: int,
    versions: dict[str, str],
    taps: Sequence[int] | None,
) -> None:
    """Write a file of true paths whole or not at all.

    Args:
        paths: the user's messages of each prompt, its sampling and its path. A path that is given twice is
            kept once.
        taps: of the drafter that reads the features; None to leave the features out.
    """
    kept: list[KeptPath] = []
    tokens: list[torch.Tensor] = []
    features: list[torch.Tensor] = []
    known: set[tuple[str, SamplingParams]] = set()
    for turns, asked, path in paths:
        prompt, sampling = turns_digest(turns), drawn_as(asked)
        if (prompt, sampling) in known:
            continue
        known.add((prompt, sampling))
        counts = {"prompt_tokens": path.prompt_tokens, "tokens": len(path.tokens)}
        drawn = {name: getattr(sampling, name) for name in ("temperature", "top_k", "top_p", "seed")}
        kept.append(KeptPath(prompt=prompt, **counts, **drawn))
        tokens.append(torch.from_numpy(path.tokens).to(torch.int32))
        features.append(torch.from_numpy(path.features).to(torch_dtype(target.dtype)))
    header = PathFileHeader(
        target=target,
        taps=list(taps or ()),
        max_new_tokens=max_new_tokens,
        versions=versions,
        paths=kept,
    )
    tensors = {"tokens": torch.cat(tokens)}
    if taps is not None:
        tensors["features"] = torch.cat(features)
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f"{file.name}.part")
    save_file(tensors, part, metadata={METADATA: header.model_dump_json()})
    part.replace(file)
