"""Where the methods of papers draw the target's tokens, by what each paper says."""

from __future__ import annotations

from flowedge.core.pipeline_config import DRAFT_NODE, LAST_STAGE, VerificationChoice

AUTO: VerificationChoice = "auto"

# FlowSpec, 3.3: "D0 receives the corresponding final hidden state of the base LLM, and computes the output
# probability". Its comparison runs PipeDec in the same code, with 16 nodes a layer, as `pipedec` does here.
_FLOWSPEC = ("naive_pp", "pruned_pp", "flowspec_no_sbd", "flowspec_paper", "pipedec")
# SpecPipe, 3.3: "the last device infers the next token". PipeInfer, IV: "the logits are transferred to the
# head node, which performs sampling". PipeSpec's target is a whole model, LM head and all.
_OTHERS = ("specpipe", "specpipe_db", "pipeinfer", "pipespec", "pipespec_sync")
_PLACES = {**dict.fromkeys(_FLOWSPEC, DRAFT_NODE), **dict.fromkeys(_OTHERS, LAST_STAGE)}


def published_place(strategy: str) -> VerificationChoice:
    """Return where a strategy's paper draws; auto, the cheaper place, for a strategy of no paper."""
    return _PLACES.get(strategy, AUTO)
