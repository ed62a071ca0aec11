"""What is said when the hub gives no model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest

from flowedge.core.errors import CheckpointError
from flowedge.models.checkpoint.model_source import model_directory
from tests.support.hub import hub


@pytest.fixture
def online(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with hub({}, gated={"owner/gated"}) as endpoint:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", endpoint)
        yield


@pytest.mark.usefixtures("online")
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("owner/gated", "accept the licence .* `hf auth login`"),
        ("owner/nothing", "has no model of this name"),
    ],
)
def test_a_refusal_says_what_to_do(name: str, reason: str) -> None:
    with pytest.raises(CheckpointError, match=f"^{name}: .*{reason}"):
        model_directory(name)


def test_without_a_network_the_reason_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(
        CheckpointError, match=r"Connection refused \(ConnectError\); without a network"
    ) as raised:
        model_directory("owner/model")
    assert "\n" not in str(raised.value)
