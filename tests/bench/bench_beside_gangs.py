"""Plain pods that arrive while a gang is attempted, of the gang's policy and of another: how long the slowest waits from
its arrival to its bind. The gangs: 1,000 equal members on 5,000 nodes, and 60 members with 16 terms each, which fit in
none of 500 racks. Times are those of the processor, as arrivals are."""

from collections.abc import Iterable
from time import process_time

from policysched.scheduler import events as e
from policysched.scheduler.commands import Bind, ReportPending
from policysched.scheduler.scheduler import Scheduler
from tests.bench.clusters import NODES, NOW_NS
from tests.bench.measuring import Row, shown
from tests.builders import node, pending, pod
from tests.hostile import HOSTILE_SPECS
from tests.scheduler.rig import bundle

GANG = """policy test version 1
input group: string = pod.labels["group"] optional
gang by group {{ min = {members}{more} }}
include kube_default
preemption never
"""
PLAIN = "policy plain version 1\ninclude kube_default\npreemption never\n"
ARRIVAL_S, LONGEST_S = 0.05, 30.0


def with_gang(members: int, nodes: int, *, more: str = "", terms: int = 0) -> Scheduler:
    scheduler = Scheduler()
    texts = {"test.policy": GANG.format(members=members, more=more), "plain.policy": PLAIN}
    scheduler.handle(e.PoliciesUpdated(bundle(texts), resource_version="1", last_good=None), NOW_NS)
    for index in range(nodes):
        rack = {"rack": f"r{index // 2}"}
        scheduler.handle(e.NodeUpdated(node(f"node-{index}", cpu="16", memory="64Gi", labels=rack)), NOW_NS)
    for index in range(members):
        spec = HOSTILE_SPECS["anti-affinity by host that selects nothing"](terms + index % 8) if terms else {}
        member = pod(
            f"g-{index}",
            cpu=f"{1000 + index}m" if terms else "4",
            memory="1Gi",
            labels={"group": "g"},
            spec=spec,
        )
        scheduler.handle(e.PodUpdated(pending(member)), NOW_NS)
    scheduler.handle(e.Synced(), NOW_NS)
    return scheduler


def longest_waits_s(scheduler: Scheduler) -> tuple[dict[str, float], float]:
    """By policy, and how long the attempt of the gang took."""
    began_s = process_time()
    arrived: dict[str, tuple[float, str]] = {}
    longest = {"test": 0.0, "plain": 0.0}
    next_s = gang_s = 0.0
    confirmed: list[e.Event] = []
    while not gang_s or arrived:
        now_s = process_time() - began_s
        assert now_s < LONGEST_S, "the attempt takes too long to be measured"
        now_ns = NOW_NS + round(now_s * 1e9)
        while confirmed and not scheduler.attempt_in_progress:
            scheduler.handle(confirmed.pop(), now_ns)
        while now_s >= next_s and not gang_s and not scheduler.attempt_in_progress:
            for policy in longest:  # the pod arrived at `next_s`, and its event waited in the inbox
                plain = pod(f"{policy}-{next_s:.2f}", cpu="100m", scheduler=policy)
                arrived[plain.uid] = next_s, policy
                scheduler.handle(e.PodUpdated(pending(plain)), now_ns)
            next_s += ARRIVAL_S
        for command in scheduler.decide(now_ns):
            if isinstance(command, Bind):
                confirmed.append(e.BindConfirmed(command.uid, command.node))
            if isinstance(command, Bind) and command.uid in arrived:
                at_s, policy = arrived.pop(command.uid)
                longest[policy] = max(longest[policy], process_time() - began_s - at_s)
            elif isinstance(command, Bind | ReportPending) and command.name.startswith("g-"):
                gang_s = gang_s or process_time() - began_s
    return longest, gang_s


def measure() -> Iterable[Row]:
    racks = with_gang(60, NODES // 5, more=' topology = "rack"', terms=8)
    kinds = {"1,000 equal members": with_gang(1_000, NODES), "60 members with terms, 500 racks": racks}
    for kind, scheduler in kinds.items():
        longest, gang_s = longest_waits_s(scheduler)
        yield Row(f"a gang of {kind}", shown(gang_s))
        yield Row("  longest wait of a plain pod, its policy", shown(longest["test"]))
        yield Row("  longest wait of a plain pod, another policy", shown(longest["plain"]))
