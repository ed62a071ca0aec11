"""Ask a draft node the same again and again: `python -m testbed.tools.nspawn.upgrade.asking AT FILE`.

This ends when FILE is there, and prints what the answers were like as JSON; FILE.ready is made after the
first.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from flowedge.client import Client

_TOKENS = 300
_ANSWER_S = 300.0


def main() -> None:
    """Ask until the file is there; an answer that fails ends it with its error."""
    address, stop = sys.argv[1], Path(sys.argv[2])
    first: list[int] = []
    answers = changed = recoveries = 0
    longest_s = 0.0
    # A request that is lost before its first token is sent again, and waits for the pipeline.
    with Client(address, timeout_s=_ANSWER_S, retries=1000) as client:
        while not answers or not stop.exists():
            began = time.monotonic()
            answer = client.generate(
                "Count to a thousand.", max_new_tokens=_TOKENS, ignore_eos=True, temperature=1.0, seed=36
            )
            tokens = list(answer.result().token_ids)
            longest_s = max(longest_s, time.monotonic() - began)
            first = first or tokens
            answers, changed = answers + 1, changed + (tokens != first)
            recoveries += answer.statistics["recoveries"] or 0
            stop.with_suffix(".ready").touch()
    print(
        json.dumps({"answers": answers, "changed": changed, "recoveries": recoveries, "longest_s": longest_s})
    )


if __name__ == "__main__":
    main()
