"""The official client, before the gateway of the whole test run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from openai import OpenAI

from tests.support.gateways import ANSWER_S, GatewayProcess


@pytest.fixture
def official(gateway4: GatewayProcess) -> Iterator[OpenAI]:
    """OpenAI's client, which does not ask again after an error."""
    with OpenAI(base_url=f"{gateway4.url}/v1", api_key="none", max_retries=0, timeout=ANSWER_S) as client:
        yield client
