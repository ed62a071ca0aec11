"""The page before a model without a chat template."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from flowedge.client.assembly import PipelineSpec, assemble
from flowedge.models.checkpoint.model_source import BUNDLED_PATH
from tests.support.browser import browsing
from tests.support.gateways import GatewayProcess
from tests.support.processes import agents, running


@pytest.mark.proof
def test_a_base_model_is_said_to_be_one(tmp_path: Path) -> None:
    model = tmp_path / "base"
    shutil.copytree(BUNDLED_PATH / "model", model)
    (model / "chat_template.jinja").unlink()
    with agents(["base-d0", "base-v1"]) as (draft_node, stage):
        spec = PipelineSpec(
            draft_node=draft_node.address, stages=(stage.address,), model=str(model), drafter="ngram"
        )
        assemble(spec, lambda *_: None)
        gateway = GatewayProcess(peers=[draft_node.address])
        with running(gateway), browsing() as browser:
            browser.open(f"{gateway.url}/#chat")
            browser.wait(lambda: "it is a base model" in browser.text(".base-model"), "the page says so")
