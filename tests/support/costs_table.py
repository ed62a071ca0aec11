"""Print what a run of the tests cost, by folder and by kind: `python -m tests.support.costs_table FILE`.

`make test COSTS=FILE` writes the file, as does `make proof`; costs.py has the kinds.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

KINDS = ("starts", "loading", "computing", "waiting", "browser", "systemd")
COLUMNS = ("processor", "wall", *KINDS)
BY: dict[str, Callable[[str], str]] = {
    "folder": lambda test: "/".join(test.partition("::")[0].split("/")[:2]),
    "file": lambda test: test.partition("::")[0],
    "test": lambda test: test.partition("[")[0],
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.support.costs_table", description=__doc__)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--by", choices=tuple(BY), default="folder")
    parser.add_argument("--rows", type=int, default=60, help="the costliest only")
    options = parser.parse_args()
    lines = [line for file in options.files for line in file.read_text(encoding="utf-8").splitlines()]
    print("\n".join(table([json.loads(line) for line in lines], options.by, options.rows)))


def table(tests: Sequence[Mapping[str, object]], by: str, rows: int) -> list[str]:
    """Return a table in Markdown of seconds: the sum, and the costliest rows by processor time."""
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    for test in tests:
        costs = {name: value for name, value in test.items() if isinstance(value, float)}
        for row in ("all", BY[by](str(test["test"]))):
            sums[row].update({"cases": 1, **costs})
    costliest = sorted(sums, key=lambda row: (row != "all", -sums[row]["processor"]))[: rows + 1]
    return [
        f"| {by} | cases | {' | '.join(COLUMNS)} |",
        f"|---|{'---:|' * (len(COLUMNS) + 1)}",
        *(
            f"| {row} | {sums[row]['cases']} | {' | '.join(f'{sums[row][name]:.0f}' for name in COLUMNS)} |"
            for row in costliest
        ),
    ]


if __name__ == "__main__":
    main()
