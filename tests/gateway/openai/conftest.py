"""The official client, before the application of a gateway."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from openai import OpenAI

from tests.gateway.application import GatewayHere


@pytest.fixture
def official(served: GatewayHere) -> Iterator[OpenAI]:
    """OpenAI's client, which does not ask again after an error."""
    url = f"{served.url}/v1"
    with OpenAI(base_url=url, api_key="none", max_retries=0, http_client=served.client()) as client:
        yield client
