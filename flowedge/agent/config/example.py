"""The configuration file to start from; run as a module, it prints device_agents/agent.toml."""

from __future__ import annotations

from typing import Any

from pydantic.fields import FieldInfo

from flowedge.agent.config.agent_config import section_fields
from flowedge.agent.config.loading import DEFAULT_FILE
from flowedge.agent.config.rendering import toml_value

HEADER = f"""\
# How this device's FlowEdge agent runs. Read from {DEFAULT_FILE}, unless --config names another file.
# Flags go before environment variables (FLOWEDGE_AGENT__PORT), these before this file.
# What is commented out is a default, or an example of a setting that has none.
# flowedge agent --print-config shows what is in force.
"""


def example_toml() -> str:
    """A file with every setting commented out, to start from."""
    lines = [HEADER.rstrip()]
    for section, model in section_fields().items():
        lines += ["", f"[{section}]"]
        for key, field in model.model_fields.items():
            lines += [f"# {field.description}", f"#{key} = {toml_value(example_value(field))}"]
    return "\n".join(lines) + "\n"


def example_value(field: FieldInfo) -> Any:
    """A setting's default; the first of its examples where it has none."""
    return field.default if field.default is not None or not field.examples else field.examples[0]


if __name__ == "__main__":
    print(example_toml(), end="")
