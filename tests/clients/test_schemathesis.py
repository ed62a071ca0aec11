"""schemathesis makes requests from /openapi.json: none has a 5xx, and each answer is as described."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.clients.asking import SCRIPTS, ask
from tests.clients.environments import python_of
from tests.support.gateways import GatewayProcess

SECONDS = 60
# A body that the schema allows may be refused for what no schema can say, such as messages in a wrong order.
# A parameter that the schema does not know may be taken.
NOT_CHECKED = "negative_data_rejection,positive_data_acceptance"
ENDLESS = "/flowedge/v1/activity"  # a stream that ends with its client


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_answers_are_as_described(asked_gateway: GatewayProcess, tmp_path: Path) -> None:
    command = [
        *(python_of("schemathesis"), "-m", "schemathesis.cli", "run", f"{asked_gateway.url}/openapi.json"),
        *("--seed", "1", "--max-time", str(SECONDS), "--request-timeout", "60", "--continue-on-failure"),
        *("--exclude-checks", NOT_CHECKED, "--exclude-path", ENDLESS),
        *("--generation-database", "none", "--no-color"),
    ]
    said = ask(asked_gateway, command, tmp_path, {"SCHEMATHESIS_HOOKS": str(SCRIPTS / "fuzz_hooks.py")})
    done = re.search(r"(\d+) generated, (\d+) passed", said)
    assert done is not None, said[-3000:]
    assert int(done[1]) == int(done[2]) > 100
    answered = sum(
        value
        for name, value in asked_gateway.samples().items()
        if name.startswith("flowedge_gateway_tokens_total") and 'direction="out"' in name
    )
    assert answered > 20, "the model has answered, too"
