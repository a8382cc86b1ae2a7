"""What bounds the hostile tenant, as in a cluster that serves several: its rights, its share of the API server, its clients' rates.

    rights     a Role in its namespace
    requests   a priority level of its own (API Priority and Fairness), with the fewest seats that there can be
    rates      each attack is a client of its own with a limit on requests and bytes (`Rates`)

The rate of requests bounds attacks by small objects, that of bytes those by large ones: one pod of 608 KiB in a minute. An
attack has a burst of both: so the pods, gangs and budgets of the tenant are there when the measured window begins, and
continue to arrive during it. At higher rates the attacks saturate the API server of a small machine, and then the latency
of every scheduler is the API server's.
"""

import asyncio
from dataclasses import dataclass

from tests.controlplane.api import Api, Json

BURST_REQUESTS = 120.0
BURST_BYTES = 10 * 1024 * 1024
"""Sixteen pods of 608 KiB."""
PRIORITY_LEVEL = "one-tenant"
_FLOW_CONTROL = "/apis/flowcontrol.apiserver.k8s.io/v1"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"


@dataclass(frozen=True)
class Rates:
    """Of each attack; there are fifteen. A pod of a megabyte takes an API server a quarter of a second of processor time with
    what follows from it."""

    requests_per_s: float = 0.5
    bytes_per_s: float = 10 * 1024


class _Budget:
    """`per_s` are added, up to the burst; below zero the client waits."""

    def __init__(self, per_s: float, burst: float, now_s: float) -> None:
        self.left = burst
        self._per_s, self._burst, self._updated_s = per_s, burst, now_s

    def wait_after(self, amount: float, now_s: float) -> float:
        """How long to wait for this amount, which is spent."""
        added = (now_s - self._updated_s) * self._per_s
        self.left, self._updated_s = min(self._burst, self.left + added) - amount, now_s
        return max(0.0, -self.left / self._per_s)


class Pace:
    """The rates of one client. Waits on the event loop's clock."""

    def __init__(self, rates: Rates) -> None:
        now_s = asyncio.get_running_loop().time()
        self._requests = _Budget(rates.requests_per_s, BURST_REQUESTS, now_s)
        self._bytes = _Budget(rates.bytes_per_s, BURST_BYTES, now_s)

    async def wait(self, size: int) -> None:
        """Until a request of so many bytes may be sent."""
        now_s = asyncio.get_running_loop().time()
        await asyncio.sleep(max(self._requests.wait_after(1, now_s), self._bytes.wait_after(size, now_s)))

    def end_burst(self) -> None:
        """What was not sent so far may not be sent at once any more."""
        for budget in (self._requests, self._bytes):
            budget.left = min(budget.left, 0.0)


def limit_requests_of(api: Api, user: str) -> None:
    """Put the user's requests on a priority level with one share of the API server's seats, which borrows none."""
    level = {
        "metadata": {"name": PRIORITY_LEVEL},
        "spec": {
            "type": "Limited",
            "limited": {
                "nominalConcurrencyShares": 1,
                "lendablePercent": 0,
                "borrowingLimitPercent": 0,
                "limitResponse": {
                    "type": "Queue",
                    "queuing": {"queues": 1, "handSize": 1, "queueLengthLimit": 100},
                },
            },
        },
    }
    everything = {
        "verbs": ["*"],
        "apiGroups": ["*"],
        "resources": ["*"],
        "clusterScope": True,
        "namespaces": ["*"],
    }
    schema = {
        "metadata": {"name": PRIORITY_LEVEL},
        "spec": {
            "priorityLevelConfiguration": {"name": PRIORITY_LEVEL},
            "matchingPrecedence": 500,
            "distinguisherMethod": {"type": "ByUser"},
            "rules": [
                {"subjects": [{"kind": "User", "user": {"name": user}}], "resourceRules": [everything]}
            ],
        },
    }
    api.post(f"{_FLOW_CONTROL}/prioritylevelconfigurations", level)
    api.post(f"{_FLOW_CONTROL}/flowschemas", schema)


def allow_in_namespace(api: Api, user: str, namespace: str, resources: dict[str, list[str]]) -> None:
    """`resources` by API group: everything that can be done with them, in this namespace alone."""
    meta: Json = {"name": user, "namespace": namespace}
    rules = [{"apiGroups": [group], "resources": names, "verbs": ["*"]} for group, names in resources.items()]
    api.post(f"{_RBAC}/namespaces/{namespace}/roles", {"metadata": meta, "rules": rules})
    binding = {
        "metadata": meta,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": user},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    }
    api.post(f"{_RBAC}/namespaces/{namespace}/rolebindings", binding)
