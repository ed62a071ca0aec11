"""The draft node's own work for each of its sessions."""

from __future__ import annotations

from dataclasses import replace

from flowedge.core.request import StageReport


class WorkReports:
    """A report for each session, from its opening until it is taken."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._reports: dict[str, StageReport] = {}

    def __len__(self) -> int:
        return len(self._reports)

    def begin(self, session: str) -> None:
        self._reports[session] = StageReport(self._device)

    def add(self, session: str, busy_s: float = 0.0, num_bytes: int = 0) -> None:
        """Add to a session's report, if it has one."""
        report = self._reports.get(session)
        if report is not None:
            busy_s, sent = report.busy_s + busy_s, report.bytes_sent + num_bytes
            self._reports[session] = replace(report, busy_s=busy_s, bytes_sent=sent)

    def take(self, session: str) -> StageReport:
        """Remove and return a session's report, which is empty if it had none."""
        return self._reports.pop(session, StageReport(self._device))

    def clear(self) -> None:
        self._reports.clear()
