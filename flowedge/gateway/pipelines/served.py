"""What a gateway serves: pipelines as they are configured, and models as clients see them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

from flowedge.client.assembly import PipelineSpec
from flowedge.core.errors import BadRequestError
from flowedge.network.address import checked_address

MAX_NAME = 200


@dataclass(frozen=True)
class PipelineEntry:
    """A pipeline to serve.

    Attributes:
        draft_node: address.
        spec: how it is set up again when its agents have come back idle; None if the gateway leaves that
            to others.
        model: name that clients use; "" for the name that the draft node tells.
        aliases: further names of the model.
        name: of the pipeline, in metrics and logs; "" for the draft node's address.
        certificate: name that the draft node's certificate must have; "" for any name of the cluster.
        standby: address of the agent that leads the pipeline when the draft node is lost; "" where there is
            none, or the draft node is to tell.

    Raises:
        BadRequestError: when an address or a name is malformed.
    """

    draft_node: str
    spec: PipelineSpec | None = None
    model: str = ""
    aliases: tuple[str, ...] = ()
    name: str = ""
    certificate: str = ""
    standby: str = ""

    def __post_init__(self) -> None:
        for address in (self.draft_node, *self.other_leaders):
            checked_address(address)
        for name in (self.model, *self.aliases, self.name):
            if len(name) > MAX_NAME or not (name.isprintable() or not name):
                raise BadRequestError(
                    f"the name {name[:80]!r} is no name of a model; it must be up to {MAX_NAME} printable "
                    "characters"
                )

    @property
    def other_leaders(self) -> tuple[str, ...]:
        """The addresses of devices that may lead the pipeline later."""
        return (self.standby,) if self.standby else ()

    @property
    def label(self) -> str:
        """Name of the pipeline."""
        return self.name or self.draft_node


@dataclass(frozen=True)
class ServedModel:
    """A model as clients see it.

    Attributes:
        aliases: further names.
        pipelines: names of its pipelines.
        ready: names of those that can answer.
        recovering: names of those that have lost a device and may soon be back.
        problems: why those that cannot answer do not, by name.
        created: seconds since 1970, when it was first seen.
        context: most tokens of a prompt with its answer; None where the draft nodes do not tell.
        family: the architecture that the model's config names; "" where it is not known yet.
        capabilities: what the model is made for beside texts: "tools", "thinking".
        quant: of its layers; "" where it is not known yet.
        no_chat_template: whether it is a base model, which goes on with a text as it stands.
    """

    name: str
    aliases: tuple[str, ...]
    pipelines: tuple[str, ...]
    ready: tuple[str, ...]
    created: int
    context: int | None = None
    family: str = ""
    capabilities: tuple[str, ...] = ()
    quant: str = ""
    no_chat_template: bool = False
    recovering: tuple[str, ...] = ()
    problems: Mapping[str, str] = field(default_factory=dict)


def name_of(model: str) -> str:
    """Return the name for clients of what an agent calls its model: of a path, the last part."""
    path = PurePath(model)
    return path.name if path.is_absolute() else model
