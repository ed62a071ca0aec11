"""A pump ends when it is told to."""

from __future__ import annotations

import asyncio

from flowedge.live.pump import Pump


def test_a_step_that_turns_its_cancellation_into_an_end_does_not_keep_the_pump() -> None:
    """A link that is lost while its sender is cancelled reports the loss, and the cancellation is gone."""

    async def test() -> None:
        begun = asyncio.Event()

        async def step() -> bool:
            begun.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                return False
            return True

        pump = Pump("send", step, on_bug=lambda error: None)
        pump.start()
        await begun.wait()
        await asyncio.wait_for(pump.stop(), 30)

    asyncio.run(test())
