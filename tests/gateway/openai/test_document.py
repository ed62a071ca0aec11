"""The examples of docs/openai-api.md run as they are printed, against another address."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.support.commands import run_command
from tests.support.gateways import ANSWER_S, GatewayProcess

ADDRESS = "http://127.0.0.1:8000"
DOCUMENT = (Path(__file__).parents[3] / "docs/openai-api.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", DOCUMENT, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("place", range(len(EXAMPLES)))
def test_an_example_runs(gateway4: GatewayProcess, capsys: pytest.CaptureFixture[str], place: int) -> None:
    assert ADDRESS in EXAMPLES[place]
    source = EXAMPLES[place].replace(ADDRESS, gateway4.url)
    exec(compile(source, f"example {place}", "exec", dont_inherit=True), {"__name__": "example"})
    assert capsys.readouterr().out.strip()


def test_the_command_of_curl_gets_an_answer(gateway4: GatewayProcess) -> None:
    found = re.search(r"^    (curl .*?[^\\])$", DOCUMENT, flags=re.MULTILINE | re.DOTALL)
    assert found is not None
    command = shlex.split(found.group(1).replace("\\\n", " ").replace(ADDRESS, gateway4.url))
    answer = run_command(command, timeout=ANSWER_S, check=True)
    assert '"object":"chat.completion"' in answer.stdout
