"""Starts the agents of a cluster again, one after the other, while requests run."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from flowedge.cli.pipelines.upgrade_plan import Restart, check_new, command_for, ready_pipelines
from flowedge.client import Device
from flowedge.client.survey import ask
from flowedge.core.errors import DeadlineError, DeviceError, FlowEdgeError

LOOK_S = 0.5  # between two questions to agents that are awaited
_SHOWN = 400  # characters of what a command printed


@dataclass
class Upgrade:
    """Starts agents again.

    Attributes:
        devices: all devices that were found, by address; they are asked again meanwhile.
        command: for a shell, see `command_for`; wanted: the version that is wanted, "" for any.
        wait_s: for a device to answer after its command, and for the pipelines to be whole after that.
        together: whether the pipelines are not waited for between two devices.
    """

    devices: dict[str, Device]
    command: str
    say: Callable[[str], None]
    wanted: str = ""
    wait_s: float = 120.0
    together: bool = False

    def run(self, steps: Sequence[Restart]) -> None:
        """Start the agents again in this order.

        Raises the error of the first that fails, with what is done and what is left.
        """
        commands = [command_for(self.command, step) for step in steps]
        pipelines = ready_pipelines(self.devices)
        for number, (step, command) in enumerate(zip(steps, commands, strict=True)):
            left = [each.name for each in steps[number + 1 :]]
            try:
                self._start_again(step, command, last=not left)
                if not self.together or not left:
                    self._await_pipelines(pipelines)
            except FlowEdgeError as error:
                done = ", ".join(each.name for each in steps[:number]) or "none"
                rest = f"; after it come {', '.join(left)}" if left else ""
                self.say(f"The upgrade stops at {step.name}. Done: {done}{rest}.")
                raise error from None

    def _start_again(self, step: Restart, command: str, *, last: bool) -> None:
        began = time.monotonic()
        self.say(f"{step.name} ({step.duty}): {command}")
        self._run(step, command)
        device = self._await(step)
        others = [
            each
            for address, each in self.devices.items()
            if address != step.address and each.version == step.version
        ]
        self.devices[step.address] = device
        check_new(device, self.wanted, [] if self.together else others, last=last)
        version = device.version if device.version != step.version else f"{device.version}, as before"
        self.say(f"{step.name}: answers after {time.monotonic() - began:.1f} s, version {version}")

    def _run(self, step: Restart, command: str) -> None:
        """Run the command for one device. Raises DeviceError when it fails."""
        try:
            done = subprocess.run(
                command,
                shell=True,
                check=False,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=self.wait_s,
            )
        except subprocess.TimeoutExpired as error:
            raise DeadlineError(
                f"the command for {step.name} did not end within {self.wait_s:g} s"
            ) from error
        if done.returncode:
            said = (done.stderr or done.stdout).strip()[-_SHOWN:]
            raise DeviceError(step.name, f"its command ended with {done.returncode}: {said}")

    def _await(self, step: Restart) -> Device:
        """Return the agent that answers in place of the one before."""
        until = time.monotonic() + self.wait_s
        while True:
            device = _answer_of(step.address)
            if device is not None and device.instance != step.instance:
                return device
            if time.monotonic() > until:
                state = "does not answer" if device is None else "is the same process as before the command"
                raise DeadlineError(
                    f"device {step.name} {state} after {self.wait_s:g} s; look at its log with "
                    "`journalctl -u flowedge-agent` there, then call this command again"
                )
            time.sleep(LOOK_S)

    def _await_pipelines(self, number: int) -> None:
        """Wait until as many pipelines answer as before."""
        until = time.monotonic() + self.wait_s
        while ready_pipelines(found := self._ask_all()) < number:
            if time.monotonic() > until:
                reasons = [f"{each.name}: {each.not_ready}" for each in found.values() if each.not_ready]
                why = (
                    "; ".join(reasons)
                    or "its draft node knows of none: one without [pipeline] settings forgets"
                )
                raise DeadlineError(f"the pipeline is not whole again after {self.wait_s:g} s: {why}")
            time.sleep(LOOK_S)

    def _ask_all(self) -> Mapping[str, Device]:
        with ThreadPoolExecutor(len(self.devices)) as threads:
            answers = dict(zip(self.devices, threads.map(_answer_of, self.devices), strict=True))
        return {address: device for address, device in answers.items() if device is not None}


def _answer_of(address: str) -> Device | None:
    try:
        return ask(address).device
    except FlowEdgeError:
        return None
