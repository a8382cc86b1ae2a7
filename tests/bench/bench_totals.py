"""A decision with totals over placed pods and over topology domains beside one without: 5,000 nodes in 250 racks. And with
quotas of 1,000 teams beside them."""

from collections.abc import Iterable
from statistics import median
from time import process_time

from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.scheduler import Scheduler
from tests.bench.bench_quotas import quotas_of
from tests.bench.measuring import Row
from tests.builders import namespace, node, pending, pod
from tests.scheduler.rig import bundle

NODES, RACKS, APPS, TEAMS, ROUNDS, PODS = 5_000, 250, 50, 1_000, 7, 1_000
START_NS = 1_800_000_000 * 10**9
PLAIN = """\
policy bench version 1
include kube_default
filter known_app require (pod.labels["app"] else "") != "unknown"
"""
CLUSTER = """\
filter licences require count(placed pods where other.labels["app"] == pod.labels["app"]) < 100000
"""
DOMAINS = """\
filter power when has node.labels["rack"]
  require sum(other.requests.cpu over pods in "rack") + pod.requests.cpu <= 1000
filter rack_max when has node.labels["rack"]
  require count(pods in "rack" where other.labels["app"] == pod.labels["app"]) < 500
"""


class _Run:
    """`teams`: of the namespaces of the pods."""

    def __init__(self, rules: str, teams: int = 1) -> None:
        self.teams = teams
        self.scheduler = Scheduler(SchedulerLimits(binds_in_flight_max=10**9))
        self._handle(e.PoliciesUpdated(bundle({"bench.policy": PLAIN + rules}), "1", None, "bench", "bench"))
        for index in range(NODES):
            labels = {"rack": f"r{index % RACKS}"}
            self._handle(e.NodeUpdated(node(f"n{index}", cpu="64", memory="256Gi", labels=labels)))
        for team in range(TEAMS):
            self._handle(e.NamespaceUpdated(namespace(f"ns{team}", org=f"o{team % 50}", team=f"t{team}")))
        self._handle(e.Synced())
        self.created = 0

    def _handle(self, event: e.Event) -> None:
        self.scheduler.handle(event, START_NS)

    def decide_us(self) -> float:
        """CPU microseconds a decision."""
        for index in range(self.created, self.created + PODS):
            created = pod(
                f"p{index}",
                namespace=f"ns{index % self.teams}",
                labels={"app": f"a{index % APPS}"},
                cpu="100m",
                scheduler="bench",
            )
            self._handle(e.PodUpdated(pending(created)))
        self.created += PODS
        began, binds = process_time(), 0
        while self.scheduler.ready(START_NS):
            binds += sum(isinstance(command, c.Bind) for command in self.scheduler.decide(START_NS))
        took = process_time() - began
        assert binds == PODS, f"{binds} of {PODS} pods are bound"
        return took / PODS * 1e6


def measure() -> Iterable[Row]:
    totals = CLUSTER + DOMAINS
    runs = {
        "decision without totals, 5,000 nodes": _Run(""),
        "with a count of placed pods": _Run(CLUSTER),
        "and two totals for each of 250 racks": _Run(totals),
        "decision for pods of 1,000 teams": _Run("", TEAMS),
        "with the totals and nested quotas of the teams": _Run(totals + quotas_of(TEAMS, 50), TEAMS),
    }
    for run in runs.values():
        run.decide_us()
    times = [{title: run.decide_us() for title, run in runs.items()} for _ in range(ROUNDS)]
    for title, run in runs.items():
        yield Row(title, f"{median(turn[title] for turn in times):.0f} µs", "")
        plain = next(other for other in runs if runs[other].teams == run.teams)
        if title != plain:
            ratio = median(turn[title] / turn[plain] for turn in times)
            yield Row(f"ratio {title}", f"{ratio:.2f}", "1.3")
