"""The `flowedge` command with links that hold as many replies as a fuzzer sends."""

from __future__ import annotations

from flowedge.cli.main import main
from flowedge.net.link_settings import LinkSettings
from tests.fuzz.peers import MAX_REPLIES

if __name__ == "__main__":
    LinkSettings.max_replies = MAX_REPLIES
    main()
