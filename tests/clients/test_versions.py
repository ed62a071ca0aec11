"""docs/clients.md names the clients that are tested, with the versions that they are pinned to."""

from __future__ import annotations

import json
import re

from tests.clients.environments import NPM, PINS

PAGE = PINS.parents[2] / "docs" / "clients.md"
PACKAGES = {"lm-eval": ("lm_eval",), "llm": ("llm", "llm-ollama"), "pydantic-ai": ("pydantic-ai-slim",)}
"""The packages of a file of pins that the page names, where they are not named as the file is."""


def pinned() -> dict[str, str]:
    """Return the versions of all clients by the names of their packages."""
    found: dict[str, str] = json.loads((NPM / "package.json").read_text(encoding="utf-8"))["dependencies"]
    del found["zod"]  # of the script, which describes schemas by it
    for file in PINS.glob("*.txt"):
        versions = dict(re.findall(r"^([\w.-]+)==(\S+)$", file.read_text(encoding="utf-8"), re.MULTILINE))
        found |= {name: versions[name] for name in PACKAGES.get(file.stem, (file.stem,))}
    return found


def test_the_page_has_the_versions_of_the_pins() -> None:
    rows = re.findall(r"^\| (\S+) \| (\S+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    named = {name: version for name, version in rows if name not in ("Client", "java.net.http.HttpClient")}
    assert named == pinned()
