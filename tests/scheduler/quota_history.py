"""Random histories of pods under random quotas, with faults, and the checkers of what quotas promise.

Checked at each placement: the definition (`tests.reference.quota`) admits the pod beside the placed pods. Checked at each
eviction: the victim counts towards an entity that borrows (all pods have one priority, so nothing else evicts). Checked
once faults have ended: nobody who is entitled waits, so what was borrowed has been given back.

The faults: refused and unanswered binds, refused evictions, evictions that are carried out late, pods that other
components bind above a limit, labels of namespaces that change, amounts that shrink, cordoned nodes, deleted and finished
pods, and controllers that replace what was evicted.
"""

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

from policysched.lang.ir.quotas import QuotaSpec
from policysched.model.pods import Pod
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.queue.entries import PendingPod, QueueState
from policysched.scheduler.steps import Steps
from tests.builders import finished, namespace, node, placed, pod
from tests.reference.quota import PlacedPod, limit_of, quota_path, quota_request, quota_use, quotas_admit
from tests.scheduler.rig import Rig

ORGS, TEAMS = ("x", "y"), ("a", "b", "c")
RECOVERY_S = 120.0


def quota_text(random: Random, cpu: int, *, shrunk: bool = False) -> str:
    """A policy for a cluster of this size: rows sum to at most what is above them."""
    lines = [
        "policy test version 1",
        "filter node_resources_fit",
        "filter node_unschedulable",
        random.choice(["queue by pod.quota_share.team, pod.name", "queue by pod.priority desc, pod.queued"]),
        'gang by pod.labels["group"] { min = 2  timeout = 30m }',
    ]
    left, lines_of_teams = cpu if not shrunk else max(2, cpu // 2), []
    lines.append('quota org by namespace.labels["org"] else "none" {')
    for org in ORGS:
        amount = left // 2 if org != ORGS[-1] else left
        left -= amount
        lines.append(f'  "{org}" {{ cpu = {amount}{_borrow(random, cpu)} }}')
        inside = amount
        for team in TEAMS:
            part = random.randint(0, inside)
            inside -= part
            lines_of_teams.append(f'  "{team}" in "{org}" {{ cpu = {part}{_borrow(random, cpu)} }}')
    lines += ["  others { cpu = 0 }", "}"]
    lines += [
        'quota team by pod.labels["team"] else "none" within org {',
        *lines_of_teams,
        "  others { cpu = 0 }",
        "}",
    ]
    return "\n".join(lines) + "\n"


def _borrow(random: Random, cpu: int) -> str:
    return random.choice(["", " borrow any", " borrow any", f" borrow {random.randint(1, cpu)}"])


class QuotaHistory:
    """One history. `problems` has a message for each violation."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.problems: list[str] = []
        self.cpu = self.random.choice([6, 8, 12])
        self.nodes = [node(f"n{index}", cpu=str(self.cpu)) for index in range(2)]
        self.rig = Rig(
            quota_text(self.random, self.cpu),
            *self.nodes,
            *[namespace(f"ns-{org}", org=org) for org in (*ORGS, "none")],
        )
        self.core = self.rig.scheduler._core
        self.handled_evictions = 0
        self.late: list[c.Evict] = []
        self.counts: Counter[str] = Counter()
        self.number = 0
        self._wrap()

    # ── checkers ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _wrap(self) -> None:
        attempts, preemption = self.rig.scheduler._pod_attempts, self.rig.scheduler._preemption
        assume, evict = attempts.assume, preemption.evict

        def check_assume(pending: PendingPod, success: Any, now_ns: int) -> None:
            if not quotas_admit(
                self.program, self.placed(), pending.pod, self.core.namespace_of(pending.pod)
            ):
                self.problems.append(f"{pending.pod.full_name} is placed above a quota")
            self.counts["placed"] += 1
            assume(pending, success, now_ns)

        def check_evict(pending: PendingPod, chosen: Any, now_ns: int) -> Steps[None]:
            self._check_victims(list(chosen.victims))
            return evict(pending, chosen, now_ns)

        attempts.assume = check_assume  # type: ignore[method-assign]
        preemption.evict = check_evict  # type: ignore[method-assign]

    def _check_victims(self, victims: list[Pod]) -> None:
        """In some order each victim is of a borrower; members of a gang are one."""
        remaining, left = self.placed(), list(victims)
        while left:
            group = next((candidate for candidate in left if self._borrows(candidate, remaining)), None)
            if group is None:
                names = ", ".join(candidate.full_name for candidate in left)
                self.problems.append(f"{names} evicted, and their entities borrow nothing")
                return
            evicted = {
                candidate.uid for candidate in left if candidate is group or self._same_gang(candidate, group)
            }
            left = [candidate for candidate in left if candidate.uid not in evicted]
            remaining = [entry for entry in remaining if entry[0].uid not in evicted]
        self.counts["evicted"] += len(victims)

    def _same_gang(self, candidate: Pod, other: Pod) -> bool:
        group = candidate.labels.get("group")
        return (
            group is not None
            and group == other.labels.get("group")
            and candidate.namespace == other.namespace
        )

    def _borrows(self, candidate: Pod, among: list[PlacedPod]) -> bool:
        space = self.core.namespace_of(candidate)
        for spec in self.program.quotas.values():
            path = quota_path(self.program, spec, candidate, space)
            limit = limit_of(spec, path, "cpu")
            if limit is not None and quota_use(self.program, spec, path, "cpu", among) > limit.amount:
                return True
        return False

    def starving(self) -> list[str]:
        """Pending pods that are within the amounts of all their entities, or that the quotas admit."""
        starving = []
        for pending in self.core.pods.values():
            candidate, space = pending.pod, self.core.namespace_of(pending.pod)
            if pending.state is QueueState.BINDING or "group" in candidate.labels:
                continue
            admitted = quotas_admit(self.program, self.placed(), candidate, space)
            if admitted and self._fits_a_node(candidate):
                starving.append(f"{candidate.full_name} is admitted and waits: {pending.pending_message}")
            elif not admitted and self._is_entitled(candidate):
                starving.append(f"{candidate.full_name} is entitled and waits: {pending.pending_message}")
        for gang in self.core.gangs:
            members = [pending.pod for pending in gang.pending_members.values()][: gang.needed_count]
            if members and gang.has_quorum and self._are_entitled(members):
                starving.append(f"gang {gang.name} is entitled and waits")
        return starving

    def _are_entitled(self, members: list[Pod]) -> bool:
        """Whether the members together, all of one team, stay within its amounts."""
        requested_cpu = sum(candidate.requests.get("cpu", 0) for candidate in members)
        return all(
            self._within_amount(spec, members[0], requested_cpu) for spec in self.program.quotas.values()
        )

    def _is_entitled(self, candidate: Pod) -> bool:
        return all(self._within_amount(spec, candidate) for spec in self.program.quotas.values())

    def _within_amount(self, spec: QuotaSpec, candidate: Pod, requested_cpu: int | None = None) -> bool:
        space = self.core.namespace_of(candidate)
        path = quota_path(self.program, spec, candidate, space)
        limit = limit_of(spec, path, "cpu")
        if requested_cpu is None:
            requested_cpu = quota_request(self.program, "cpu", candidate, space)
        return (
            limit is None
            or quota_use(self.program, spec, path, "cpu", self.placed()) + requested_cpu <= limit.amount
        )

    def _fits_a_node(self, candidate: Pod) -> bool:
        ledger = self.core.cache.ledger
        return any(
            known.allocatable["cpu"] - ledger.usage(known.name).requested.get("cpu", 0)
            >= candidate.requests.get("cpu", 0)
            for known in self.core.cache.nodes.values()
            if not known.unschedulable
        )

    @property
    def program(self) -> Any:
        return self.core.policies.running["test"].program

    def placed(self) -> list[PlacedPod]:
        return [
            (placement.pod, self.core.namespace_of(placement.pod))
            for placement in self.core.cache.ledger.placements
            if placement.pod.scheduler == "test"
        ]

    # ── actions ────────────────────────────────────────────────────────────────────────────────────────────────────

    def run(self, steps: int = 40) -> "QuotaHistory":
        for _ in range(steps):
            self._act()
            self._settle()
            if self.random.random() < 0.4:
                self.rig.pass_time(self.random.choice([1, 5, 20]))
                self._answer_evictions(late=self.random.random() < 0.3)
        self._recover()
        self.problems += self.starving()
        return self

    def _settle(self) -> None:
        self.rig.settle()
        self._answer_evictions(late=self.random.random() < 0.3)

    def _act(self) -> None:
        random = self.random
        match random.choice(
            ["create"] * 8
            + ["gang"] * 2
            + ["confirm"] * 4
            + ["refuse", "end", "end", "end", "foreign", "label", "shrink", "cordon"]
        ):
            case "create":
                self.rig.observe(*[self._new_pod() for _ in range(random.randint(1, 3))])
            case "gang":
                self.number += 1
                group = {"group": f"g{self.number}"}
                team, org = random.choice(TEAMS), random.choice(ORGS)
                self.rig.observe(*[self._new_pod(team=team, org=org, **group) for _ in range(2)])
            case "confirm":
                self._answer_binds()
            case "refuse":
                binds = self.rig.in_flight_binds()
                if binds:
                    self.rig.handle(e.BindRefused(random.choice(binds).uid, "no"))
            case "end":
                in_flight = self.core.binds.in_flight
                running = [entry[0] for entry in self.placed() if entry[0].uid not in in_flight]
                if running:
                    candidate = random.choice(running)
                    self.rig.observe(finished(candidate, "n0")) if random.random() < 0.5 else self.rig.handle(
                        e.PodDeleted(candidate.uid)
                    )
            case "foreign":
                if random.random() < 0.4:
                    self.rig.observe(placed(self._new_pod(), random.choice(self.nodes).name))
            case "label":
                if random.random() < 0.4:
                    org = random.choice(ORGS)
                    self.rig.observe(namespace(f"ns-{org}", org=random.choice((*ORGS, "elsewhere"))))
            case "shrink":
                if random.random() < 0.4:
                    self.rig.apply_policies(quota_text(random, self.cpu, shrunk=random.random() < 0.5))
            case "cordon":
                cordoned = random.choice(self.nodes)
                self.rig.observe(replace(cordoned, unschedulable=random.random() < 0.5))

    def _new_pod(self, team: str = "", org: str = "", **labels: str) -> Pod:
        self.number += 1
        random = self.random
        return pod(
            f"p{self.number}",
            namespace=f"ns-{org or random.choice(ORGS)}",
            cpu=str(random.choice([1, 1, 1, 2, 3])),
            labels={"team": team or random.choice(TEAMS), **labels},
        )

    def _answer_evictions(self, *, late: bool) -> None:
        evictions = self.rig.of(c.Evict)
        new = evictions[self.handled_evictions :]
        self.handled_evictions = len(evictions)
        for eviction in new:
            if late and self.random.random() < 0.3:
                self.rig.handle(e.EvictionRefused(eviction.uid, "not now", forbidden=False, victims=()))
                continue
            self.rig.handle(e.Evicted(eviction.uid, tuple(victim.uid for victim in eviction.victims)))
            self.late.append(eviction)
        if not late:
            leaving, self.late = self.late, []
            for victim in [victim for eviction in leaving for victim in eviction.victims]:
                evicted = self.core.cache.pods.get(victim.uid)
                self.rig.handle(e.PodDeleted(victim.uid))
                if evicted is not None and self.random.random() < 0.5:  # its controller replaces it
                    self.number += 1
                    self.rig.observe(replace(evicted.pod, uid=f"uid-{self.number}", name=f"p{self.number}"))
        self.rig.settle()

    def _answer_binds(self) -> None:
        for bind in self.rig.in_flight_binds():
            observed = self.core.cache.pods.get(bind.uid)
            if observed is None:
                self.rig.handle(e.BindLost(bind.uid, "the pod is gone"))
                continue
            self.rig.handle(e.BindConfirmed(bind.uid, bind.node))
            self.rig.handle(e.PodUpdated(replace(observed, node=bind.node)))

    def _recover(self) -> None:
        """Faults have ended; the clock runs until everything borrowed can have been given back."""
        self.rig.observe(*self.nodes)
        for _ in range(round(RECOVERY_S / 10)):
            self._answer_binds()
            self._answer_evictions(late=False)
            self.rig.pass_time(10)
