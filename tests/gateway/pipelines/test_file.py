"""The file of pipelines: what is wrong is refused with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowedge.core.errors import BadRequestError
from flowedge.gateway.pipelines.file import DeclaredPipeline, read_pipelines

A, B = "192.168.1.20:7070", "192.168.1.21:7070"


def read(folder: Path, text: str) -> tuple[DeclaredPipeline, ...]:
    file = folder / "pipelines.toml"
    file.write_text(text)
    return read_pipelines(file)


def test_pipelines_are_read(tmp_path: Path) -> None:
    text = f"""
    [[pipelines]]
    name = "small"
    aliases = ["gpt-4o-mini"]
    draft_node = "{A}"

    [[pipelines]]
    agents = ["{B}", "192.168.1.22:7070"]
    model = "meta-llama/Llama-3.2-1B"
    drafter = "ngram"
    split = [8]

    [[pipelines]]
    stages = 2
    drafter = ["bundled", "ngram"]
    """
    first, second, third = read(tmp_path, text)
    assert (first.name, first.aliases, first.draft_node) == ("small", ("gpt-4o-mini",), A)
    assert (second.agents[0], second.model, second.drafters) == (B, "meta-llama/Llama-3.2-1B", ("ngram",))
    assert (third.stages, third.drafters, third.model) == (2, ("bundled", "ngram"), "bundled")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "pipelines is missing"),
        ("pipelines = []", "pipelines is"),
        ("[[pipelines]]", "pipeline 1: give one of draft_node, agents and stages; there is none"),
        (f'[[pipelines]]\ndraft_node = "{A}"\nstages = 2', "there is draft_node and stages"),
        (f'[[pipelines]]\ndraft_nodes = "{A}"', "there is no key draft_nodes; did you mean draft_node?"),
        (f'[[pipelines]]\nagents = ["{A}"]', "names one agent"),
        ('[[pipelines]]\ndraft_node = "kitchen"', "pipeline 1: draft_node is 'kitchen'"),
        (f'[[pipelines]]\ndraft_node = "{A}"\nquant = "int8"', "quant: the pipeline of draft_node is set up"),
        (f'[[pipelines]]\ndraft_node = "{A}"\n' * 2, f"{A} is there twice"),
        ('[[pipelines]]\nstages = "two"', "stages is 'two'"),
        ("[[pipelines]]\nstages = 0", "stages is 0"),
        ('[pipeline]\nname = "x"', "there is no key pipeline; did you mean pipelines?"),
        ("[[pipelines]", "not valid TOML"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(BadRequestError) as refused:
        read(tmp_path, text)
    assert words in str(refused.value)
    assert "pipelines.toml" in str(refused.value)
