"""A decision with quotas beside one without: 5,000 nodes, 1,000 entities in 50 organisations, half of their amounts used."""

from collections.abc import Iterable
from statistics import median
from time import perf_counter

from policysched.lang.check.bundle import PolicyBundle
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.scheduler import Scheduler
from tests.bench.measuring import Row
from tests.builders import namespace, node, pending, pod
from tests.scheduler.rig import bundle

NODES, TEAMS, ORGS, ROUNDS = 5_000, 1_000, 50, 5
START_NS = 1_800_000_000 * 10**9
PLAIN = "policy bench version 1\ninclude kube_default\n"


def quotas_of(teams: int, orgs: int) -> str:
    """Two nested quotas, by the labels of namespaces."""
    rows_of_orgs = [f'  "o{org}" {{ cpu = {teams // orgs * 8} }}' for org in range(orgs)]
    rows_of_teams = [
        f'  "t{team}" in "o{team % orgs}" {{ cpu = 8 borrow any, memory = 64Gi, pods = 100 }}'
        for team in range(teams)
    ]
    return "\n".join(
        (
            'quota org by namespace.labels["org"] else "none" {',
            *rows_of_orgs,
            "  others { cpu = 0 }",
            "}",
            'quota team by namespace.labels["team"] else "none" within org {',
            *rows_of_teams,
            "  others { cpu = 0 }",
            "}",
            "",
        )
    )


def _bundle(text: str) -> PolicyBundle:
    return bundle({"bench.policy": text})


def _pods(rounds: int, first: int) -> list[Pod]:
    return [
        pod(f"p{first + index}", namespace=f"ns{index % TEAMS}", cpu="100m", memory="64Mi", scheduler="bench")
        for index in range(rounds * TEAMS)
    ]


class _Run:
    def __init__(self, text: str) -> None:
        self.scheduler = Scheduler(SchedulerLimits(binds_in_flight_max=10**9))
        self._handle(e.PoliciesUpdated(_bundle(text), "1", None, "bench", "bench"))
        for index in range(NODES):
            self._handle(e.NodeUpdated(node(f"n{index}", cpu="64", memory="256Gi")))
        for team in range(TEAMS):
            self._handle(e.NamespaceUpdated(namespace(f"ns{team}", org=f"o{team % ORGS}", team=f"t{team}")))
        self._handle(e.Synced())
        self.created = 0

    def _handle(self, event: e.Event) -> None:
        self.scheduler.handle(event, START_NS)

    def decide_us(self, rounds: int) -> float:
        """Microseconds a decision, for one pod of each team in each round."""
        created = _pods(rounds, self.created)
        self.created += len(created)
        for created_pod in created:
            observed: ObservedPod = pending(created_pod)
            self._handle(e.PodUpdated(observed))
        began, binds = perf_counter(), 0
        while self.scheduler.ready(START_NS):
            binds += sum(isinstance(command, c.Bind) for command in self.scheduler.decide(START_NS))
        took = perf_counter() - began
        assert binds == len(created), f"{binds} of {len(created)} pods are bound"
        return took / len(created) * 1e6


def measure() -> Iterable[Row]:
    plain, limited = _Run(PLAIN), _Run(PLAIN + quotas_of(TEAMS, ORGS))
    plain.decide_us(1), limited.decide_us(1)
    ratios, times = [], []
    for _ in range(ROUNDS):
        without, with_quotas = plain.decide_us(2), limited.decide_us(2)
        ratios.append(with_quotas / without)
        times.append((without, with_quotas))
    without, with_quotas = (median(column) for column in zip(*times, strict=True))
    yield Row("decision without quotas, 5,000 nodes", f"{without:.0f} µs", "")
    yield Row("decision with 1,000 entities", f"{with_quotas:.0f} µs", "")
    yield Row("ratio of the two", f"{median(ratios):.2f}", "1.3")
