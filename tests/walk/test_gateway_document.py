"""docs/gateway.md from zero to an answer, its keys, and what people type wrong meanwhile."""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path

from tests.support.free_ports import free_port
from tests.walk.documents import commands, program
from tests.walk.machine import DEADLINE_S, UserMachine

GATEWAY = "docs/gateway.md"
ZERO, PACKAGE, NEXT = "## From zero to an answer", "With the [openai]", "[openai-api.md](openai-api.md) says"


def test_from_zero_to_an_answer_with_keys(tmp_path: Path) -> None:
    user = UserMachine(tmp_path, {"FLOWEDGE_DISCOVERY__GROUP": uuid.uuid4().hex[:6]})
    alone = user.run("flowedge serve --listen 127.0.0.1:0")
    started, problem = alone.err.splitlines()
    assert (alone.code, "the gateway serves" in started) == (1, True), alone
    assert "no agent answered" in problem and "--stages N" in problem
    activate, serve, curl = commands(GATEWAY, ZERO, PACKAGE)
    assert activate == "source .venv/bin/activate"
    port = str(free_port())
    asked = curl.replace("8000", port)
    with user.running(f"{serve} --listen 127.0.0.1:{port}", "models: bundled"):
        answer = json.loads(user.works(asked).out)
        assert "def " in answer["choices"][0]["message"]["content"]
        (tmp_path / "ask.py").write_text(program(GATEWAY, ZERO, NEXT).replace("8000", port), encoding="utf-8")
        assert "def " in user.works("python ask.py").out
        misspelt = json.loads(user.works(asked.replace("bundled", "bundeld")).out)["error"]
        assert misspelt["message"] == "there is no model 'bundeld' here; served are: bundled"
        add, limited, listed, remove = commands(GATEWAY, "unless `--no-keys` says", "`add` prints the key")
        key = user.works(add).out.strip()
        user.works(limited)
        shown = user.works(listed).out
        assert all(name in shown for name in ("anna", "script", "batch", "200000"))
        user.works(remove)
        assert "script" not in user.works(listed).out
        deadline = time.monotonic() + DEADLINE_S  # the gateway looks at the file once a second
        while "the API key is not known here" not in user.works(f"{asked} -H 'Authorization: Bearer no'").out:
            assert time.monotonic() < deadline
        assert "def " in user.works(f"{asked} -H 'Authorization: Bearer {key}'").out
    assert user.left() == []
