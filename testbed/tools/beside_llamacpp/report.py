"""The report of a run: tables in Markdown, a JSON file, and the machine they were measured on."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import torch

from flowedge_testbed.report.markdown import table
from testbed.tools.beside_llamacpp.comparisons import TABLES, Table
from testbed.tools.beside_llamacpp.figures import Figures, TableCell

_CPUINFO = Path("/proc/cpuinfo")
_TELLING = ("avx", "vnni", "amx", "asimd", "sve", "i8mm", "bf16", "fma", "f16c")


def describe_machine() -> dict[str, object]:
    """Return the processor, its flags for products, the load, and the versions that compute."""
    fields = _cpu_fields()
    flags = fields.get("flags", fields.get("Features", "")).split()
    return {
        "processor": fields.get("model name", platform.machine()),
        "cores": os.cpu_count(),
        "flags": sorted(flag for flag in flags if any(word in flag for word in _TELLING)),
        "kernels of torch": torch.backends.cpu.get_cpu_capability(),
        "load average": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("flowedge", "torch", "transformers", "bitsandbytes")},
    }


def _cpu_fields() -> dict[str, str]:
    """Return the fields of the first processor; none where the system does not tell."""
    if not _CPUINFO.is_file():
        return {}
    lines = _CPUINFO.read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    pairs = (line.partition(":") for line in lines)
    return {name.strip(): value.strip() for name, _, value in pairs}


def markdown(figures: Figures) -> str:
    """Return every table that has figures, each cell as best / median."""
    parts = [_section(each, figures) for each in TABLES]
    return "\n\n".join(part for part in parts if part)


def write_json(path: Path, figures: Figures, about: Mapping[str, object]) -> None:
    """Write all values with what they were measured on, in one step."""
    partial = path.with_suffix(".partial")
    content = {**about, "figures": figures.to_json()}
    partial.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)


def _section(of: Table, figures: Figures) -> str:
    cells = [cell for cell in figures.values if cell.table == of.name]
    lines = list(dict.fromkeys(cell.line for cell in cells))
    columns = list(dict.fromkeys(cell.column for cell in cells))
    if not cells:
        return ""
    rows = [
        [line, *(_entry(of, figures, TableCell(of.name, line, column)) for column in columns)]
        for line in lines
    ]
    return f"{of.title}; {of.unit}, best / median:\n\n{table(['', *columns], rows)}"


def _entry(of: Table, figures: Figures, cell: TableCell) -> str:
    best, median = figures.best(cell, of.better), figures.median(cell)
    return "" if best is None or median is None else f"{best:.{of.digits}f} / {median:.{of.digits}f}"
