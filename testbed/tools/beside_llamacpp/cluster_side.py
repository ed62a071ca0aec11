"""FlowEdge as it runs: agents on loopback, a draft node and stages, or one agent that is both."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import TracebackType

from flowedge.agent.local_cluster import LocalCluster
from flowedge.cli.options import BUNDLED
from flowedge.client import Client
from flowedge.client.assembly import PipelineSpec, assemble
from flowedge.client.transcript import typed_statistics
from flowedge.engine.statistics import RequestStatistics
from testbed.tools.beside_llamacpp.formats import Format

PLAIN = "autoregressive"
GENERATION_S = 300.0


class ClusterSide:
    """A pipeline of agents, whose processes end when the context is left."""

    def __init__(
        self, model: str, form: Format, stages: int, vocabulary: int, *, drafter: bool = False
    ) -> None:
        """Prepare agents, which start with the context.

        Args:
            vocabulary: number of token ids.
            drafter: whether the bundled drafter is loaded.
        """
        self.cluster = LocalCluster.of_pipeline(stages, name="beside")
        self._model = model
        self._form = form
        self._vocabulary = vocabulary
        self._drafters = (BUNDLED,) if drafter else ()
        self._client: Client | None = None
        self._chance = random.Random(0)

    def __enter__(self) -> ClusterSide:
        self.cluster.start()
        try:
            draft_node = self.cluster.draft_node.address
            spec = PipelineSpec(
                draft_node=draft_node,
                stages=tuple(stage.address for stage in self.cluster.stages),
                model=self._model,
                drafter=self._drafters,
            ).changed(quant=self._form.quant, dtype=self._form.dtype)
            assemble(spec, lambda *_: None)
            self._client = Client(draft_node, timeout_s=GENERATION_S)
        except BaseException:
            self.cluster.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            self._client.close()
        self.cluster.stop()

    def decode(self, tokens: int) -> RequestStatistics:
        """Return the statistics of an answer of `tokens` tokens behind a first one, without drafts."""
        return self._generate([1], tokens + 1, PLAIN)

    def prefill_s(self, tokens: int) -> float:
        """Return the seconds from the arrival of a prompt of `tokens` tokens until its first token is out.

        Each call has another prompt, because the rows of the last ones are kept.
        """
        ids = self._chance.choices(range(self._vocabulary), k=tokens)
        return self._generate(ids, 1, PLAIN).ttft_s

    def token_s(self, prompts: Sequence[Sequence[int]], tokens: int, strategy: str) -> float:
        """Return the seconds a token of decoding, over all prompts, at temperature 0."""
        answers = [self._generate(prompt, tokens, strategy) for prompt in prompts]
        return sum(each.decode_s for each in answers) / sum(each.new_tokens - 1 for each in answers)

    def _generate(self, prompt: Sequence[int], tokens: int, strategy: str) -> RequestStatistics:
        assert self._client is not None, "the cluster is not started"
        with self._client.generate(
            prompt_ids=prompt, max_new_tokens=tokens, strategy=strategy, ignore_eos=True
        ) as answer:
            return typed_statistics(answer.result().statistics)
