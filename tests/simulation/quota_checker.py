"""Quotas recounted from the server's objects at every bind, by their definition (`tests.reference.quota`).

For a policy whose text and whose namespaces' labels do not change, and whose pods nobody else binds.
"""

from typing import TYPE_CHECKING

from policysched.kube.decode import core_objects as wire
from policysched.lang.check import check_text
from policysched.model.pods import Pod
from policysched.sandbox.apiserver.store import StoreChange
from tests.reference.quota import quotas_admit

if TYPE_CHECKING:
    from tests.simulation.scenario import Scenario


class QuotaChecker:
    """`scheduler` is the name of the policy with this text."""

    def __init__(self, world: "Scenario", scheduler: str, text: str) -> None:
        program = check_text(text).program
        assert program is not None, text
        self._program, self._scheduler, self._world = program, scheduler, world
        self._bound: dict[str, Pod] = {}
        self.binds = 0
        world.local.listen("pods", self._changed)

    def _changed(self, change: StoreChange) -> None:
        obj = change.entry.obj
        if obj["spec"].get("schedulerName") != self._scheduler:
            return
        observed = wire.decode_pod(obj)
        pod = observed.pod
        if change.type == "DELETED" or observed.finished:
            self._bound.pop(pod.uid, None)
        elif observed.node is not None and pod.uid not in self._bound:
            self.binds += 1
            if not quotas_admit(self._program, [(other, None) for other in self._bound.values()], pod, None):
                self._world.fail(f"{pod.full_name} is bound above a quota")
            self._bound[pod.uid] = pod

    def check_at_rest(self) -> None:
        assert self.binds, "no pod was bound, so nothing was checked"
