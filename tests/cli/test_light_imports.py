"""What a command does not need is not imported: help is quick, and a client needs neither torch nor numpy.

All commands run in one process that nothing was imported in before, those that may import the least first.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NamedTuple

from flowedge.cli.main import COMMANDS
from tests.support.commands import run_command
from tests.support.free_ports import free_port

COMPUTES = {"torch", "transformers", "bitsandbytes", "numpy", "tokenizers", "safetensors", "accelerate"}
SERVES = {"fastapi", "uvicorn", "llguidance", "prompt_toolkit", "huggingface_hub", "yaml"}
CALLS = {"grpc", "google.protobuf", "zeroconf", "cryptography", "jinja2", "rich.console"}
SETTINGS = {"pydantic_settings", "psutil"}
OF_SETTINGS = ("agent", "serve")  # the flags of these commands are made of settings

RUN = """
import json, sys
from flowedge.cli.main import run
told = []
for arguments, forbidden in json.loads(sys.argv[1]):
    code = run(arguments)
    told.append([" ".join(arguments), code, [name for name in forbidden if name in sys.modules]])
with open(sys.argv[2], "w") as file:
    json.dump(told, file)
"""


class Step(NamedTuple):
    arguments: list[str]
    code: int
    forbidden: set[str]


def steps(folder: Path) -> list[Step]:
    nobody = f"127.0.0.1:{free_port()}"
    asked = ["--peers", nobody, "--prompt", "Hi"]
    everything = COMPUTES | SERVES | CALLS | SETTINGS
    own = [name for name in COMMANDS if name not in (*OF_SETTINGS, "inspect", "plan")]
    return [
        Step(["--help"], 0, everything | {"pydantic", "flowedge.cli.commands"}),
        Step([], 0, everything),
        Step(["--version"], 0, everything),
        *(Step([name, "--help"], 0, everything) for name in own),
        *(Step([name, "--help"], 0, everything - {"psutil"}) for name in ("inspect", "plan")),
        Step(["magic"], 2, everything - {"psutil"}),
        Step(["generate", "--max-new-tokens", "many"], 2, everything - {"psutil"}),
        Step(["serve", "--help"], 0, COMPUTES | SERVES | {"grpc", "zeroconf", "rich.console"}),
        Step(["agent", "--print-config"], 0, COMPUTES | SERVES | {"zeroconf", "jinja2"}),
        Step(["cluster", "init", "home", "--dir", str(folder)], 0, COMPUTES | SERVES | {"zeroconf"}),
        Step(["join", "--token-file", str(folder / "none")], 2, COMPUTES | SERVES | {"zeroconf"}),
        Step(["release", nobody], 1, COMPUTES | SERVES | {"zeroconf"}),
        Step(["devices", "--peers", nobody], 0, COMPUTES | SERVES | {"zeroconf", "jinja2"}),
        Step(
            ["generate", "--strategy", "magic", "--prompt", "Hi"],
            2,
            COMPUTES | SERVES | {"zeroconf", "jinja2"},
        ),
        Step(["generate", *asked], 1, COMPUTES | SERVES | {"zeroconf", "jinja2"}),
        Step(["devices", "--timeout", "0.1"], 0, COMPUTES | SERVES | {"jinja2"}),
        Step(["chat", "--peers", nobody], 1, COMPUTES | SERVES | {"jinja2"}),
        Step(["models", "--local", "--cache-dir", str(folder / "cache")], 0, COMPUTES | SERVES),
    ]


def test_a_command_imports_what_it_needs_alone(tmp_path: Path) -> None:
    planned, told = steps(tmp_path), tmp_path / "told.json"
    given = json.dumps([(step.arguments, sorted(step.forbidden)) for step in planned])
    command = [sys.executable, "-c", RUN, given, str(told)]
    done = run_command(command, timeout=300, check=True)
    assert json.loads(told.read_text()) == [[" ".join(step.arguments), step.code, []] for step in planned]
    listed = done.stdout.partition("FlowEdge runs")[0]
    assert all(f"  {name} " in listed for name in COMMANDS)
