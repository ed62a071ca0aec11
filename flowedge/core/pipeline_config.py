"""The settings of a pipeline: what its devices compute, whoever asks for it.

Each is declared here once. The agent's file, the gateway's file, the options of the command line, the
messages between devices and the tables of the documents are made of these declarations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from flowedge.core.errors import BadRequestError
from flowedge.core.settings_group import SettingsGroup, checked_by, setting

Config = TypeVar("Config", bound="PipelineConfig")

AUTO: Final = "auto"
ALL: Final = "all"
IDLE: Final = "idle"  # of `rebalance`
ON: Final = "on"  # of `exact`, beside "auto"
OFF: Final = "off"
NO_DRAFTER = "none"
LOOKUP = "ngram"
MOST_STORED = 1 << 24  # tokens of earlier answers
MOST_NAMES = 8  # drafters that are joined to one
MAX_PATH = 1024  # characters of a model's name

Quantisation = Literal["none", "int8", "llm-int8", "nf4", "fp4", "nf4-dq", "fp4-dq", "int4", "w8a16"]
VerificationPlace: TypeAlias = Literal["draft-node", "last-stage"]
VerificationChoice: TypeAlias = Literal["auto", "draft-node", "last-stage"]
DRAFT_NODE: VerificationPlace = "draft-node"
LAST_STAGE: VerificationPlace = "last-stage"
DraftQuant = Literal["auto", "none", "int8", "int4"]
VocabularySize: TypeAlias = int | Literal["auto", "all"]
PathText = Annotated[str, Field(max_length=MAX_PATH)]


def drafter_names(given: str | Sequence[str]) -> tuple[str, ...]:
    """Return the names of the drafters to join, checked; empty where nothing is to be drafted.

    A name is "ngram", "recall", "mtp", that of a bundled drafter, a directory or a hub id. "none" alone, an
    empty text and an empty sequence mean no drafter.

    Raises:
        BadRequestError: when a name is empty or repeated, "none" stands beside another name, or more than
            MOST_NAMES are given.
    """
    names = (given,) if isinstance(given, str) else tuple(given)
    if names in ((), ("",), (NO_DRAFTER,)):
        return ()
    if "" in names:
        raise BadRequestError(f"the drafter {drafter_label(names)} has an empty name; give each a name")
    if len(names) > MOST_NAMES:
        raise BadRequestError(f"{len(names)} drafters are named; at most {MOST_NAMES} can be joined")
    if NO_DRAFTER in names:
        raise BadRequestError(
            f"the drafter {NO_DRAFTER} cannot be joined with another; give {NO_DRAFTER} alone or leave it out"
        )
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise BadRequestError(f"the drafter {repeated} is not joined with itself; name it once")
    return names


def drafter_label(names: Sequence[str]) -> str:
    """Return the names as one text for reports, logs and metrics, such as "bundled+ngram" or "none"."""
    return "+".join(names) or NO_DRAFTER


def _checked_drafter(drafter: str | tuple[str, ...]) -> str | tuple[str, ...]:
    drafter_names(drafter)
    return drafter


def _vocabulary_size(given: Any) -> Any:
    """Read a number of tokens that was typed as text."""
    size = int(given) if isinstance(given, str) and given.isdecimal() else given
    if size in (AUTO, ALL) or (isinstance(size, int) and not isinstance(size, bool) and size >= 1):
        return size
    raise ValueError(f"{given!r:.80} is no number of tokens; it must be {AUTO}, {ALL} or 1 and more")


def _checked_split(counts: tuple[int, ...]) -> tuple[int, ...]:
    if min(counts, default=1) < 1:
        raise BadRequestError(f"the split {','.join(map(str, counts))} leaves a stage without a layer")
    return counts


DrafterSetting = Annotated[PathText | tuple[PathText, ...], checked_by(_checked_drafter)]


class PipelineConfig(SettingsGroup):
    """The settings of a pipeline. Which devices take part is said beside them."""

    model: Annotated[str, Field(min_length=1, max_length=MAX_PATH)] = setting(
        "bundled",
        "Checkpoint directory, GGUF file, hub id (owner/name, owner/name:Q4_K_M or owner/name/FILE.gguf), or "
        "bundled.",
    )
    tokenizer: PathText = setting(
        "", "Directory or hub id of a tokenizer to use instead of the model's. Empty: the model's."
    )
    drafter: DrafterSetting | None = setting(
        None,
        "EAGLE head or small language model (a directory or hub id), mtp (the layer that comes with the "
        "model), ngram (lookup in the text), or none (plain decoding); the bundled model has bundled, "
        "bundled-small and bundled-eagle3. If omitted: bundled for the bundled model, mtp for models on this "
        "machine that have it, ngram for others. Repeat the option to join several, the best first: "
        "--drafter bundled --drafter recall --drafter ngram.",
        examples=["ngram"],
    )
    answer_store: int = setting(
        0,
        "Tokens of earlier answers that the draft node keeps in memory, and in which ngram looks up as well, "
        "each caller's apart; 0 keeps none.",
        ge=0,
        le=MOST_STORED,
    )
    draft_quant: DraftQuant = setting(
        "auto",
        "Format of drafters that are models, and of the LM head that they propose with; auto: the fastest on "
        "the device.",
    )
    draft_vocabulary: Annotated[VocabularySize, BeforeValidator(_vocabulary_size)] = setting(
        "auto",
        "Number of tokens that such drafters propose, the most frequent of the model's output; all; auto: on "
        "a CPU a part of vocabularies of 65,536 tokens and more, when the draft node has seen enough.",
        examples=[32768],
    )
    quant: Quantisation = setting("none", "Quantisation of the layers.")
    dtype: Literal["auto", "float16", "bfloat16", "float32"] = setting(
        "auto",
        "Dtype of weights, KV cache and hidden states; auto: the best dtype that all devices compute fast.",
    )
    kv: Literal["native", "int8"] = setting(
        "native", "Format of the KV cache: native (the dtype), or int8, which halves its memory."
    )
    exact: Literal["auto", "on", "off"] = setting(
        "auto",
        "Make each row's result independent of the rows computed with it, bit for bit; auto: where "
        "that is cheap.",
    )
    verification: VerificationChoice = setting(
        "auto",
        "Where the model's tokens are drawn: on the draft node, or on the last stage, which then holds the "
        "LM head as well; auto: where it takes less time.",
    )
    split: Annotated[tuple[int, ...], Field(max_length=1024), checked_by(_checked_split)] = setting(
        (),
        "Layers of each stage, such as 2,3,3. Default: by measured speed and memory; equal shares of a "
        "small model.",
    )
    rebalance: Literal["idle", "auto"] = setting(
        IDLE,
        "When layers are moved that had better lie elsewhere, because a board has slowed down: idle (when no "
        "answer runs), or auto (at once; answers pause and go on). What the draft node's agent has as "
        "pipeline.rebalance holds for all its pipelines.",
    )

    @model_validator(mode="after")
    def _answers_are_looked_up_in(self) -> PipelineConfig:
        if self.answer_store and self.drafter is not None and LOOKUP not in self.drafters:
            raise ValueError(
                f"answer_store keeps answers for lookup, and the drafter is {drafter_label(self.drafters)}; "
                f"name {LOOKUP} as well (--drafter HEAD --drafter {LOOKUP}), or leave answer_store out"
            )
        return self

    @property
    def drafters(self) -> tuple[str, ...]:
        """The names of the drafters to join; empty for no drafter."""
        return drafter_names(self.drafter or ())

    def settings(self) -> dict[str, Any]:
        """Return the settings of the pipeline by name, without what a subclass adds."""
        return {name: getattr(self, name) for name in PipelineConfig.model_fields}

    def changed(self: Config, **changes: Any) -> Config:
        """Return a copy with other values, which are checked.

        Raises:
            BadRequestError: when a value is wrong.
        """
        return type(self)(**{name: getattr(self, name) for name in type(self).model_fields} | changes)

    def is_met_by(self, present: PipelineConfig) -> bool:
        """Return whether a pipeline with the settings `present` is one that is asked for by these.

        A pipeline that exists has chosen what "auto" and an empty split leave to it.
        """
        asked, there = (each.settings() | {"drafter": each.drafters} for each in (self, present))
        defaults = {name: field.default for name, field in PipelineConfig.model_fields.items()}
        return all(
            value == there[name] or (value == defaults[name] and value in (AUTO, (), IDLE))
            for name, value in asked.items()
        )

    def to_json(self) -> str:
        """Return the settings of the pipeline as text for another device."""
        return PipelineConfig.model_construct(**self.settings()).model_dump_json()

    @classmethod
    def from_json(cls, text: str) -> PipelineConfig:
        """Return the settings that another device has sent.

        Raises:
            BadRequestError: when the text is no JSON object, or a setting is unknown or wrong.
        """
        try:
            return cls.model_validate_json(text, strict=True)
        except ValidationError as error:
            raise BadRequestError(f"the settings of a pipeline: {cls.refused(error)}") from error


DRAFTING_WAITS = 1.5  # a second of verification on the draft node counts so much: drafting waits for it
LINK_BYTES_PER_S = 125e6  # of a gigabit, which the last link is taken for where it was not measured


def faster_sampler(draft_node_s: float, last_stage_s: float, saved_link_s: float) -> VerificationPlace:
    """Return where a verification costs the least time.

    Args:
        draft_node_s: seconds of the LM head over a segment's rows on the draft node.
        last_stage_s: the same on the last stage.
        saved_link_s: seconds by which the last link is shorter occupied if only the rows on the target's path
            cross it.
    """
    return LAST_STAGE if last_stage_s < DRAFTING_WAITS * draft_node_s + saved_link_s else DRAFT_NODE
