"""A setting is added in one line: a process whose declarations have one more has it everywhere."""

from __future__ import annotations

import json
import sys

from tests.support.commands import run_command

ADDED = """
import contextlib, importlib.util, io, json, sys
from pathlib import Path

def with_line(name, before, line):
    "Import a module whose source has one line more."
    spec = importlib.util.find_spec(name)
    source = Path(spec.origin).read_text(encoding="utf-8")
    assert before in source
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    exec(compile(source.replace(before, line + before, 1), spec.origin, "exec"), module.__dict__)

pages = '    pages: Literal["many", "few"] = setting("many", "Pages of it.")\\n'
warmth = '    warmth: float = option(0.5, "Warmth of it.", least=0, most=1)\\n'
with_line("flowedge.core.pipeline_config", "    kv: ", pages)
with_line("flowedge.core.generate_options", "    top_p: ", warmth)

from flowedge.agent.agent_config import AgentConfig
from flowedge.agent.config_rendering import AGENT_DOCUMENTS, OPTIONS_FILE, with_options
from flowedge.cli.main import run
from flowedge.client.assembly import PipelineSpec
from flowedge.client.device import Device
from flowedge.client.request import chosen_options, prompt_request
from flowedge.core.generate_options import GenerateOptions
from flowedge.core.pipeline_config import PipelineConfig
from flowedge.gateway.pipelines.file import read_pipelines
from flowedge.v1 import agent_pb2 as pb
from flowedge.version import PROTOCOL_VERSION

def said(*arguments):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert run(list(arguments)) == 0
    return out.getvalue()

folder = Path(sys.argv[1])
toml, pipelines = folder / "agent.toml", folder / "pipelines.toml"
toml.write_text('[pipeline]\\npages = "few"\\n')
pipelines.write_text('[[pipelines]]\\nagents = ["a:1", "b:1"]\\npages = "few"\\n')
spec = PipelineSpec(draft_node="a:1", stages=("b:1",), drafter="none", pages="few")
sent = PipelineConfig.from_json(spec.to_json())
echoed = pb.Device(config=spec.to_json(), stage_addresses=["b:1"], protocol_version=PROTOCOL_VERSION)
device = Device.from_proto(echoed)
asked = GenerateOptions.from_json(prompt_request(chosen_options(None, {"warmth": 1}), "Hi").options)
documents = [
    AGENT_DOCUMENTS.with_table(Path("docs/agent.md").read_text()), with_options(OPTIONS_FILE.read_text())
]
print(json.dumps({
    "help": [flag in said(command, "--help") for command in ("generate", "serve")
             for flag in ("--pages many|few", "Pages of it.")],
    "option of a request": "--warmth NUMBER" in said("generate", "--help"),
    "agent": 'pages = "few"' in said("agent", "--config", str(toml), "--print-config"),
    "environment": AgentConfig.model_validate({"pipeline": {"pages": "few"}}).pipeline.pages,
    "gateway": read_pipelines(pipelines)[0].pages,
    "wire": [sent.pages, asked.warmth],
    "echo": [device.pages, spec.is_served_by(device), spec.changed(pages="many").is_served_by(device)],
    "documents": ["`pipeline.pages` | `\\"many\\"` | Pages of it." in documents[0],
                  "`warmth` | `0.5` | Warmth of it." in documents[1]],
}))
"""


def test_a_setting_of_a_pipeline_and_an_option_of_a_request_take_a_line_each(tmp_path: object) -> None:
    command = [sys.executable, "-c", ADDED, str(tmp_path)]
    done = run_command(command)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "help": [True] * 4,
        "option of a request": True,
        "agent": True,
        "environment": "few",
        "gateway": "few",
        "wire": ["few", 1.0],
        "echo": ["few", True, False],
        "documents": [True, True],
    }
