"""A canary whose guard breaks on a real control plane, while its leader is killed with SIGKILL."""

import time
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

import pytest

from tests.controlplane.cluster import ControlPlane
from tests.controlplane.objects import pod, ready_node
from tests.controlplane.waiting import wait_for
from tests.e2e.deployed import NAMESPACE, PODS, Deployed
from tests.e2e.program import Running

SHARE = 0.2
GUARD_S = 8
ROLLED_BACK_WITHIN_S = 60.0
OWNERS = tuple(f"web-{number}" for number in range(15, 40))
NODES = ("a", "b")
MESSAGE = "the canary takes only known nodes"
POLICY = f"""\
policy beta version 1
filter node_resources_fit
canary strict {SHARE:.0%} by pod.owner.name guard pending < 5% for {GUARD_S}s else rollback {{
  filter known require (node.labels["canary"] else "") == "ok" says "{MESSAGE}"
}}
"""
LEASE = {"lease_duration_s": 6, "renew_deadline_s": 5, "retry_period_s": 0.5}


def in_share(owner: str) -> bool:
    """As the documentation says it, and not as the program computes it."""
    digest = blake2b(f"canary strict: {owner}".encode(), digest_size=8).hexdigest()
    return int(digest, 16) % 10_000 < SHARE * 10_000


@pytest.fixture
def deployed(control_plane: ControlPlane, tmp_path: Path) -> Iterator[Deployed]:
    deployed = Deployed(control_plane, tmp_path)
    for name in NODES:
        control_plane.add_node(ready_node(name, cpu="64", pods="200", labels={"canary": "ok"}))
    deployed.put_policies(beta=POLICY)
    yield deployed


def create(deployed: Deployed, when: str) -> None:
    """A pod of each owner."""
    for owner in OWNERS:
        manifest = pod(f"{owner}-{when}", cpu="100m", schedulerName="beta")
        manifest["metadata"]["ownerReferences"] = [
            {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": owner, "uid": owner, "controller": True}
        ]
        deployed.api.post(PODS, manifest)


def kept_from_nodes(deployed: Deployed) -> set[str]:
    """The owners of pods that say that the canary's rule rejects their nodes."""
    return {
        each["metadata"]["ownerReferences"][0]["name"]
        for each in deployed.pods()
        for condition in each.get("status", {}).get("conditions", ())
        if MESSAGE in (condition.get("message") or "")
    }


def leader(*schedulers: Running) -> Running:
    def look() -> Running | None:
        return next((each for each in schedulers if each.process.poll() is None and is_leader(each)), None)

    return wait_for(look, "a leader")


def is_leader(scheduler: Running) -> bool:
    try:
        return bool(scheduler.json("/page/overview")["leader"]["leads"])
    except OSError:
        return False


def test_a_broken_canary_is_rolled_back_in_time_though_its_leader_is_killed(deployed: Deployed) -> None:
    settings = {"leader_election": {"enabled": True, "lease": f"{NAMESPACE}/policysched", **LEASE}}
    with (
        deployed.running(elect=True, settings=settings) as first,
        deployed.running(elect=True, settings=settings) as second,
    ):
        killed = leader(first, second)
        killed.wait_for_state("beta", "active")
        create(deployed, "early")
        deployed.all_bound(len(OWNERS))

        for name in NODES:
            deployed.api.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {"canary": None}}})
        create(deployed, "broken")
        broken_s = time.monotonic()
        wait_for(lambda: kept_from_nodes(deployed), "the canary to keep a pod from its node")
        killed.kill()

        touched: set[str] = set()

        def is_rolled_back() -> bool:
            touched.update(kept_from_nodes(deployed))
            return bool(deployed.events("policies", "CanaryRolledBack"))

        wait_for(is_rolled_back, "the rollback")
        deployed.all_bound(2 * len(OWNERS))
        took_s = time.monotonic() - broken_s

        assert took_s < ROLLED_BACK_WITHIN_S
        assert touched and all(in_share(owner) for owner in touched)
        assert len(touched) <= SHARE * len(OWNERS) + 1
        create(deployed, "late")
        deployed.all_bound(3 * len(OWNERS))
        left = first if killed is second else second
        assert "canary strict of policy beta is rolled back" in left.get("/readyz?verbose")

    with deployed.running(elect=True, settings=settings) as third:
        third.wait_for_state("beta", "active")
        create(deployed, "restarted")
        deployed.all_bound(4 * len(OWNERS))
        assert "canary strict of policy beta is rolled back" in third.get("/readyz?verbose")
        assert len(deployed.events("policies", "CanaryRolledBack")) == 1
