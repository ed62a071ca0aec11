"""Clients that many programs are made with, from pinned packages; each asks by a script in its language."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.clients.asking import SCRIPTS, ask, script_of
from tests.clients.environments import node_modules, python_of
from tests.support.gateways import GatewayProcess

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

pytestmark = [pytest.mark.proof, pytest.mark.timeout(600)]


@pytest.mark.parametrize("client", PYTHON_CLIENTS)
def test_a_client_in_python(asked_gateway: GatewayProcess, client: str, tmp_path: Path) -> None:
    ask(asked_gateway, [python_of(client), script_of(client)], tmp_path)


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
