"""The decisions of install.sh, and its messages when it cannot go on."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from flowedge.doctor import board, compute, memory

AGENTS = Path(__file__).parents[2] / "device_agents"
CPU = "https://download.pytorch.org/whl/cpu"
JETPACK6 = "https://pypi.jetson-ai-lab.io/jp6/cu126"
JETPACK7 = "https://pypi.jetson-ai-lab.io/sbsa/cu130"
SOURCES = "; ".join(f"source {AGENTS}/lib/{name}.sh" for name in ("common", "torch", "packages"))


def bash(command: str, root: Path, timeout_s: float = 30) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", f"{SOURCES}; {command}"],
        env={**os.environ, "ROOT": str(root)},
        capture_output=True,
        text=True,
        timeout=timeout_s,
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
        ("NVIDIA Jetson AGX Thor Developer Kit", "R38", JETPACK7),
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


def test_an_orin_with_jetpack_7_needs_an_index_of_its_own(tmp_path: Path) -> None:
    root = make_device(tmp_path, model="NVIDIA Jetson Orin Nano Developer Kit", release="R39")
    done = bash('index=$(torch_index); echo "went on"', root)
    assert done.returncode == 1 and "went on" not in done.stdout
    assert "JetPack 7 (Jetson Linux R39) on an Orin" in done.stderr and "--torch-index" in done.stderr


@pytest.mark.parametrize(
    ("kinds", "complaint"),
    [
        ("sm_80 sm_87 sm_90", None),
        ("sm_80 compute_90", None),
        ("sm_110 sm_121", "this PyTorch has kernels for sm_110 sm_121, and an Orin is sm_87"),
        ("", None),
    ],
)
def test_a_build_without_kernels_for_an_orin_is_refused(
    tmp_path: Path, kinds: str, complaint: str | None
) -> None:
    root = make_device(tmp_path, model="NVIDIA Jetson Orin NX", release="R36")
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho {kinds}\n")
    python.chmod(0o755)
    done = bash(f'check_kernels {python}; echo "went on"', root)
    assert ("went on" in done.stdout) == (complaint is None), done.stderr
    assert complaint is None or complaint in done.stderr
    assert ("computes on the CPU alone" in done.stdout + done.stderr) == (not kinds)


def test_kernels_are_looked_for_on_an_orin_alone(tmp_path: Path) -> None:
    root = make_device(tmp_path, model="Raspberry Pi 5 Model B Rev 1.0")
    assert bash("check_kernels /no/such/python", root).returncode == 0


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


def test_what_is_installed_can_be_read_by_the_services(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", f"umask 077; {SOURCES}; umask"], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stdout.strip() == "0022"


def test_what_comes_from_another_index_is_named_before(tmp_path: Path) -> None:
    said = bash(f"name_other_index {JETPACK6} PyTorch; name_other_index {CPU} PyTorch", tmp_path).stdout
    assert said.count("PyTorch is taken from") == 1
    assert f"from {JETPACK6}, the newest build there, without a hash" in said


def fake_program(path: Path, content: str) -> Path:
    path.write_text(f"#!/bin/sh\n{content}")
    path.chmod(0o755)
    return path


def test_every_wheel_of_a_locked_installation_has_a_hash(tmp_path: Path) -> None:
    """Each round of pip is asked for what the packages that are there need, until nothing is missing."""
    rounds = tmp_path / "rounds"
    next_round = f'echo >>{rounds}; [ "$(wc -l <{rounds})" -gt 2 ] || echo "numpy==1 --hash=x"'
    python = fake_program(tmp_path / "python", f'case "$2" in *locked.py) {next_round} ;; esac')
    done = bash(f"install_locked {python} {AGENTS.parent} SOURCE {tmp_path} echo pip install", tmp_path)
    lines = done.stdout.splitlines()
    assert [line.rsplit("/", 1)[-1] for line in lines if "SOURCE" not in line] == [
        "torch.txt",
        "backend.txt",
        "next.txt",
        "next.txt",
    ]
    for line in lines:
        assert "--no-deps" in line
        assert ("--require-hashes" in line and "--only-binary :all:" in line) != ("SOURCE" in line)
    assert (tmp_path / "torch.txt").read_text().startswith("torch==")


def locked(lock: Path) -> list[str]:
    program = AGENTS / "lib" / "locked.py"
    # Without the modules of the checkout: those that are installed say what they need.
    done = subprocess.run(
        [sys.executable, "-I", program, lock], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.splitlines()


def test_only_what_flowedge_needs_is_taken_of_the_lock_file(tmp_path: Path) -> None:
    """The lock file has the tools of the development too."""
    lock = tmp_path / "lock.txt"
    lines = [
        f"{name}=={version(name)} --hash=sha256:0"
        for name in ("numpy", "grpcio", "markupsafe", "selenium", "torch")
    ]
    lock.write_text("\n".join(["# wheels", *lines]))
    assert locked(lock) == []
    lock.write_text("\n".join(line.replace("==", "==99.") for line in lines))
    # MarkupSafe is needed by jinja2 alone, and selenium by tests.
    assert [line.split("==")[0] for line in locked(lock)] == ["grpcio", "markupsafe", "numpy", "torch"]


@pytest.mark.parametrize(
    ("machine", "pip", "problem", "said"),
    [
        ("x86_64", "false", "", ""),
        ("aarch64", "false", "", "without bitsandbytes (pip found no wheel for this device)"),
        (
            "aarch64",
            "true",
            "nf4: no kernel",
            "(nf4: no kernel): nf4, fp4 and llm-int8 are refused",
        ),
        ("aarch64", "true", "", "bitsandbytes works here"),
    ],
)
def test_bitsandbytes_stays_where_it_works(
    tmp_path: Path, machine: str, pip: str, problem: str, said: str
) -> None:
    calls = tmp_path / "calls"
    trial = f'case "$2" in *try_bitsandbytes.py) printf "%s" "{problem}" ;; *) echo "$*" >>{calls} ;; esac'
    python = fake_program(tmp_path / "python", trial)
    done = bash(f"MACHINE={machine} try_bitsandbytes {python} {pip}", tmp_path)
    assert done.returncode == 0 and said in done.stdout and bool(said) == bool(done.stdout)
    removed = "uninstall --yes bitsandbytes accelerate" in (calls.read_text() if calls.exists() else "")
    assert removed == bool(problem)


@pytest.mark.proof
@pytest.mark.slow
def test_bitsandbytes_is_really_tried(tmp_path: Path) -> None:
    done = bash(f"MACHINE=aarch64 try_bitsandbytes {sys.executable} true", tmp_path, timeout_s=180)
    assert "bitsandbytes works here: nf4, fp4 and llm-int8 can be used" in done.stdout, done.stdout


def test_the_installer_says_what_it_finds_of_the_device(tmp_path: Path) -> None:
    found = ("warning zram: zram may take 4 GiB. Turn it off.", "warning clocks-low: cpu0 600 of 1500 MHz.")
    trial = f'case "$2" in *preflight.py) printf "%s\\n" {" ".join(map(repr, found))} ;; esac'
    python = fake_program(tmp_path / "python", trial)
    done = bash(f"preflight {python}", tmp_path)
    assert done.returncode == 0
    assert [line.removeprefix("bash: ") for line in done.stdout.splitlines()[1:]] == list(found)
    assert bash(f"PREFLIGHT=no preflight {python}", tmp_path).stdout == ""
    broken = bash(f"preflight {fake_program(tmp_path / 'broken', 'exit 3')}", tmp_path)
    assert broken.returncode == 0 and "run flowedge doctor" in broken.stdout, "an installation goes on"


@pytest.mark.proof
@pytest.mark.slow
def test_the_preflight_is_what_the_doctor_finds_of_the_device() -> None:
    done = subprocess.run(
        [sys.executable, AGENTS / "lib" / "preflight.py"],
        env={**os.environ, "PYTHONPATH": str(AGENTS.parent)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    codes = {kind.code for kind in (*board.KINDS, *compute.KINDS, *memory.KINDS)}
    found = [re.match(r"(?:info|warning|error) ([\w-]+): ", line) for line in done.stdout.splitlines()]
    assert all(each is not None and each[1] in codes for each in found)


def test_bitsandbytes_is_a_dependency_where_its_wheels_work() -> None:
    """Boards get it from install.sh, which tries it."""
    project = (AGENTS.parent / "pyproject.toml").read_text(encoding="utf-8")
    for name in ("bitsandbytes", "accelerate"):
        (text,) = re.findall(rf'"({name}>[^"]*)"', project)
        marker = Requirement(text).marker
        assert marker is not None
        assert marker.evaluate({"platform_machine": "x86_64"})
        assert not marker.evaluate({"platform_machine": "aarch64"})


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
