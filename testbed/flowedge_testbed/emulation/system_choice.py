"""What a scenario chooses about the system that runs a method, besides the method's own options."""

from __future__ import annotations

from typing import Literal

from flowedge.planning.profile.model import YamlDocument

LockStepName = Literal["flowspec", "pipedec"]
BarrierChoice = bool | LockStepName


class SystemChoice(YamlDocument):
    """How an emulated system runs a method; what is not given here is as elsewhere in the scenario.

    Attributes:
        barrier: the lock-step that the method runs in: that of a paper's system, or with `true` that of the
            system which the method was published with, if it has any (see `lock_step`).
        express: whether prunes go straight to every stage, and not in-band alone.
        kv_pruning: whether stages drop pruned rows from their KV cache; if not, attention goes on reading
            them.
    """

    barrier: BarrierChoice | None = None
    express: bool | None = None
    kv_pruning: bool | None = None

    def over(self, other: SystemChoice) -> SystemChoice:
        """Return these choices, and those of another where these are not given."""
        names = SystemChoice.model_fields
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return SystemChoice(**{name: getattr(other, name) for name in names} | given)
