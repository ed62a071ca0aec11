"""Clients that many programs are made with, from pinned packages; each asks by a script in its language."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.clients.asking import SCRIPTS, ask, script_of
from tests.clients.environments import node_modules, python_of
from tests.clients.reference import Reference
from tests.support.gateways import GatewayProcess
from tests.support.truncated import BUNDLED_MODEL

PYTHON_CLIENTS = (
    "openai",
    "ollama",
    "litellm",
    "llm",
    "instructor",
    "pydantic-ai",
    "openai-agents",
    "guidellm",
    "aiperf",
)
CASES = [
    {"context": "def add(a, b):\n    return a", "choices": [" + b", " - b"]},
    {"context": "for i in range(", "choices": ["10):", "len(words)):\n        print(i)"]},
    {"context": "import", "choices": [" os", " numpy as np"]},
]

pytestmark = [pytest.mark.proof, pytest.mark.timeout(900)]


@pytest.mark.parametrize("client", PYTHON_CLIENTS)
def test_a_client_in_python(asked_gateway: GatewayProcess, client: str, tmp_path: Path) -> None:
    ask(asked_gateway, [python_of(client), script_of(client)], tmp_path)


def test_lm_eval_measures_what_the_model_is(asked_gateway: GatewayProcess, tmp_path: Path) -> None:
    """What lm-eval scores and generates over HTTP is what transformers computes from the same files."""
    command = [python_of("lm-eval"), script_of("lm-eval")]
    said = ask(asked_gateway, command, tmp_path, {"CLIENT_CASES": json.dumps(CASES)})
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    reference = Reference(BUNDLED_MODEL)
    for case, scores, text in zip(CASES, found["likelihoods"], found["texts"], strict=True):
        for choice, (logprob, greedy) in zip(case["choices"], scores, strict=True):
            expected = reference.score(str(case["context"]), choice)
            assert float(logprob) == pytest.approx(expected.logprob, abs=1e-3)
            assert str(greedy) == str(expected.greedy)
        assert text == reference.text_after(str(case["context"]), tokens=24, until="\n\n")
    assert all(found["chats"])


def test_the_ai_sdk(asked_gateway: GatewayProcess, tmp_path: Path) -> None:
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("node and npm are not installed")
    script = tmp_path / "ask_ai_sdk.mjs"  # node looks for packages beside the script
    shutil.copy(SCRIPTS / script.name, script)
    (tmp_path / "node_modules").symlink_to(node_modules() / "node_modules")
    ask(asked_gateway, ["node", script], tmp_path)


def test_javas_http_client(asked_gateway: GatewayProcess, tmp_path: Path) -> None:
    """Its default is HTTP/2, which it offers by an upgrade with each request. JDK 17 runs sources."""
    if shutil.which("javac") is None:
        pytest.skip("no JDK is installed")
    ask(asked_gateway, ["java", SCRIPTS / "AskJava.java"], tmp_path)
