"""Prints the lines of a lock file for packages that FlowEdge needs and the environment does not have yet.

Its argument is the lock file. It is run with the environment's interpreter, again and again: the packages
that have come tell what they need themselves.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from pip._vendor.packaging.requirements import Requirement


def missing(lines: dict[str, str]) -> list[str]:
    """Return the lines of packages that are not there, or in another version.

    Args:
        lines: of the lock file, by the canonical name of the package.
    """
    found, seen = set(), set()
    wanted = [("flowedge", "")]
    while wanted:
        name, extra = wanted.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        try:
            present = distribution(name)
        except PackageNotFoundError:
            found.add(name)
            continue
        if name in lines and not lines[name].startswith(f"{lines[name].split('==')[0]}=={present.version} "):
            found.add(name)
        for text in present.requires or ():
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                wanted += [(canonical(needed.name), each) for each in ("", *needed.extras)]
    unknown = sorted(found - lines.keys())
    if unknown:
        raise SystemExit(f"the lock file has no {', '.join(unknown)}")
    return [lines[name] for name in sorted(found)]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    locked = [line for line in Path(sys.argv[1]).read_text(encoding="ascii").splitlines() if "==" in line]
    for line in missing({canonical(line.split("==")[0]): line for line in locked}):
        print(line)
