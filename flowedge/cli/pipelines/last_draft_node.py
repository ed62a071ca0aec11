"""The draft node that answered last, which the next command asks while it searches the network."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flowedge.core.errors import FlowEdgeError
from flowedge.device import private_files
from flowedge.device.state_dir import state_dir
from flowedge.network.address import checked_address, is_loopback

_MOST_BYTES = 64 << 10
_MOST_NETWORKS = 32

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class KnownDraftNode:
    """A draft node as it answered: only the device with this name and this id is it.

    Attributes:
        id: of the device, see Device.
    """

    name: str
    id: str
    address: str


class LastDraftNodes:
    """The last draft node of each network, in a file of the state directory.

    A network is named by the id of the cluster, and by the group that is searched. Outside of a cluster
    nothing proves who answers, so only draft nodes on loopback are remembered. A file that cannot be read or
    written is no error: the network is searched then.
    """

    def __init__(self, cluster: str, group: str = "") -> None:
        self._cluster = cluster
        self._network = f"{cluster}/{group}"

    def recall(self) -> KnownDraftNode | None:
        """Return the draft node that was remembered last; None without a usable one."""
        try:
            found = self._read().get(self._network)
            node = None if found is None else _known(found)
        except (OSError, ValueError, FlowEdgeError) as error:
            _log.debug("the last draft node is not known: %s", error)
            return None
        return node if node is not None and self._may_know(node.address) else None

    def remember(self, node: KnownDraftNode) -> None:
        """Keep a draft node for the next command."""
        if not self._may_know(node.address) or node == self.recall():
            return
        content: Mapping[str, Any] = {}
        try:
            with contextlib.suppress(OSError, ValueError):
                content = self._read()
            others = [(key, known) for key, known in content.items() if key != self._network]
            content = dict([*others, (self._network, asdict(node))][-_MOST_NETWORKS:])
            path = self._path()
            if not path.parent.is_dir():
                private_files.make_directory(path.parent)
            private_files.write(path, json.dumps(content, indent=1).encode())
        except (OSError, FlowEdgeError) as error:
            _log.debug("the last draft node is not remembered: %s", error)

    def _may_know(self, address: str) -> bool:
        return bool(self._cluster) or is_loopback(address)

    def _path(self) -> Path:
        return state_dir() / "last-draft-nodes.json"

    def _read(self) -> Mapping[str, Any]:
        with self._path().open("rb") as file:
            content = json.loads(file.read(_MOST_BYTES))
        if not isinstance(content, dict):
            raise ValueError("the file holds no object")
        return content


def _known(entry: Any) -> KnownDraftNode:
    """Return the draft node that an entry of the file describes.

    Raises:
        ValueError: when the entry does not describe one.
        BadRequestError: when its address is malformed.
    """
    fields = [entry.get(key) for key in ("name", "id", "address")] if isinstance(entry, dict) else []
    texts = [field for field in fields if isinstance(field, str)]
    if len(texts) != 3:
        raise ValueError(f"an entry is not a draft node: {str(entry)[:80]}")
    name, device_id, address = texts
    return KnownDraftNode(name, device_id, checked_address(address))
