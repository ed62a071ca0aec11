"""The soak: its verdicts on series that were made, its operations on a gateway, and one short run of it."""

from __future__ import annotations

import random

import pytest

from flowedge.core.errors import BadRequestError
from testbed.tools.soak.__main__ import main
from testbed.tools.soak.operations import OPERATIONS, SoakClient
from testbed.tools.soak.verdict import judge
from testbed.tools.soak.watching import Held
from tests.support.gateways import GatewayProcess

SETTLE_S = 600.0


def held(*, per_hour: float = 0.0, swing: float = 0.0, opened_per_hour: float = 0.0) -> list[Held]:
    """Return what a process held in an hour: at first it takes 60 MiB, then it grows and swings."""
    chance = random.Random(1)
    return [
        Held(
            at=at,
            rss=100 + min(at / 10, 60) + per_hour * at / 3600 + swing * chance.random(),
            pss=80,
            descriptors=20 + round(opened_per_hour * at / 3600) + chance.randrange(3),
            threads=9,
        )
        for at in range(0, 3600, 10)
    ]


def test_a_gateway_may_gain_1_mib_an_hour() -> None:
    assert judge("gateway", held(per_hour=0.5, swing=3), SETTLE_S).faults == ()
    (fault,) = judge("gateway", held(per_hour=3, swing=3), SETTLE_S).faults
    assert fault.startswith("it grows by ")
    assert judge("gateway", held(per_hour=3, swing=3), SETTLE_S).rss.per_hour == pytest.approx(3, abs=0.5)


def test_an_agent_may_swing_and_may_not_grow() -> None:
    assert judge("d0", held(per_hour=3, swing=16), SETTLE_S).faults == ()
    assert judge("d0", held(per_hour=30, swing=16), SETTLE_S).faults


def test_descriptors_that_stay_open_are_found() -> None:
    assert judge("v1", held(opened_per_hour=1), SETTLE_S).faults == ()
    (fault,) = judge("v1", held(opened_per_hour=12), SETTLE_S).faults
    assert "descriptors grow" in fault


def test_too_few_samples_judge_nothing() -> None:
    with pytest.raises(BadRequestError, match="samples of d0"):
        judge("d0", held()[:65], SETTLE_S)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_takes_what_the_gateway_answers(gateway4: GatewayProcess, name: str) -> None:
    OPERATIONS[name][0](SoakClient(gateway4.address, seed=3))


@pytest.mark.proof
def test_a_short_soak_asks_and_judges(capsys: pytest.CaptureFixture[str]) -> None:
    short = ["--minutes", "0.5", "--settle-minutes", "0.1", "--every", "1", "--clients", "2"]
    code = main([*short, "--freeze-every", "4"])
    said = capsys.readouterr().out
    assert " 0 errors" in said, said
    assert "; 0 stages stood still" not in said, said
    assert all(f"| {name} | " in said for name in ("gateway", "d0", "v1", "v2"))
    assert code == int("NOT flat" in said)  # 30 seconds say nothing about the memory of hours
