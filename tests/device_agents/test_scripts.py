"""The decisions of install.sh, and its messages when it cannot go on."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

AGENTS = Path(__file__).parents[2] / "device_agents"
CPU = "https://download.pytorch.org/whl/cpu"
JETPACK6 = "https://pypi.jetson-ai-lab.io/jp6/cu126"
JETPACK7 = "https://pypi.jetson-ai-lab.io/sbsa/cu130"
SOURCES = f"source {AGENTS}/lib/common.sh; source {AGENTS}/lib/torch.sh"


def bash(command: str, root: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"{SOURCES}; {command}"],
        env={**os.environ, "ROOT": str(root)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def make_device(root: Path, *, model: str | None = None, release: str | None = None) -> Path:
    """Write the files by which a device identifies itself, below a root directory."""
    if model is not None:
        (root / "proc/device-tree").mkdir(parents=True)
        (root / "proc/device-tree/model").write_bytes(model.encode() + b"\0")
    if release is not None:
        (root / "etc").mkdir()
        (root / "etc/nv_tegra_release").write_text(
            f"# {release} (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64\n"
        )
    return root


@pytest.mark.parametrize(
    ("model", "release", "index"),
    [
        (None, None, CPU),
        ("Raspberry Pi 5 Model B Rev 1.0", None, CPU),
        ("NVIDIA Jetson Orin Nano Developer Kit", "R36", JETPACK6),
        ("NVIDIA Jetson AGX Orin Developer Kit", "R38", JETPACK7),
    ],
)
def test_torch_is_that_of_the_device(
    tmp_path: Path, model: str | None, release: str | None, index: str
) -> None:
    done = bash("torch_index", make_device(tmp_path, model=model, release=release))
    assert (done.returncode, done.stdout.strip()) == (0, index), done.stderr


@pytest.mark.parametrize(
    ("release", "complaint"), [("R35", "flash JetPack 6"), (None, "does not say which JetPack")]
)
def test_a_jetson_that_is_too_old_or_unknown_is_refused(
    tmp_path: Path, release: str | None, complaint: str
) -> None:
    root = make_device(tmp_path, model="NVIDIA Jetson Orin NX", release=release)
    done = bash('index=$(torch_index); echo "went on"', root)
    assert done.returncode == 1
    assert complaint in done.stderr and "went on" not in done.stdout


def test_the_cpu_build_is_asked_for_by_its_version(tmp_path: Path) -> None:
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("tokenizers==0.1\ntorch==2.13.0\n")
    both = "; ".join(f"torch_requirement {index} {constraints}" for index in (CPU, JETPACK6))
    asked = bash(both, tmp_path)
    assert asked.stdout.split() == ["torch==2.13.0+cpu", "torch>=2.6"]


def test_another_index_is_asked_alone(tmp_path: Path) -> None:
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("torch==2.13.0\n")
    done = bash(f"get_torch {JETPACK6} {constraints} echo pip install", tmp_path)
    assert done.stdout.strip() == f"pip install --no-deps --index-url {JETPACK6} torch>=2.6"


@pytest.mark.parametrize(
    ("script", "arguments", "complaint"),
    [
        ("install.sh", ["--offline"], "--offline needs a value"),
        ("install.sh", ["--sideways"], "unknown argument --sideways"),
        ("uninstall.sh", ["everything"], "unknown argument everything"),
        ("make-wheels.sh", [], "DIR is missing"),
        ("make-wheels.sh", ["--python", "/bin/false", "somewhere"], "is needed: name one with --python"),
    ],
)
def test_wrong_arguments_are_named(script: str, arguments: list[str], complaint: str) -> None:
    done = subprocess.run(
        [AGENTS / script, *arguments], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 1
    assert f"{script}: error: " in done.stderr and complaint in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="install.sh asks for root first")
def test_a_folder_without_flowedge_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        [AGENTS / "install.sh", "--offline", tmp_path, "--no-start"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert "holds no wheel of flowedge: fill it with make-wheels.sh" in done.stderr
