"""Measure what a draft node adds between the last row in and the next segment out, over mutual TLS.

The bundled pair decodes on two agents. The time is counted from the last byte of a returned segment to the
first byte of the next segment sent, without drafting and verification.

Run: python -m testbed.tools.links.draft_hops
"""

from __future__ import annotations

import argparse
import bisect
import datetime
import json
import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from flowedge.client import Client
from flowedge.client.assembly import PipelineSpec, assemble
from flowedge.client.channel import open_stub
from flowedge.client.loop_thread import run as run_coroutine
from flowedge.cluster import process
from flowedge.cluster.authority import Authority
from flowedge.cluster.certificate_role import CertificateRole
from flowedge.cluster.credentials import CredentialStore
from flowedge.cluster.process import Security
from flowedge.engine.activity import COMPUTING
from flowedge.live.timeline import decode
from flowedge.v1 import agent_pb2 as pb
from testbed.tools.links.hops import make_member, stage_agent

STRATEGIES = ("autoregressive", "naive_pp")
PROMPT = "Tell me about rivers."
TIMELINE_S = 20.0

Span = tuple[float, float]


def own_seconds(came: Sequence[float], left: Sequence[float], computing: Sequence[Span]) -> list[float]:
    """Return, for each segment that came back, the time until the next one left, without the computing.

    A segment after which another came back before any left is left out.

    Args:
        came, left: ascending times; computing: when jobs ran, in order.
    """
    found = []
    for place, at in enumerate(came):
        following = bisect.bisect(left, at)
        if following == len(left) or (place + 1 < len(came) and came[place + 1] < left[following]):
            continue
        until = left[following]
        spent = sum(max(min(end, until) - max(start, at), 0.0) for start, end in computing)
        found.append(until - at - spent)
    return found


async def timeline(address: str, session: str) -> pb.TimelineReply:
    async with open_stub(address) as stub:
        reply: pb.TimelineReply = await stub.Timeline(pb.TimelineRequest(session=session), timeout=TIMELINE_S)
    return reply


def run(tokens: int) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        now = datetime.datetime.now(datetime.timezone.utc)
        authority = Authority.create(folder / "ca", "hops", now=now, addresses=["127.0.0.1:1"], port=1)
        lead = make_member(authority, folder, "lead", CertificateRole.DRAFT_NODE)
        stage = make_member(authority, folder, "stage", CertificateRole.AGENT)
        user = make_member(authority, folder, "user", CertificateRole.CLIENT)
        process.use(Security(CredentialStore.open(user)))
        computing: dict[str, list[Span]] = {}
        with stage_agent(lead) as (address, _), stage_agent(stage) as (second, _):
            assemble(
                PipelineSpec(draft_node=address, stages=(second,), drafter=("bundled",)),
                lambda *_: None,
            )
            for strategy in STRATEGIES:
                with Client(address) as client:
                    done = client.generate(
                        PROMPT, strategy=strategy, max_new_tokens=tokens, ignore_eos=True
                    ).result()
                events, _ = decode(run_coroutine(timeline(address, done.session)), "lead")
                computing[strategy] = [(each.start, each.end) for each in events if each.kind in COMPUTING]
        came, left = json.loads((lead / "times.json").read_text(encoding="ascii"))
        print("strategy            min  median, ms")
        for strategy, spans in computing.items():
            first, last = spans[0][0], spans[-1][1]
            own = own_seconds([at for at in came if first < at < last], left, spans)
            print(f"{strategy:<16} {1e3 * min(own):6.3f}  {1e3 * float(np.median(own)):6.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=200)
    logging.getLogger("flowedge").setLevel(logging.ERROR)
    run(parser.parse_args().tokens)


if __name__ == "__main__":
    main()
