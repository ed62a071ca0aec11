"""The examples of docs/client.md, run as they stand against real agents, but for the lengths of answers."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import psutil
import pytest

from flowedge.client import Client
from flowedge.core import errors
from tests.support.processes import CLI

DOCUMENT = Path(__file__).parents[2] / "docs/client.md"
EXAMPLES = re.findall(
    r"^```python\n(.*?)^```$", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
)
MUCH = re.compile(r"max_new_tokens=(200|60|30)\b")
TITLES = [re.sub(r"\W+", " ", example).strip()[:40] for example in EXAMPLES]


@pytest.mark.parametrize("example", EXAMPLES, ids=TITLES)
def test_an_example_runs(
    example: str,
    cluster4: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", CLI[0])  # with which a LocalCluster starts its agents
    code = example.replace("192.168.1.10:7070", cluster4).replace("/tmp/", f"{tmp_path}/")
    code = MUCH.sub("max_new_tokens=12", code).replace("priority=", "max_new_tokens=12, priority=")
    before = psutil.Process().children()
    with Client(cluster4) as client:
        exec(compile(code, str(DOCUMENT), "exec"), {"client": client, "__name__": "example"})
    assert psutil.Process().children() == before
    assert capsys.readouterr().out.strip() or "print" not in example or "except" in example


def test_there_are_examples_of_each_part() -> None:
    text = "\n".join(EXAMPLES)
    for part in (
        "LocalCluster",
        "chat(",
        "conversation(",
        "tools=",
        "Grammar",
        "AsyncClient",
        "logprobs",
        "Error",
    ):
        assert part in text


def test_all_errors_are_documented() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    classes = [each for each in vars(errors).values() if isinstance(each, type)]
    for error in classes:
        if issubclass(error, errors.FlowEdgeError):
            assert f"`{error.__name__}`" in text or f"`flowedge.{error.__name__}`" in text, error.__name__
