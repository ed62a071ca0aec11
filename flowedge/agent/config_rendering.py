"""Documents that are made of the declarations of the settings.

Run as a module at the root of the repository, it writes those of the agent, and of the options of requests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import SecretBytes, SecretStr
from pydantic.fields import FieldInfo

from flowedge.agent.config_loading import AGENT_FORM, DELIMITER, ConfigDeclaration, EffectiveConfig
from flowedge.core.generate_options import GenerateOptions
from flowedge.core.settings_group import declared_settings
from flowedge.version import VERSION

TABLE_PLACE = re.compile(r"(?<=<!-- table of settings -->\n).*?(?=<!-- end of table -->\n)", re.DOTALL)

OPTIONS_FILE = Path("docs/options.md")


@dataclass(frozen=True)
class ConfigDocuments:
    """Which documents are made of a configuration's declarations.

    Attributes:
        subject: what the example file is about, "How this ... runs".
        example_file: a configuration file to start from.
        table_file: a Markdown document with the table of settings.
        variable: section and key of the environment variable that the example file names.
    """

    form: ConfigDeclaration[Any]
    subject: str
    example_file: Path
    table_file: Path
    variable: tuple[str, str]

    def write(self) -> None:
        """Write both."""
        self.example_file.write_text(self.example_toml(), encoding="utf-8")
        document = self.table_file.read_text(encoding="utf-8")
        self.table_file.write_text(self.with_table(document), encoding="utf-8")

    def example_toml(self) -> str:
        """Return the configuration file, with every setting commented out."""
        variable = f"{self.form.prefix}{DELIMITER.join(self.variable).upper()}"
        header = f"""\
# {self.subject}. Read from {self.form.default_file}, unless --config names another file.
# Flags take precedence over environment variables ({variable}), and those over this file.
# Each commented-out line shows a default, or an example for a setting without one.
# {self.form.command} --print-config shows the configuration in force."""
        return _sections(
            self.form, header, lambda _, key, field: f"#{key} = {toml_value(example_value(field))}"
        )

    def with_table(self, document: str) -> str:
        """Return a Markdown document in which the table of settings is the present one."""
        rows = [
            f"| `{section}.{key}` | {'' if field.default is None else f'`{toml_value(field.default)}`'} "
            f"| {field.description} |"
            for section, group in self.form.sections.items()
            for key, field in group.model_fields.items()
        ]
        table = "\n".join(["", "| Setting | Default | Meaning |", "|---|---|---|", *rows, "", ""])
        return TABLE_PLACE.sub(lambda _: table, document)


AGENT_DOCUMENTS = ConfigDocuments(
    AGENT_FORM,
    "How this device's FlowEdge agent runs",
    Path("device_agents/agent.toml"),
    Path("docs/agent.md"),
    ("agent", "port"),
)


def effective_toml(form: ConfigDeclaration[Any], effective: EffectiveConfig[Any]) -> str:
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
    return _sections(form, f"# The configuration in force of flowedge {VERSION}; file: {file}", setting)


def example_value(field: FieldInfo) -> Any:
    """Return a setting's default; the first of its examples if it has no default."""
    return field.default if field.default is not None or not field.examples else field.examples[0]


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


def _sections(
    form: ConfigDeclaration[Any], header: str, setting: Callable[[str, str, FieldInfo], str]
) -> str:
    """Return a TOML file; `setting` gives the line below a setting's description."""
    lines = [header]
    for section, group in form.sections.items():
        lines += ["", f"[{section}]"]
        for key, field in group.model_fields.items():
            lines += [f"# {field.description}", setting(section, key, field)]
    return "\n".join(lines) + "\n"


def with_options(document: str, options: type[Any] = GenerateOptions) -> str:
    """Return a Markdown document in which the table of a request's options is the present one."""
    rows = []
    for each in declared_settings(options):
        default = "" if each.default is None else f"`{json.dumps(each.default)}`"
        rows.append(f"| `{each.name}` | {default} | {each.description} |")
    table = "\n".join(["", "| Option | Default | Meaning |", "|---|---|---|", *rows, "", ""])
    return TABLE_PLACE.sub(lambda _: table, document)


if __name__ == "__main__":
    AGENT_DOCUMENTS.write()
    OPTIONS_FILE.write_text(with_options(OPTIONS_FILE.read_text(encoding="utf-8")), encoding="utf-8")
