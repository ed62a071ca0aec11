"""The command and the library llm, with its own provider for OpenAI's API and with llm-ollama."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

MODEL = os.environ["CLIENT_MODEL"]
URL = os.environ["CLIENT_URL"]

with tempfile.TemporaryDirectory() as folder:
    Path(folder, "extra-openai-models.yaml").write_text(
        f"- model_id: chatted\n  model_name: {MODEL}\n  api_base: {URL}/v1\n  supports_schema: true\n"
        "  supports_tools: true\n"
        f"- model_id: completed\n  model_name: {MODEL}\n  api_base: {URL}/v1\n  completion: true\n"
    )
    environment = {**os.environ, "LLM_USER_PATH": folder, "OLLAMA_HOST": URL, "OPENAI_API_KEY": "none"}

    def run(*arguments: str) -> str:
        """Return what `llm` prints."""
        command = [sys.executable, "-m", "llm", *arguments]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=120, check=False, input=""
        )
        assert done.returncode == 0, (arguments, done.stdout, done.stderr)
        return done.stdout.strip()

    limited = ("-o", "max_tokens", "24", "-o", "temperature", "0")
    streamed = run("-m", "chatted", "What does len do?", *limited)
    assert streamed
    assert run("-m", "chatted", "What does len do?", *limited, "--no-stream") == streamed
    assert run("-m", "chatted", "-c", "And for a list?", *limited)  # the conversation goes on
    assert run("-m", "completed", "def add(a, b):", *limited)
    shaped = run("-m", "chatted", "A person", "--schema", "name str, age int", "-o", "max_tokens", "120")
    assert '"name"' in shaped
    assert '"age"' in shaped
    assert f"Ollama: ollama/{MODEL}" in run("models", "list")
    local = ("-m", f"ollama/{MODEL}", "-o", "num_predict", "24", "-o", "temperature", "0")
    assert run(*local, "What does len do?")
