"""What to expect of boards: memory and speed of models on them, predicted by the virtual clock.

Each place is priced by the profiles of its boards, which have published bandwidths and assumed efficiencies.
The bundled model and its EAGLE head supply the tokens, so the column with drafts is that of a head as good as
this one.

Run: python -m testbed.tools.documents.expect    # writes the table of docs/expect.md
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from flowedge.core.errors import CapacityError
from flowedge.core.pipeline_config import Quantisation
from flowedge.core.request import Finished, Request
from flowedge.core.sampling import SamplingParams
from flowedge.planning.in_process import virtual_pipeline
from flowedge.planning.memory_fit import draft_node_parts, require_fit, stage_parts
from flowedge.planning.profile.pipeline import PipelineProfile
from flowedge.planning.profile_costs import ProfileCosts
from flowedge.planning.split import even_split
from flowedge.text.tokenizer import StreamDecoder
from flowedge_testbed.emulation.emulate import emulate
from flowedge_testbed.emulation.place import Devices, Emulated, LinkChoice, Links, Place
from flowedge_testbed.model_set import ModelSet
from testbed.tools.random_places import SESSION_ROWS

DOCUMENT = Path(__file__).parents[3] / "docs" / "expect.md"
BEGIN, END = "<!-- predicted -->\n", "<!-- end -->\n"
PROMPT = "Tell me a long story about the sea."
TOKENS = 96


class BoardRow(NamedTuple):
    """Boards of one kind in a row: their name for readers, the profile, and how many are stages."""

    title: str
    profile: str
    number: int


BOARDS = (
    BoardRow("Raspberry Pi 5 8 GB", "raspberry-pi-5", 1),
    BoardRow("4 Raspberry Pi 5 8 GB", "raspberry-pi-5", 4),
    BoardRow("Mini PC (N100)", "mini-pc-n100", 1),
    BoardRow("Laptop, no GPU", "laptop-16gb", 1),
    BoardRow("2 laptops, no GPU", "laptop-16gb", 2),
    BoardRow("Orin Nano 8 GB", "orin-nano-8gb", 1),
    BoardRow("4 Orin Nano 8 GB", "orin-nano-8gb", 4),
    BoardRow("Orin NX 16 GB", "orin-nx-16gb", 1),
    BoardRow("AGX Orin 64 GB", "agx-orin-64gb", 1),
    BoardRow("PC, RTX 3060 12 GB", "pc-rtx3060-12gb", 1),
)
FLOAT32 = frozenset(
    {"raspberry-pi-5", "mini-pc-n100", "laptop-16gb"}
)  # CPUs without bfloat16 (docs/agent.md)
MODELS: tuple[tuple[str, str, Quantisation], ...] = (
    ("Llama 3.2 1B", "llama3.2-1b", "none"),
    ("Llama 3.2 3B", "llama3.2-3b", "int4"),
    ("Llama 3.1 8B", "llama3.1-8b", "int4"),
    ("Llama 3.1 8B", "llama3.1-8b", "none"),
)


def pipeline_of(board: BoardRow, model: str, quant: Quantisation) -> PipelineProfile:
    """Return the emulated pipeline of boards of one kind, with one more as the draft node, over a gigabit."""
    place = Place(
        devices=Devices(draft_node=board.profile, stages=[board.profile] * board.number),
        links=Links(default=LinkChoice(profile="gigabit")),
        emulated=Emulated(model=model, quant=quant),
    )
    pipeline = emulate(place, ("bundled",), 0, {}, Path())
    if board.profile not in FLOAT32:
        return pipeline
    return replace(pipeline, model=pipeline.model.model_copy(update={"dtype": "float32"}))


def tokens_per_s(models: ModelSet, emulation: PipelineProfile, strategy: str) -> float:
    """Return the speed of one answer on the virtual clock, after its first token."""
    layers = models.checkpoint.config.num_hidden_layers
    split = tuple(even_split(layers, emulation.num_stages, larger_first=True))
    pipeline = virtual_pipeline(
        models.checkpoint,
        split,
        ProfileCosts(emulation, 0, strategy),
        drafter=models.drafter,
        head=models.head,
        make_text=partial(StreamDecoder, models.tokenizer),
        blocks=models.blocks(split),
        verification=emulation.verification,
    )
    prompt = tuple(models.encode(PROMPT))
    request = Request("s", prompt, SamplingParams(), TOKENS, frozenset(), strategy=strategy)
    times = [
        timed.time
        for timed in pipeline.generate(request)
        if not isinstance(timed.output, Finished)
        for _ in getattr(timed.output, "token_ids", ())
    ]
    return (len(times) - 1) / (times[-1] - times[0])


def row(models: ModelSet, board: BoardRow, title: str, model: str, quant: Quantisation) -> list[str]:
    """Return the row of a model on boards of one kind, which says so if it does not fit."""
    emulation = pipeline_of(board, model, quant)
    stages = [sum(stage_parts(emulation, each, SESSION_ROWS).values()) for each in range(board.number)]
    held = max(*stages, sum(draft_node_parts(emulation, SESSION_ROWS).values()))
    stored = quant if quant != "none" else "float32" if board.profile in FLOAT32 else "16 bits"
    cells = [title, stored, board.title, f"{held / 2**30:.1f} GiB"]
    try:
        require_fit(emulation, SESSION_ROWS)
    except CapacityError:
        return [*cells, "does not fit", ""]
    speeds = [tokens_per_s(models, emulation, each) for each in ("autoregressive", "auto")]
    return [*cells, *(f"{speed:.1f}" for speed in speeds)]


def table(lines: Sequence[Sequence[str]]) -> str:
    """Return rows as a Markdown table."""
    titles = ("Model", "Layers in", "Stages", "Fullest board", "Plain, tokens/s", "With a head, tokens/s")
    body = ["| " + " | ".join(line) + " |" for line in (titles, ["---"] * len(titles), *lines)]
    return "\n".join([*body, ""])


def main() -> None:
    """Write the table into the document."""
    text = DOCUMENT.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    models = ModelSet.load("bundled", ("bundled",))
    made = table([row(models, board, *model) for model in MODELS for board in BOARDS])
    DOCUMENT.write_text(f"{before}{BEGIN}\n{made}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
