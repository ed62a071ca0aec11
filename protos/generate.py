"""Writes flowedge/v1 from the .proto files; with --check, says whether it is current and changes nothing.

Needs the development extra (grpcio-tools). Run: python protos/generate.py [--check]
"""

from __future__ import annotations

import argparse
import filecmp
import shutil
import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

PROTOS = Path(__file__).resolve().parent
TARGET = PROTOS.parent / "flowedge" / "v1"
PACKAGE_DOC = '"""Generated from protos/flowedge/v1 by protos/generate.py; not to be edited."""\n'


def generate(directory: Path) -> Path:
    """Generates the package below `directory`; returns the folder that holds the modules."""
    sources = sorted(str(path) for path in (PROTOS / "flowedge" / "v1").glob("*.proto"))
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    arguments = ["protoc", f"-I{PROTOS}", f"-I{well_known}"]
    arguments += [f"--{kind}_out={directory}" for kind in ("python", "pyi", "grpc_python")]
    if protoc.main([*arguments, *sources]) != 0:
        raise SystemExit("protoc failed")
    package = directory / "flowedge" / "v1"
    (package / "__init__.py").write_text(PACKAGE_DOC, encoding="utf-8")
    return package


def differences(fresh: Path) -> list[str]:
    """Names of the modules that are missing, superfluous or different in the committed package."""
    wanted = {path.name for path in fresh.iterdir()}
    found = {path.name for path in TARGET.glob("*.py*")} if TARGET.is_dir() else set()
    stale = {name for name in wanted & found if not filecmp.cmp(fresh / name, TARGET / name, shallow=False)}
    return sorted(stale | (wanted ^ found))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail when flowedge/v1 is not current")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as scratch:
        fresh = generate(Path(scratch))
        changed = differences(fresh)
        if check:
            if changed:
                print(f"not current: {', '.join(changed)}; run python protos/generate.py", file=sys.stderr)
            return 1 if changed else 0
        for name in changed:
            if (fresh / name).exists():
                TARGET.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(fresh / name, TARGET / name)
            else:
                (TARGET / name).unlink()
    print(f"flowedge/v1 is current ({len(changed)} files written)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
