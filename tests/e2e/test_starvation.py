"""On a real control plane, nobody who is entitled to a quota waits for what others borrow.

Two teams borrow all that a third one leaves idle, and their pods are created anew as fast as they are evicted, as by a
controller. The node has room for all, so that only the quotas decide. Whether a quota was exceeded is read from a watch of
the whole test: no moment is left out.
"""

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.controlplane.api import Json
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.objects import ready_node
from tests.controlplane.waiting import wait_for
from tests.e2e.deployed import PODS, Deployed
from tests.e2e.preloaded import no_change
from tests.simulation import bugs_of_teams

POLICY = """\
policy test version 1
include kube_default
input team: string = pod.labels["team"] default "none"
input group: string = pod.labels["group"] optional
gang by group { min = 2  timeout = 10m }
quota team by team {
  "red" { cpu = 1 borrow 2 }
  "green" { cpu = 1 borrow 2 }
  "blue" { cpu = 4 }
  others { cpu = 0 }
}
queue by pod.queued
"""
MOST = {"red": 3, "green": 3, "blue": 4}
OWN = {"red": 1, "green": 1, "blue": 4}
ROUNDS = 3
BOUND_S = 60.0
"""Usually it takes a second. The machine may be slow."""


class Teams:
    """The pods of the teams: single ones of 1 cpu, and members of gangs of a little less. Large pods are evicted first: where
    gangs are evicted in part, they always are."""

    def __init__(self, deployed: Deployed) -> None:
        self._deployed = deployed
        self._created: Counter[str] = Counter()
        self._since_version = deployed.api.get(PODS)["metadata"]["resourceVersion"]
        self._on_nodes: dict[str, Json] = {}

    def create(self, team: str, count: int, *, gangs: int = 0) -> None:
        """So many single pods, and gangs of two."""
        for index in range(count + gangs):
            self._created[team] += 1
            name = f"{team}-{self._created[team]}"
            labels = {"team": team} | ({"group": name} if index >= count else {})
            for member in ("a", "b") if index >= count else ("a",):
                cpu = "900m" if "group" in labels else "1"
                self._deployed.create(f"{name}{member}", cpu=cpu, labels=labels)

    def recreate(self, team: str) -> None:
        """As a controller does: there is a single pod and two gangs of the team, or a little more."""
        groups = {pod["metadata"]["labels"].get("group") for pod in self._pods_of(team)}
        self.create(team, None not in groups, gangs=max(0, 2 - len(groups - {None})))

    def delete(self, team: str) -> None:
        for pod in self._pods_of(team):
            self._deployed.api.delete(f"{PODS}/{pod['metadata']['name']}")

    def running(self) -> dict[str, int]:
        return {team: sum(map(is_placed, self._pods_of(team))) for team in MOST}

    def has_partial_gang(self) -> bool:
        placed = filter(is_placed, self._deployed.pods(labelSelector="group"))
        return any(
            count != 2 for count in Counter(pod["metadata"]["labels"]["group"] for pod in placed).values()
        )

    def _pods_of(self, team: str) -> list[Json]:
        return self._deployed.pods(labelSelector=f"team={team}")

    def check_every_moment(self) -> None:
        """Since the last call no team had more than its quota and what it may borrow, nor all together more than all
        quotas."""
        for change in self._deployed.api.changes(PODS, self._since_version):
            pod = change["object"]
            assert change["type"] != "ERROR", pod
            self._since_version = pod["metadata"]["resourceVersion"]
            self._on_nodes.pop(pod["metadata"]["uid"], None)
            if change["type"] != "DELETED" and is_placed(pod):
                self._on_nodes[pod["metadata"]["uid"]] = pod
            used = Counter(placed["metadata"]["labels"]["team"] for placed in self._on_nodes.values())
            for team, count in used.items():
                assert count <= MOST[team], f"{team} has {count} pods"
            assert used.total() <= sum(OWN.values()), f"the quotas are exceeded: {used}"


def is_placed(pod: Json) -> bool:
    return "nodeName" in pod["spec"] and "deletionTimestamp" not in pod["metadata"]


@pytest.fixture
def deployed(control_plane: ControlPlane, tmp_path: Path) -> Deployed:
    return Deployed(control_plane, tmp_path)


def check_that_nobody_starves(
    deployed: Deployed, *, plant: Callable[[], None] = no_change, within_s: float = BOUND_S
) -> None:
    deployed.control_plane.add_node(ready_node("a", cpu="16"))
    deployed.put_policies(main=POLICY)
    teams = Teams(deployed)

    def borrowers_run() -> bool:
        teams.recreate("red")
        teams.recreate("green")
        running = teams.running()
        return running["red"] >= MOST["red"] and running["green"] >= MOST["green"] and not running["blue"]

    def owner_runs() -> bool:
        teams.recreate("red")
        teams.recreate("green")
        teams.check_every_moment()
        return teams.running()["blue"] == OWN["blue"] and not teams.has_partial_gang()

    with deployed.running(plant=plant) as program:
        program.wait_for_state("test", "active")
        for _ in range(ROUNDS):
            wait_for(borrowers_run, "red and green to run on what blue leaves idle")
            teams.create("blue", 2, gangs=1)
            wait_for(owner_runs, "blue to get its quota back", within_s=within_s)
            teams.check_every_moment()
            teams.delete("blue")


def test_the_owner_of_a_quota_gets_back_what_others_borrow_again_and_again(deployed: Deployed) -> None:
    check_that_nobody_starves(deployed)


def plant(bug: str) -> None:
    getattr(bugs_of_teams, bug)().start()


@pytest.mark.parametrize(
    ("bug", "message", "within_s"),
    [
        ("no_gang_takes_back", "in vain for blue to get its quota back", 5.0),
        ("gangs_that_borrow_are_evicted_in_part", "in vain for blue to get its quota back", 5.0),
        ("no_quota_refuses", r"(red|green) has \d+ pods", BOUND_S),
    ],
)
def test_a_planted_bug_is_found(deployed: Deployed, bug: str, message: str, within_s: float) -> None:
    with pytest.raises(AssertionError, match=message):
        check_that_nobody_starves(deployed, plant=partial(plant, bug), within_s=within_s)
