"""The section of the configuration about the log."""

from __future__ import annotations

from pydantic import Field

from flowedge.agent.config.section import Section
from flowedge.agent.operations.logs import LogFormat, LogLevel, LogSettings

_LOG = LogSettings()


class LogSection(Section):
    """The log, which goes to stderr."""

    format: LogFormat = Field(
        default=_LOG.format, description='"text", or "json" for an object a line; see docs/agent.md.'
    )
    level: LogLevel = Field(
        default=_LOG.level,
        description='What is logged at least: "debug", "info", "warning", "error".',
    )

    def settings(self) -> LogSettings:
        """What the agent is told of it."""
        return LogSettings(format=self.format, level=self.level)
