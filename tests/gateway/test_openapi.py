"""/openapi.json: what it says of the endpoints is what they do."""

from __future__ import annotations

import re
from typing import Any

import pytest

from flowedge.gateway.openapi import BODIES
from tests.gateway.application import GatewayHere

HELLO = [{"role": "user", "content": "Hello"}]
WORKING: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": HELLO, "max_tokens": 1},
    "/v1/completions": {"prompt": "def", "max_tokens": 1},
    "/v1/responses": {"input": "Hello", "max_output_tokens": 16},
    "/api/chat": {"messages": HELLO, "options": {"num_predict": 1}, "stream": False},
    "/api/generate": {"prompt": "def", "options": {"num_predict": 1}, "stream": False},
    "/api/show": {},
}


@pytest.fixture
def document(served: GatewayHere) -> dict[str, Any]:
    with served.client() as client:
        found: dict[str, Any] = client.get("/openapi.json").raise_for_status().json()
    return found


def resolved(document: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    return (
        document["components"]["schemas"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    )


def json_schema(document: dict[str, Any], response: dict[str, Any]) -> dict[str, Any]:
    return resolved(document, response["content"]["application/json"]["schema"])


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1")
    names = set(re.findall(r"#/components/schemas/([\w.]+)", str(document)))
    assert names >= {"ChatCompletionBody", "ChatCompletionBody.MessageBody", "Error"}
    assert names <= document["components"]["schemas"].keys()
    assert "#/$defs" not in str(document)


def test_every_operation_is_there(served: GatewayHere, document: dict[str, Any]) -> None:
    posted = {path for path, operations in document["paths"].items() if "post" in operations}
    assert set(BODIES) <= posted
    with served.client() as client:
        for path, operations in document["paths"].items():
            answer = client.put(path.replace("{", "").replace("}", ""))
            assert answer.status_code == 405
            allowed = {method.lower() for method in answer.headers["allow"].split(", ")} - {"head"}
            assert allowed == operations.keys(), path


@pytest.mark.parametrize("path", list(WORKING))
def test_what_is_posted_and_answered(served: GatewayHere, document: dict[str, Any], path: str) -> None:
    operation = document["paths"][path]["post"]
    taken = json_schema(document, operation["requestBody"])
    body = {"model": "bundled", **WORKING[path]}
    assert body.keys() <= taken["properties"].keys()
    assert body.keys() >= set(taken.get("required", ()))
    with served.client() as client:
        for changed in (body, {**dict.fromkeys(set(taken["properties"]) - body.keys()), **body}):
            answer = client.post(path, json=changed)  # nulls are as if they were left out
            assert answer.status_code == 200, answer.text
            described = operation["responses"]["200"]["content"]
            assert answer.headers["content-type"].partition(";")[0] in described
            assert answer.json().keys() >= set(
                json_schema(document, operation["responses"]["200"])["required"]
            )
        refused = client.post(path, json={**body, "model": 7})
    assert refused.status_code == 400
    assert refused.json().keys() == set(json_schema(document, operation["responses"]["default"])["required"])
    off = {name: each["enum"] for name, each in taken["properties"].items() if "enum" in each}
    with served.client() as client:
        for place in (0, -1):
            values = {name: accepted[place] for name, accepted in off.items()}
            assert client.post(path, json={**body, **values}).status_code == 200, values
        for name in off:
            assert client.post(path, json={**body, name: "on"}).status_code == 400, name


def test_what_can_be_got(served: GatewayHere, document: dict[str, Any]) -> None:
    with served.client() as client:
        for path, operations in document["paths"].items():
            if "get" not in operations or path == "/flowedge/v1/activity":
                continue
            answer = client.get(path.format(name="bundled", path="app.js"))
            response = operations["get"]["responses"][str(answer.status_code)]
            media_type = answer.headers["content-type"].partition(";")[0]
            any_of = {media_type, f"{media_type.partition('/')[0]}/*", "*/*"}
            assert any_of & response["content"].keys(), path
            if media_type == "application/json":
                assert answer.json().keys() >= set(json_schema(document, response)["required"]), path
