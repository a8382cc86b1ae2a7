"""Invariants of the values that a policy keeps (`state`), recomputed from the server's pods.

The state starts at 0 and moves half of the way to 1 with each finished run, so a value is a number
of runs. It never exceeds the finished runs, and a saved value never decreases. Where the clock of a process was more than
five minutes behind, only the latter holds: the runs that it saw are applied again by the next process (docs/language.md).
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from policysched.sandbox.apiserver.server import ApiServer
from policysched.sandbox.apiserver.store import StoreChange
from policysched.sandbox.local_client import LocalClient

Json = dict[str, Any]
StateCell = tuple[str, str]
"""Key and node."""


def run_count(value: float) -> int:
    """The number of runs that a value stands for."""
    return round(-math.log2(1.0 - value))


class StateChecker:
    """Checks state `state` of `policy`, keyed by the pod label `key` ("none" without it), as saved
    in the ConfigMap `kept`. `fail` gets a message for each violation.
    """

    def __init__(
        self,
        server: ApiServer,
        *,
        policy: str,
        state: str,
        key: str,
        kept: tuple[str, str],
        fail: Callable[[str], None],
    ) -> None:
        local = LocalClient(server)
        self._policy, self._state, self._key, self._place, self._fail = policy, state, key, kept, fail
        self._finished_pods: dict[StateCell, set[tuple[str, str]]] = {}
        self._runs_max: dict[StateCell, int] = {}
        self.runs_may_repeat = False
        local.listen("pods", self._pod_changed)
        local.listen("configmaps", self._stored_state_changed)

    def _pod_changed(self, change: StoreChange) -> None:
        obj = change.entry.obj
        node = obj["spec"].get("nodeName")
        if obj["spec"]["schedulerName"] != self._policy or not node:
            return
        key = (obj["metadata"].get("labels") or {}).get(self._key, "none")
        for status in obj["status"].get("containerStatuses") or ():
            ended = (status.get("state") or {}).get("terminated")
            if ended is not None:
                run = (obj["metadata"]["uid"], f"{status['name']} {ended['finishedAt']}")
                self._finished_pods.setdefault((key, node), set()).add(run)

    def _stored_state_changed(self, change: StoreChange) -> None:
        if change.entry.key != self._place or change.type == "DELETED":
            return
        text = (change.entry.obj.get("data") or {}).get(f"{self._policy}.state.json")
        now = {} if text is None else self.cells(orjson.loads(text)["values"].get(self._state, []))
        for cell, fed in now.items():
            ended = len(self._finished_pods.get(cell, ()))
            if fed > ended and not self.runs_may_repeat:
                self._fail(f"{self._state} of {cell} counts {fed} runs, and {ended} have finished")
        for cell, before in self._runs_max.items():
            if now.get(cell, 0) < before:
                self._fail(
                    f"{self._state} of {cell} was stored with {before} runs and has {now.get(cell, 0)}"
                )
        self._runs_max.update(now)

    def problems(self, held: Mapping[StateCell, float]) -> list[str]:
        """The violations of the values in the leader's memory, which are saved next."""
        now = {cell: run_count(value) for cell, value in held.items()}
        fed = [
            f"{self._state} of {cell} counts {now[cell]} runs, and {len(self._finished_pods.get(cell, ()))} have finished"
            for cell in now
            if now[cell] > len(self._finished_pods.get(cell, ())) and not self.runs_may_repeat
        ]
        return fed + [
            f"{self._state} of {cell} was stored with {before} runs and is in memory with {now.get(cell, 0)}"
            for cell, before in self._runs_max.items()
            if now.get(cell, 0) < before
        ]

    @staticmethod
    def cells(values: list[list[Any]]) -> dict[StateCell, int]:
        return {(key, node): run_count(value) for key, node, value, *_ in values}
