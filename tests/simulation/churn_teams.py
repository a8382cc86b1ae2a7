"""What teams with quotas do to a cluster, and users of PodGroups; and how often they do it in a seed.

The profile and the actions have random streams of their own, so that seeds without teams stay what they were.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from policysched.model.pod_groups import GROUP_LABEL
from policysched.sandbox.local_client import LocalClient
from policysched.scheduler.gangs.neighbours import JOB_INDEX
from policysched.scheduler.steps import NEW_CLASS_COST
from tests.simulation.churn_nodes import random_object
from tests.simulation.team_texts import GROUP_POLICY, QUOTA_POLICY, TEAM_SCHEDULERS, TEAM_TEXTS, TEAMS

Json = dict[str, Any]

NO_PAUSES = 10**9
"""As `gang_piece_cost_max`."""
MEMBER_PREFIX = "member-"
"""Of the names of gang members whose binds may be refused."""


@dataclass(frozen=True, slots=True)
class TeamProfile:
    """`refused_binds_share`: of the binds of their gang members. `gang_piece_cost_max`, `gang_head_start_cost`: when the
    attempts of all gangs pause, and when pods behind them are decided."""

    action_weights: Mapping[str, float]
    action_interval_s: float
    refused_binds_share: float
    gang_piece_cost_max: int
    gang_head_start_cost: int


TEAM_ACTIONS: Mapping[str, float] = {
    "create a team's pod": 10.0,
    "create a team's gang": 4.0,
    "create a PodGroup": 4.0,
    "add to a PodGroup": 2.0,
    "change a PodGroup": 1.5,
    "delete a PodGroup": 1.0,
    "delete a Workload": 0.5,
    "delete a team's pod": 6.0,
    "change the quotas": 1.0,
    "change the groups' policy": 0.7,
}

PODS_MAX = 40
"""Of the teams."""


def draw_team_profile(random: Random) -> TeamProfile | None:
    """None in half of the seeds. Each kind of action is absent from some of the others."""
    if random.random() < 0.5:
        return None
    weights = {name: weight for name, weight in TEAM_ACTIONS.items() if random.random() < 0.8}
    return TeamProfile(
        action_weights=weights or dict(TEAM_ACTIONS),
        action_interval_s=random.choice((0.5, 1.0, 2.0)),
        refused_binds_share=random.choice((0.0, 0.1, 0.3)),
        gang_piece_cost_max=random.choice((1, 1, 4, NO_PAUSES)),
        gang_head_start_cost=random.choice((0, NEW_CLASS_COST + 6, 50_000)),
    )


class TeamChurn:
    """`texts` and `write_texts` read and replace the texts of the policies; `disturb` is called with the gang, by
    schedulerName, namespace and name, whose members cease to agree with what was decided."""

    def __init__(
        self,
        local: LocalClient,
        random: Random,
        *,
        log: Callable[[str], None],
        texts: Callable[[], dict[str, str]],
        write_texts: Callable[[Mapping[str, str]], None],
        disturb: Callable[[tuple[str, str, str]], None],
    ) -> None:
        self._local, self._random, self._log = local, random, log
        self._texts, self._write_texts, self._disturb = texts, write_texts, disturb
        self._count = 0
        self._actions: dict[str, Callable[[], None]] = {
            "create a team's pod": self.create_pod,
            "create a team's gang": self.create_gang,
            "create a PodGroup": self.create_group,
            "add to a PodGroup": self.add_to_group,
            "change a PodGroup": self.change_group,
            "delete a PodGroup": self.delete_group,
            "delete a Workload": self.delete_workload,
            "delete a team's pod": self.delete_pod,
            "change the quotas": lambda: self._edit("zeta.policy"),
            "change the groups' policy": lambda: self._edit("eta.policy"),
        }

    def perform(self, action: str) -> None:
        self._actions[action]()

    def populate(self) -> None:
        self._write_texts({**self._texts(), **{key: texts[0] for key, texts in TEAM_TEXTS.items()}})
        for _ in range(self._random.randint(2, 8)):
            self.create_pod()

    def restore_policies(self) -> None:
        """A valid text for each policy."""
        texts = self._texts()
        kept = {key: texts[key] if texts.get(key) in valid else valid[0] for key, valid in TEAM_TEXTS.items()}
        self._write_texts({**texts, **kept})

    def _edit(self, key: str) -> None:
        self._log(f"{key} is edited")
        self._write_texts({**self._texts(), key: self._random.choice(TEAM_TEXTS[key])})

    # ── teams ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def create_pod(self) -> None:
        self._create(f"team-pod-{self._next()}", QUOTA_POLICY, self._team_labels())

    def create_gang(self) -> None:
        random, group = self._random, f"team-gang-{self._next()}"
        members, labels = random.randint(2, 3), self._team_labels()
        cpu = random.choice(("250m", "500m"))
        self._log(f"{members} members of gang {group}")
        for _ in range(members):
            member = {**labels, "group": group, "least": str(members)}
            self._create(f"{MEMBER_PREFIX}{group}-{self._next()}", QUOTA_POLICY, member, cpu=cpu)

    def _team_labels(self) -> dict[str, str]:
        org, team = self._random.choice(TEAMS)
        keep = {"keep": "me"} if self._random.random() < 0.1 else {}
        return {"org": org, "team": team, **keep}

    def delete_pod(self) -> None:
        pod = self._random_object("pods", lambda pod: pod["spec"]["schedulerName"] in TEAM_SCHEDULERS)
        if pod is not None:
            self._log(f"pod {pod['metadata']['name']} of a team is deleted")
            self._local.delete("pods", pod, grace_period_s=self._random.choice((None, 0)))

    # ── PodGroups ─────────────────────────────────────────────────────────────────────────────────────────────────

    def create_group(self) -> None:
        """The pods may come before their group, too few of them, or name another group as well."""
        random, name = self._random, f"group-{self._next()}"
        members, least = random.randint(2, 4), random.randint(2, 4)
        self._log(f"PodGroup {name} with {members} members, at least {least}")
        spec: Json = {"schedulingPolicy": {"gang": {"minCount": least}}}
        if random.random() < 0.1:
            spec = {"schedulingPolicy": {"basic": {}}}
        if random.random() < 0.2:
            workload = f"workload-{name}"
            spec["workloadRef"] = {"workloadName": workload, "templateName": "t"}
            if random.random() < 0.7:
                self._local.create("workloads", "default", {"metadata": {"name": workload}, "spec": {}})
        if random.random() < 0.3:
            spec["disruptionMode"] = {random.choice(("all", "single")): {}}
        body = {"metadata": {"name": name}, "spec": spec}
        late = random.random() < 0.3
        if not late:
            self._local.create("podgroups", "default", body)
        cpu = random.choice(("250m", "500m", "1"))
        for rank in range(members):
            self._create_member(name, rank, cpu)
        if late:
            self._local.create("podgroups", "default", body)

    def add_to_group(self) -> None:
        group = self._random_object("podgroups")
        if group is not None:
            self._create_member(group["metadata"]["name"], self._random.randint(0, 9), "250m")

    def _create_member(self, group: str, rank: int, cpu: str) -> None:
        labels = {"group": group, JOB_INDEX: str(rank)}
        if self._random.random() < 0.04:
            labels[GROUP_LABEL] = "another"
        scheduler = GROUP_POLICY if self._random.random() < 0.97 else QUOTA_POLICY
        more = {"schedulingGroup": {"podGroupName": group}}
        name = f"{MEMBER_PREFIX}{group}-{self._next()}"
        self._create(name, scheduler, labels, cpu=cpu, more=more)

    def change_group(self) -> None:
        group = self._random_object("podgroups")
        if group is None:
            return
        least = self._random.randint(1, 5)
        self._log(f"PodGroup {group['metadata']['name']} has a minimum of {least} now")
        self._disturb((GROUP_POLICY, "default", group["metadata"]["name"]))
        spec = {**group["spec"], "schedulingPolicy": {"gang": {"minCount": least}}}
        self._local.update("podgroups", group, lambda group: {**group, "spec": spec})

    def delete_group(self) -> None:
        group = self._random_object("podgroups")
        if group is not None:
            self._log(f"PodGroup {group['metadata']['name']} is deleted")
            self._disturb((GROUP_POLICY, "default", group["metadata"]["name"]))
            self._local.delete("podgroups", group)

    def delete_workload(self) -> None:
        workload = self._random_object("workloads")
        if workload is not None:
            self._log(f"Workload {workload['metadata']['name']} is deleted")
            group = workload["metadata"]["name"].removeprefix("workload-")
            self._disturb((GROUP_POLICY, "default", group))
            self._local.delete("workloads", workload)

    # ── objects ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _create(
        self,
        name: str,
        scheduler: str,
        labels: Mapping[str, str],
        *,
        cpu: str | None = None,
        more: Mapping[str, object] | None = None,
    ) -> None:
        random = self._random
        own = [pod for pod in self._local.list("pods") if pod["spec"]["schedulerName"] in TEAM_SCHEDULERS]
        if len(own) >= PODS_MAX:
            return
        requests = {"cpu": cpu or random.choice(("250m", "500m", "1")), "memory": "32Mi"}
        container = {"name": "c", "image": "app:1", "resources": {"requests": requests}}
        spec: Json = {"schedulerName": scheduler, "containers": [container], **(more or {})}
        if "group" not in labels and random.random() < 0.2:
            spec["priorityClassName"] = "system-cluster-critical"
        self._log(f"pod {name} of {scheduler}: {requests['cpu']} cpu, {dict(labels)}")
        metadata = {"name": name, "namespace": "default", "labels": dict(labels)}
        self._local.create("pods", "default", {"metadata": metadata, "spec": spec})

    def _random_object(self, plural: str, wanted: Callable[[Json], bool] = lambda _: True) -> Json | None:
        return random_object(self._local, self._random, plural, wanted)

    def _next(self) -> int:
        self._count += 1
        return self._count


__all__ = ["MEMBER_PREFIX", "NO_PAUSES", "TeamChurn", "TeamProfile", "draw_team_profile"]
