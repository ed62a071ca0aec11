"""Documents that are made of the declarations of the settings.

Run as a module at the root of the repository, it writes EXAMPLE_FILE and the table of TABLE_FILE.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import SecretBytes, SecretStr
from pydantic.fields import FieldInfo

from flowedge.agent.config.agent_config import SECTIONS
from flowedge.agent.config.loading import DEFAULT_FILE, EffectiveConfig
from flowedge.version import VERSION

EXAMPLE_FILE = Path("device_agents/agent.toml")
EXAMPLE_HEADER = f"""\
# How this device's FlowEdge agent runs. Read from {DEFAULT_FILE}, unless --config names another file.
# Flags take precedence over environment variables (FLOWEDGE_AGENT__PORT), and those over this file.
# Each commented-out line shows a default, or an example for a setting without one.
# flowedge agent --print-config shows the configuration in force."""
TABLE_FILE = Path("docs/agent.md")
TABLE_PLACE = re.compile(r"(?<=<!-- table of settings -->\n).*?(?=<!-- end of table -->\n)", re.DOTALL)


def effective_toml(effective: EffectiveConfig) -> str:
    """Return the configuration in force as TOML, with the origin of each value; secrets are left out."""

    def setting(section: str, key: str, _: FieldInfo) -> str:
        value = getattr(getattr(effective.config, section), key)
        if value is None:
            text = f"# {key} is not set"
        elif isinstance(value, SecretStr | SecretBytes):
            text = f"# {key} is set and not shown"
        else:
            text = f"{key} = {toml_value(value)}"
        return f"{text}  # {effective.origins.get((section, key), 'default')}"

    file = effective.file or "none"
    return _sections(f"# The configuration in force of flowedge {VERSION}; file: {file}", setting)


def example_toml() -> str:
    """Return a configuration file to start from, with every setting commented out."""
    return _sections(EXAMPLE_HEADER, lambda _, key, field: f"#{key} = {toml_value(example_value(field))}")


def example_value(field: FieldInfo) -> Any:
    """Return a setting's default; the first of its examples if it has no default."""
    return field.default if field.default is not None or not field.examples else field.examples[0]


def with_table(document: str) -> str:
    """Return a Markdown document in which the table of settings is the present one."""
    rows = [
        f"| `{section}.{key}` | {'' if field.default is None else f'`{toml_value(field.default)}`'} "
        f"| {field.description} |"
        for section, group in SECTIONS.items()
        for key, field in group.model_fields.items()
    ]
    table = "\n".join(["", "| Setting | Default | Meaning |", "|---|---|---|", *rows, "", ""])
    return TABLE_PLACE.sub(lambda _: table, document)


def toml_value(value: Any) -> str:
    """Return a text, number, truth value, path or sequence of them as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str | Path):
        # TOML's basic strings are JSON's, except for DEL, which JSON leaves as it is.
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007F")
    if isinstance(value, Sequence):
        return f"[{', '.join(toml_value(item) for item in value)}]"
    raise TypeError(f"a setting of type {type(value).__name__} cannot be written as TOML")


def _sections(header: str, setting: Callable[[str, str, FieldInfo], str]) -> str:
    """Return a TOML file; `setting` gives the line below a setting's description."""
    lines = [header]
    for section, group in SECTIONS.items():
        lines += ["", f"[{section}]"]
        for key, field in group.model_fields.items():
            lines += [f"# {field.description}", setting(section, key, field)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    EXAMPLE_FILE.write_text(example_toml(), encoding="utf-8")
    TABLE_FILE.write_text(with_table(TABLE_FILE.read_text(encoding="utf-8")), encoding="utf-8")
