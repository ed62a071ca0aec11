"""The members of a cluster that may take part in a stage's pipeline."""

from __future__ import annotations

from dataclasses import dataclass

from flowedge.core.errors import AccessError
from flowedge.live.transport.server import InStream
from flowedge.protocol.link_kind import LinkKind


@dataclass(frozen=True)
class PermittedMembers:
    """The neighbours of a stage, each as the URI in its certificates (see Member.uri).

    Attributes:
        upstream: the device before the stage; the draft node is before the first stage.
        downstream: the device behind the stage; the draft node is behind the last stage.
    """

    upstream: str
    draft_node: str
    downstream: str

    def check_stream(self, stream: InStream, device: str) -> None:
        """Check that a stream to the stage was opened by the member that may open it.

        device: the name of the stage, for the error.

        Raises what `check_caller` raises.
        """
        if stream.kind is LinkKind.EXPRESS:
            check_caller(stream, self.draft_node, f"the draft node of {device}")
        else:
            check_caller(stream, self.upstream, f"the device before {device}")


def check_caller(stream: InStream, permitted: str, role: str) -> None:
    """Check that a stream was opened by the permitted member, given by its URI.

    role: what the member is in the pipeline, for the error.

    Raises:
        AccessError: when the caller is another member, or has shown no certificate.
    """
    if stream.member != permitted:
        raise AccessError(f"{stream.member or 'a caller without a certificate'} is not {role}")
