"""The parts of a scenario: models, hosts, variants of methods, loads, and what the report shows."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    field_serializer,
    field_validator,
    model_serializer,
    model_validator,
)

from flowedge.core.errors import BadRequestError
from flowedge.core.pipeline_config import Quantisation, drafter_names
from flowedge.core.request import Noise
from flowedge.drafting.choice import drafter_value
from flowedge.planning.profile.model import StoredDtype, YamlDocument
from flowedge_testbed.emulation.place import Count
from flowedge_testbed.emulation.system_choice import SystemChoice

Table = Literal[
    "table1", "table2", "table3", "parts", "sweep", "places", "columns", "accepted", "memory", "links",
    "pipespec",
]  # fmt: skip
Plot = Literal["bars", "sweep", "places", "accepted", "gantt"]
ColumnName = Literal[
    "tokens_per_s", "speedup_vs_naive_pp", "speedup_vs_autoregressive", "looping",
    "tokens_per_s_without_looping", "speedup_vs_naive_pp_without_looping",
    "speedup_vs_autoregressive_without_looping", "tokens_a_round", "tokens_a_segment", "hit_rate", "flushes",
    "ttft_ms", "first_gap_ms", "per_token_ms", "predicted_ms", "predicted_with_misses_ms", "itl_p50_ms",
    "itl_p99_ms", "latency_s", "rows_for_nothing", "energy_j_per_token", "measured_j_per_token", "drawn_on",
    "memory_gib", "fullest_gib", "tokens_per_s_per_gib", "link_kb_per_token", "crossing_ms", "rows_in_flight",
    "rows_alive_in_flight", "bound_sent_tokens_per_s",
    "share_of_bound_sent", "bound_tokens_per_s", "share_of_bound",
]  # fmt: skip


class ModelSetNames(YamlDocument):
    """The real models, which supply the tokens: `bundled`, a directory, a GGUF file or a hub id each.

    Attributes:
        drafter: names as `flowedge generate --drafter` takes them; in the file, a single name or a list.
        middles: middle models of a PipeSpec hierarchy, the smallest first, as in `--middle`.
        paths: a file of true paths, or the name of a shipped one, which stands for the target. `model` is
            opened then for a draft head alone, or if it is not `bundled`; it must be the file's model.
        dtype, device: what the models compute in, and where; see ModelSet.load.
    """

    model: str = "bundled"
    drafter: tuple[str, ...] = ("bundled",)
    middles: list[str] = Field(default_factory=list)
    paths: str | None = None
    dtype: StoredDtype | None = None
    device: Literal["auto", "cpu", "cuda"] = "auto"

    @property
    def target(self) -> str:
        """What the target's tokens come from, in words."""
        return self.model if self.paths is None else f"the file of true paths {self.paths}"

    @field_validator("drafter", mode="before")
    @classmethod
    def _read_drafter(cls, given: Any) -> tuple[str, ...]:
        if not isinstance(given, str | list | tuple) or not all(isinstance(name, str) for name in given):
            raise ValueError("give the name of a drafter, or a list of names")
        try:
            return drafter_names(given)
        except BadRequestError as error:
            raise ValueError(str(error)) from error

    @field_serializer("drafter")
    def _write_drafter(self, names: tuple[str, ...]) -> str | list[str]:
        return drafter_value(names)

    @model_serializer(mode="wrap")
    def _write_choices(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out choices that were not made, so that older results keep their settings."""
        written: dict[str, Any] = write(self)
        unmade = {"paths": None, "dtype": None, "device": "auto"}
        return {key: value for key, value in written.items() if key not in unmade or value != unmade[key]}


class Hosts(YamlDocument):
    """Agents on a network, as host:port. With the real clock they serve the models of `pair`.

    Attributes:
        quant: quantisation of the stages' layers.
        dtype: of weights, KV cache and hidden states; auto is the best that all hosts compute fast.
        split: layers of each stage; as even as possible if not given.
        middles: of the middle models in `pair`, in the same order; a list for a model that is divided.
    """

    draft_node: str
    stages: list[str] = Field(min_length=1)
    middles: list[str | Annotated[list[str], Field(min_length=1)]] = Field(default_factory=list)
    quant: Quantisation = "none"
    dtype: StoredDtype | Literal["auto"] = "auto"
    split: list[Count] | None = None


class MethodVariant(SystemChoice):
    """A method under a name of its own: a strategy with other options, or in another system.

    Attributes:
        tuned: values to try by option. The method is run with its own options and with every combination
            of these; the best at each place, temperature and kind of drafting stands in the results.
        noise: kinds of drafting above temperature 0; the scenario's if not given.
    """

    strategy: str
    options: dict[str, float] = Field(default_factory=dict)
    tuned: dict[str, Annotated[list[float], Field(min_length=1)]] = Field(default_factory=dict)
    noise: Annotated[list[Noise], Field(min_length=1)] | None = None


class LoadChoice(YamlDocument):
    """Many requests over one pipeline, which is measured at each of several points.

    The prompts of all datasets are asked in an order that follows from the scenario's seed.

    Attributes:
        clients: numbers of clients; a client asks its next prompt when its answer is complete.
        arrivals_per_s: rates of requests that arrive at random times (a Poisson process).
        requests: counted requests of each point. The load goes on until they are answered.
        warm_up: requests of each client, or of all arrivals, that come before the counted ones.
        think_s: mean of the exponential time that a client waits after an answer.
        new_tokens: the least and the most of a request's max_new_tokens, drawn for each request; the
            scenario's max_new_tokens if not given.
        static_batches: methods, mostly variants, of which all clients' requests begin together as one batch,
            and the next batch begins when all of it has ended.
    """

    clients: list[Count] = Field(default_factory=list)
    arrivals_per_s: list[Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(default_factory=list)
    requests: Count = 32
    warm_up: Annotated[int, Field(ge=0)] = 1
    think_s: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    new_tokens: tuple[Count, Count] | None = None
    static_batches: list[str] = Field(default_factory=list)

    @model_validator(mode="after")
    def _has_points(self) -> LoadChoice:
        if not self.clients and not self.arrivals_per_s:
            raise ValueError("a load has no point; give clients or arrivals_per_s")
        if self.static_batches and self.arrivals_per_s:
            raise ValueError("static_batches are of clients; leave arrivals_per_s out")
        if self.new_tokens is not None and self.new_tokens[0] > self.new_tokens[1]:
            raise ValueError(f"new_tokens goes from {self.new_tokens[0]} to {self.new_tokens[1]}")
        return self


class Quick(YamlDocument):
    """The values that `--quick` puts in place of the scenario's."""

    samples: Count = 1
    max_new_tokens: Count = 24
    datasets: list[str] | None = None
    temperatures: list[float] | None = None
    sweep: dict[str, list[float]] | None = None
    load: LoadChoice | None = None


class ReportChoice(YamlDocument):
    """The tables and plots of the report.

    Attributes:
        columns: the figures in the table `columns`, and those that `sweep` has a table and a plot of;
            testbed/docs/reports.md explains them.
    """

    tables: list[Table] = Field(default_factory=list)
    plots: list[Plot] = Field(default_factory=list)
    columns: list[ColumnName] = Field(default_factory=list)

    @model_validator(mode="after")
    def _has_columns(self) -> ReportChoice:
        if "columns" in self.tables and not self.columns:
            raise ValueError("the table `columns` has no columns; name some under report.columns")
        return self
