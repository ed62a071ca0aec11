"""Run testbed/tools/check_products.py on an emulated ARM64 processor: `python -m testbed.tools.arm64 DIR`.

It needs qemu-user-static, apt-get and dpkg-deb of a Debian x86-64 machine. Debian's Python for ARM64 and the
wheels of torch and numpy are downloaded and unpacked into DIR, about 600 MB, and nothing is installed. The
version of torch is the latest whose ARM64 wheel is built for the CPU alone.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

TORCH = "2.10.0"
PYTHON = "3.11"  # of Debian 12
WHEELS = (
    *("numpy", "typing_extensions", "sympy", "mpmath", "networkx"),
    *("jinja2", "markupsafe", "filelock", "fsspec"),
)
PACKAGES = (
    *("python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib", "libc6", "libstdc++6"),
    *("libgcc-s1", "zlib1g", "libexpat1", "libssl3", "libffi8", "libgomp1", "libbz2-1.0", "liblzma5"),
    *("libsqlite3-0", "libuuid1", "libcrypt1"),
)
REPOSITORY = Path(__file__).parents[3]
_APT_SOURCE = (
    "deb [arch=arm64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian "
    "bookworm main\n"
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, help="where the downloads are unpacked")
    directory = parser.parse_args().directory.resolve()
    root, site = directory / "root", directory / "site"
    if not root.is_dir():
        _unpack_python(directory, root)
    if not site.is_dir():
        _unpack_wheels(directory, site)
    variables = {
        "PYTHONHOME": str(root / "usr"),
        "PYTHONPATH": os.pathsep.join((str(site), str(REPOSITORY))),
        "OMP_NUM_THREADS": "1",
    }
    settings = [part for name, value in variables.items() for part in ("-E", f"{name}={value}")]
    interpreter = root / "usr" / "bin" / f"python{PYTHON}"
    script = REPOSITORY / "testbed" / "tools" / "check_products.py"
    _run(["qemu-aarch64-static", "-L", str(root), *settings, str(interpreter), str(script)])


def _unpack_python(directory: Path, root: Path) -> None:
    lists, archives, debs = (directory / name for name in ("apt/lists", "apt/cache", "debs"))
    for made in (lists / "partial", archives / "archives" / "partial", debs):
        made.mkdir(parents=True, exist_ok=True)
    source = directory / "apt" / "sources.list"
    source.write_text(_APT_SOURCE, encoding="utf-8")
    values = {
        "Dir::State::lists": lists,
        "Dir::State::status": "/dev/null",
        "Dir::Cache": archives,
        "Dir::Etc::sourcelist": source,
        "Dir::Etc::sourceparts": "/dev/null",
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
    }
    options = [part for name, value in values.items() for part in ("-o", f"{name}={value}")]
    _run(["apt-get", *options, "-q", "update"])
    _run(["apt-get", *options, "-q", "download", *PACKAGES], debs)
    unpacked = root.with_suffix(".partial")
    for package in sorted(debs.glob("*.deb")):
        _run(["dpkg-deb", "-x", str(package), str(unpacked)])
    unpacked.rename(root)


def _unpack_wheels(directory: Path, site: Path) -> None:
    wheels, unpacked = directory / "wheels", site.with_suffix(".partial")
    platforms = [f"--platform=manylinux_2_{minor}_aarch64" for minor in (28, 27, 17)]
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", *platforms]
    _run([*pip, f"--python-version={PYTHON}", "-d", str(wheels), f"torch=={TORCH}", *WHEELS])
    for wheel in sorted(wheels.glob("*.whl")):
        _run([sys.executable, "-m", "zipfile", "-e", str(wheel), str(unpacked)])
    unpacked.rename(site)


def _run(command: Sequence[str], directory: Path | None = None) -> None:
    done = subprocess.run(command, cwd=directory, check=False)
    if done.returncode:
        raise SystemExit(f"{command[0]} ended with exit status {done.returncode}")


if __name__ == "__main__":
    main()
