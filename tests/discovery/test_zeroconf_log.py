"""What zeroconf logs is one line, with the reason."""

from __future__ import annotations

import logging

import pytest

from flowedge.discovery.zeroconf_log import shorten_log


def test_an_interface_that_went_away_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    shorten_log()
    shorten_log()
    log = logging.getLogger("zeroconf")
    try:
        raise OSError(101, "Network is unreachable")
    except OSError:
        log.warning("Error with socket %d (%s)", 9, "10.40.189.1", exc_info=True)
    log.warning("nothing raised %s", "here")
    assert [record.getMessage() for record in caplog.records] == [
        "Error with socket 9 (10.40.189.1): [Errno 101] Network is unreachable",
        "nothing raised here",
    ]
    assert not any(record.exc_info for record in caplog.records)
