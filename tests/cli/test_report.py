"""The form of `--json`, which programs read."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from flowedge.cli.pipelines.request import PipelineRequest
from flowedge.cli.prompt_answer import PromptAnswer, Verdict
from flowedge.cli.report import JsonReport
from flowedge.client.transcript import typed_statistics
from flowedge.core.errors import BadRequestError, FlowEdgeError, ProtocolError
from flowedge.core.generate_options import GenerateOptions
from flowedge.core.messages import StageReport
from flowedge.core.request import DecodeCounters
from flowedge.engine.statistics import RequestStatistics, StageUse


def use(device: str) -> StageUse:
    return StageUse(StageReport(device, 4, 3, 2, 1, 5, 0.25, 77), 0.5)


STATISTICS = RequestStatistics(
    session="s",
    strategy="auto",
    seed=5,
    finish_reason="length",
    prompt_tokens=2,
    new_tokens=3,
    ttft_s=0.1,
    decode_s=0.2,
    total_s=0.5,
    tokens_per_s=10.0,
    itl_s=(0.1, 0.1),
    counters=DecodeCounters((1, 2), (3,), 6, 1, 2, 7, 8, (1, 0), 4),
    draft_node=use("d0"),
    stages=(use("v1"), use("v2")),
    link_bytes={"d0": 9, "express": 1},
    verification="last-stage",
    middles=(use("m1"),),
)
VERDICT = Verdict(3, 1, 0.5, 0.25, 256, None)


def entry(statistics: dict[str, Any], verdict: Verdict | None = VERDICT) -> Any:
    request = PipelineRequest(
        model="m", drafter=("bundled", "ngram"), peers=("a:1", "b:1", "c:1"), middles=("x",)
    )
    report = JsonReport(request, GenerateOptions(seed=5), None)
    typed = typed_statistics(json.loads(json.dumps(statistics)))
    report.answers.append(PromptAnswer("Hi", (1, 2), [7, 8, 9], "abc", 5, "length", typed, 0.15, verdict))
    return json.loads(json.dumps(report.content()))


def work(device: str) -> dict[str, Any]:
    return {
        "device": device,
        "use": 0.5,
        "rows_computed": 3,
        "rows_trimmed": 2,
        "rows_wasted": 1,
        "segments": 4,
        "aborted": 5,
        "busy_s": 0.25,
    }


def test_an_entry_has_the_documented_fields() -> None:
    content = entry(asdict(STATISTICS))
    assert content["prompts"] == [
        {
            "prompt": "Hi",
            "prompt_tokens": 2,
            "token_ids": [7, 8, 9],
            "text": "abc",
            "seed": 5,
            "finish_reason": "length",
            "rounds": 1,
            "queue_s": 0.0,
            "ttft_s": 0.1,
            "decode_s": 0.2,
            "total_s": 0.5,
            "tokens_per_s": 10.0,
            "itl_s": [0.1, 0.1],
            "accepted_per_segment": [1, 2],
            "accepted_per_round": [3],
            "segments": 6,
            "empty_segments": 1,
            "prunes": 2,
            "draft_layers": 7,
            "plain_tokens_per_s": 0.0,
            "draft_rows_sent": 8,
            "reused_rows": 4,
            "draft_node": work("d0"),
            "stages": [work("v1"), work("v2")],
            "link_bytes": {"d0": 9, "express": 1},
            "verification": "last-stage",
            "middles": [work("m1")],
            "rollbacks": [1, 0],
            "client_ttft_s": 0.15,
            "check": {
                "tokens": 3,
                "ties": 1,
                "tolerance": 0.5,
                "measured": 0.25,
                "measured_tokens": 256,
                "complaint": None,
                "passed": True,
            },
        }
    ]
    assert entry(asdict(STATISTICS), verdict=None)["prompts"][0]["check"] is None


def test_the_settings_are_those_asked_for() -> None:
    settings = entry(asdict(STATISTICS))["settings"]
    assert settings == {
        "model": "m",
        "drafter": "bundled+ngram",
        "answer_store": 0,
        "quant": "none",
        "draft_quant": "auto",
        "draft_vocabulary": "auto",
        "draft_form": {"quant": "auto", "vocabulary": "auto", "saves_memory": False},
        "verification": "auto",
        "tokenizer": "",
        "split": None,
        "rebalance": "idle",
        "stages": None,
        "peers": ["a:1", "b:1", "c:1"],
        "discover_s": 3.0,
        "wait_s": 120.0,
        "limit_s": None,
        "middles": ["x"],
        "strategy": "auto",
        "max_new_tokens": 256,
        "temperature": None,
        "top_p": None,
        "top_k": None,
        "seed": 5,
        "dtype": "auto",
        "kv": "native",
        "exact": "auto",
        "stop": [],
        "strategy_options": {},
        "noise": "shared",
        "priority": "normal",
        "tenant": "",
        "concurrency": 1,
        "ignore_eos": False,
        "system": None,
        "fit_context": False,
        "echo": False,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logit_bias": {},
        "repetition_penalty": 1.0,
        "min_p": 0.0,
        "min_tokens": 0,
        "logprobs": None,
        "grammar": None,
        "draft_node": None,
        "stage_addresses": [],
    }


@pytest.mark.parametrize("change", [{"ttft_s": "soon"}, {"counters": 3}, {"stages": 3}, {"ttft_s": -1}])
def test_statistics_that_cannot_be_read_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError, match="sent statistics with"):
        entry(asdict(STATISTICS) | change)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_full_disk_is_a_failure_not_wrong_usage() -> None:
    report = JsonReport(PipelineRequest(model="m", drafter=()), GenerateOptions(), Path("/dev/full"))
    with pytest.raises(FlowEdgeError, match="--json /dev/full: cannot be written: No space left") as caught:
        report.write()
    assert not isinstance(caught.value, BadRequestError)
