"""The models that a draft node holds: tokenizer, LM head and drafter. Imports torch and transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from flowedge.core.errors import BadRequestError
from flowedge.core.pipeline_config import DRAFT_NODE, VerificationPlace, drafter_label
from flowedge.drafting.draft_vocabulary import VocabularyLearner
from flowedge.drafting.drafter import Drafter
from flowedge.drafting.drafter_format import DEFAULT_FORMAT, DrafterFormat
from flowedge.drafting.drafter_memory import drafter_memory
from flowedge.drafting.joined import JoinedDrafter
from flowedge.drafting.loading import TargetModel, load_drafter
from flowedge.drafting.lookup.answer_store import AnswerStore
from flowedge.drafting.model_drafter import ModelDrafter
from flowedge.drafting.token_counts import CountsFile
from flowedge.engine.draft_node.cache_budget import AdmissionLimits
from flowedge.engine.draft_node.draft_node import DraftNode
from flowedge.engine.draft_node.draft_node_spec import DraftNodeSpec
from flowedge.engine.executors.head_executor import HeadExecutor
from flowedge.models.checkpoint.checkpoint import Checkpoint
from flowedge.models.checkpoint.tokenizer_loading import eos_token_ids, generation_sampling, load_tokenizer
from flowedge.models.families.parts import RECURRENT
from flowedge.models.files.config_support import max_positions
from flowedge.models.host.lazy_zeros import takes_memory_as_written
from flowedge.models.host.payloads import payload_dtype, torch_dtype
from flowedge.models.lm_head import LMHead
from flowedge.models.quant.quant_cache import QuantCache
from flowedge.models.taps import Taps, row_width
from flowedge.models.token_table import table_bytes
from flowedge.text.grammar_compiler import GrammarCompiler
from flowedge.text.template_tools import capabilities_of
from flowedge.text.token_bytes import TokenBytes
from flowedge.text.tokenizer import StreamDecoder, chat_template, encode_chat

PREFILL_ROWS = 128  # of a chunk; several chunks of a long prompt are in the pipeline at once


@dataclass(frozen=True)
class DraftModels:
    """Tokenizer, LM head and drafter of a draft node.

    Attributes:
        config: the model's, from transformers; tokenizer: likewise.
        eos: token ids that end an answer; dtype: numpy name of the hidden states on the wire.
        weight_bytes: of head and drafter together.
        drafter_name: of the drafter that was loaded with the models.
        draft_quant: the format of the layers of drafters that are models; "" without such a drafter.
        grammars: which answers may follow; token_bytes: of the tokenizer.
        capabilities: what the model is made for beside texts (see `capabilities_of`).
        sampling: how the model's own generation config has tokens drawn (see generation_sampling).
    """

    config: Any
    tokenizer: Any
    eos: frozenset[int]
    executor: HeadExecutor
    dtype: str
    weight_bytes: int
    drafter_name: str
    draft_quant: str
    grammars: GrammarCompiler
    token_bytes: TokenBytes
    capabilities: tuple[str, ...] = ()
    sampling: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def load(
        cls,
        checkpoint: Checkpoint,
        drafters: Sequence[str],
        dtype_name: str,
        device: torch.device | str = "cpu",
        *,
        cuda_graphs: bool = False,
        form: DrafterFormat = DEFAULT_FORMAT,
        state: Path | None = None,
        quant: str | None = None,
        quant_cache: QuantCache | None = None,
        answer_tokens: int = 0,
    ) -> DraftModels:
        """Load tokenizer, head and drafters; `device` computes and holds all weights and caches.

        Args:
            drafters: names as `drafter_names` checks them.
            cuda_graphs: whether a GPU records the forwards of drafters.
            form: how drafters that are models are held.
            state: directory where counts of the drawn tokens are kept, by which the tokens to propose are
                chosen; without it all tokens are proposed.
            quant: of the target's layers, which its LM head follows (see load_table).
            answer_tokens: of ended answers that are kept for lookup; 0 keeps none.

        Raises:
            BadRequestError: when the drafter or the dtype does not exist, or does not fit the model.
            CheckpointError: when files cannot be read.
        """
        dtype = torch_dtype(dtype_name)
        head = LMHead.load(checkpoint, dtype, device, quant=quant, quant_cache=quant_cache)
        tokenizer = load_tokenizer(checkpoint)
        learner = _learner(checkpoint, head, form, state)
        target = TargetModel(
            checkpoint,
            head,
            tokenizer,
            dtype,
            cuda_graphs,
            form,
            None if learner is None else learner.vocabulary,
            learner,
            table_quant=quant,
            quant_cache=quant_cache,
        )
        loaded = load_drafter(drafters, target)
        eos = eos_token_ids(checkpoint, tokenizer)
        grammars = GrammarCompiler(tokenizer, eos, head.vocab_size)
        return cls(
            config=checkpoint.config,
            tokenizer=tokenizer,
            eos=eos,
            executor=HeadExecutor(
                head, loaded, grammars, AnswerStore(answer_tokens) if answer_tokens else None
            ),
            dtype=payload_dtype(dtype),
            weight_bytes=head.weight_bytes + (loaded.weight_bytes if loaded is not None else 0),
            drafter_name=drafter_label(drafters),
            draft_quant=target.quant if isinstance(loaded, ModelDrafter | JoinedDrafter) else "",
            grammars=grammars,
            token_bytes=TokenBytes(tokenizer),
            capabilities=capabilities_of(tokenizer),
            sampling=generation_sampling(checkpoint),
        )

    def make_exact(self, *, required: bool) -> None:
        """Have the LM head give a row the same bits whatever the number of rows.

        Raises:
            BadRequestError: when that is required, and the device cannot.
        """
        try:
            self.executor.head.find_row_counts()
        except BadRequestError:
            if required:
                raise

    @property
    def exact(self) -> bool:
        """Whether the LM head gives a row the same bits whatever the number of rows."""
        return self.executor.head.exact

    @property
    def has_drafter(self) -> bool:
        return self.executor.drafter is not None

    @property
    def has_chat_template(self) -> bool:
        return bool(chat_template(self.tokenizer))

    @property
    def vocab_size(self) -> int:
        return int(self.config.vocab_size)

    def encode(self, prompt: str) -> tuple[int, ...]:
        """Return the token ids of a user's message, with the chat template around it."""
        return tuple(encode_chat(self.tokenizer, prompt))

    @property
    def draft_tokens(self) -> int:
        """The number of tokens that a drafter which is a model proposes; 0 for other drafters."""
        drafter = self.executor.drafter
        return drafter.draft_tokens if isinstance(drafter, ModelDrafter | JoinedDrafter) else 0

    @property
    def caches_on_demand(self) -> bool:
        """Whether the drafter's caches take memory as their rows are written."""
        return takes_memory_as_written(self.executor.head.device)

    def drafter_bytes(self, rows: int) -> int:
        drafter = self.executor.drafter
        return drafter.session_bytes(rows) if drafter is not None else 0

    def make_machine(
        self,
        device: str,
        num_stages: int,
        taps: Taps,
        *,
        num_routes: int = DraftNodeSpec.num_routes,
        limits: AdmissionLimits = AdmissionLimits(),  # noqa: B008 (frozen)
        kept_rows: int = DraftNodeSpec.kept_rows,
        one_host: bool = DraftNodeSpec.one_host,
    ) -> DraftNode:
        """Return the state machine of a draft node with these models, in front of stages with these taps.

        The other arguments are fields of DraftNodeSpec.
        """
        spec = draft_node_spec(
            self.config,
            self.executor.drafter,
            taps,
            self.dtype,
            drafter_name=self.drafter_name,
            prefill_rows=PREFILL_ROWS,
            num_stages=num_stages,
            num_routes=num_routes,
            kept_rows=kept_rows,
            one_host=one_host,
        )
        return DraftNode(
            device,
            spec,
            spec.session_strategies(),
            partial(StreamDecoder, self.tokenizer),  # which holds no weights, as `self` would
            limits,
        )


def _learner(
    checkpoint: Checkpoint, head: LMHead, form: DrafterFormat, state: Path | None
) -> VocabularyLearner | None:
    """Return the learner of the tokens to propose; None where all are proposed."""
    size = form.tokens(head.vocab_size, head.device.type)
    if state is None or size == head.vocab_size:
        return None
    return VocabularyLearner(size, CountsFile(state, checkpoint.fingerprint, head.vocab_size))


def draft_node_spec(
    config: Any,
    drafter: Drafter | None,
    taps: Taps,
    dtype: str,
    drafter_name: str = DraftNodeSpec.drafter_name,
    verification: VerificationPlace = DRAFT_NODE,
    kept_taps: tuple[tuple[int, int], ...] = (),
    *,
    one_host: bool = DraftNodeSpec.one_host,
    **limits: int,
) -> DraftNodeSpec:
    """Return the spec of a draft node in front of stages with these taps.

    Args:
        config: the model's, from transformers; dtype: numpy name of the hidden states on the wire.
        limits: further fields of DraftNodeSpec.
    """
    return DraftNodeSpec(
        width=row_width(int(config.hidden_size), taps, int(config.num_hidden_layers)),
        dtype=dtype,
        max_positions=max_positions(config),
        has_drafter=drafter is not None,
        needs_features=drafter is not None and drafter.needs_features,
        looks_up=isinstance(drafter, JoinedDrafter) and drafter.looks_up,
        vocab_size=int(config.vocab_size),
        verification=verification,
        kept_taps=kept_taps,
        drafter_name=drafter_name,
        keeps_drafter=drafter is not None,
        one_host=one_host,
        whole_prefixes=not RECURRENT.isdisjoint(getattr(config, "layer_types", None) or ()),
        **limits,
    )


def required_memory(
    checkpoint: Checkpoint,
    drafters: Sequence[str],
    dtype_name: str,
    device: torch.device | str = "cpu",
    *,
    cuda_graphs: bool = False,
    form: DrafterFormat = DEFAULT_FORMAT,
    quant: str | None = None,
) -> tuple[int, int]:
    """Return the bytes of the weights of head and drafter, and of the drafter's cache for one token.

    No tensor is read. Raises what DraftModels.load raises.

    Args:
        cuda_graphs: whether the device records the drafter's small forwards as CUDA graphs, if it can.
        form: how drafters that are models are held.
        quant: of the target's layers, as in DraftModels.load.
    """
    dtype = torch_dtype(dtype_name)
    size = drafter_memory(
        drafters, checkpoint, dtype, form, device, cuda_graphs=cuda_graphs, table_quant=quant
    )
    head = table_bytes(checkpoint, checkpoint.head_name, dtype, device, quant)
    return head + size.weights, size.row
