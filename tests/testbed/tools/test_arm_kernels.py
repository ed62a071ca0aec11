"""The kernels for ARM64, in an emulator: integer products have the bits of this machine's."""

from __future__ import annotations

import platform
import shutil

import pytest

from testbed.tools.arm_kernels.__main__ import COMPILER, EMULATOR, differences

_MISSING = [tool for tool in (COMPILER, EMULATOR) if shutil.which(tool) is None]


@pytest.mark.proof
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the harness compares with the kernels of x86-64")
@pytest.mark.skipif(bool(_MISSING), reason=f"not installed: {', '.join(_MISSING)}")
def test_products_and_layers_are_those_of_this_machine() -> None:
    assert not differences(COMPILER, EMULATOR)
