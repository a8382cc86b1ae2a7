"""Selectors of devices are evaluated before their pod is attempted, in slices, while others are decided, and the search of
devices is cut off and goes on in the next attempt."""

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from policysched.cluster.devices import (
    allocation_cache,
    allocator,
    cel_environment,
    cel_selectors,
    pod_selectors,
    pools,
    search_limits,
    selector_results,
)
from policysched.cluster.devices.allocation_cache import AllocationCache
from policysched.cluster.devices.availability import AvailableDevices
from policysched.cluster.devices.cel_selectors import DeviceSelectors
from policysched.cluster.devices.pod_selectors import too_many_selectors_message
from policysched.explanations import live
from policysched.explanations.live import NotExplainable, explain_running
from policysched.lang.ir.extender_results import ExtenderResult
from policysched.model.devices import Device
from policysched.model.identifiers import ResourceClaimKey
from policysched.scheduler import attempt_runner
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.policies.extender_capabilities import ExtenderCapabilities
from policysched.scheduler.queue.decision_time import DecisionTime
from tests.builders import node, placed, pod
from tests.devices import DRIVER, ask, asking, claim, claiming, device_class, device_slice, given, gpu
from tests.scheduler.rig import Rig

TEN = "[1,2,3,4,5,6,7,8,9,10]"
DEFAULT, OTHER = (f"policy {name} version 1\ninclude kube_default\n" for name in ("test", "other"))
MS = 10**6
NODES, DEVICES_PER_NODE = 40, 8
STEP_COST = 100
"""Of one call of `decide`: 50,000 operations."""


def slow(number: int = 0) -> str:
    """A selector that takes about 50,000 operations for a device, and selects none."""
    return f"{TEN}.all(a, {TEN}.all(b, {TEN}.all(c, a + b + c > {number}))) && false"


@pytest.fixture
def evaluated(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The expressions in the order of their evaluations for a device."""
    made: list[str] = []
    matches = DeviceSelectors.matches

    def counting(self: DeviceSelectors, expression: str, driver: str, device: Device) -> bool:
        made.append(expression)
        return matches(self, expression, driver, device)

    monkeypatch.setattr(DeviceSelectors, "matches", counting)
    yield made


def rig_with(*claims: Any, policies: str = DEFAULT, extenders: Any = None, **more: Any) -> Rig:
    texts = {"main.policy": DEFAULT, "other.policy": OTHER}
    names = [f"n{number}" for number in range(NODES)]
    limits = SchedulerLimits(attempt_step_cost_max=STEP_COST, **more)
    rig = Rig(
        texts, *[node(name, cpu="8") for name in names], limits=limits, synced=False, extenders=extenders
    )
    slices = [device_slice(name, *[gpu(f"g{at}") for at in range(DEVICES_PER_NODE)]) for name in names]
    rig.handle(*[e.DeviceObjectUpdated(item) for item in (device_class(), *slices, *claims)])
    rig.handle(e.Synced())
    return rig


def user(name: str = "hostile", of: str = "c", **more: Any) -> Any:
    return pod(name, namespace="default", spec=claiming(of), **more)


def decide(rig: Rig, elapsed_ms: int = 0) -> list[str]:
    """One call; the names of pods that it binds."""
    commands = rig.scheduler.decide(rig.now_ns)
    rig.commands += commands
    rig.scheduler.account_time(elapsed_ms * MS)
    rig.now_ns += elapsed_ms * MS
    rig.check_invariants()
    return [command.name for command in commands if isinstance(command, c.Bind)]


def test_no_call_evaluates_more_than_a_slice_of_the_devices(evaluated: list[str]) -> None:
    rig = rig_with(claim("c", asking("r", slow())))
    rig.observe(user())

    slices = []
    while rig.scheduler.ready(rig.now_ns):
        before = len(evaluated)
        decide(rig)
        slices.append(len(evaluated) - before)

    assert len(evaluated) == NODES * DEVICES_PER_NODE
    assert max(slices) <= 2
    assert rig.pending_message("hostile") == (
        "0/40 nodes are available: 40 cannot allocate all claims. "
        "preemption: 0/40 nodes are available: 40 Preemption is not helpful for scheduling."
    )


@pytest.mark.parametrize("scheduler", ["test", "other"])
def test_a_plain_pod_of_another_namespace_is_bound_meanwhile(scheduler: str, evaluated: list[str]) -> None:
    rig = rig_with(claim("c", asking("r", slow())))
    rig.observe(user())
    decide(rig, elapsed_ms=5)
    rig.observe(pod("plain", namespace="friendly", scheduler=scheduler, created="2027-01-01T00:00:00Z"))

    calls = next(calls for calls in range(1, 1_000) if "plain" in decide(rig, elapsed_ms=5))

    assert calls <= 25  # the namespace may spend 100 ms at once, and a tenth of the time
    assert len(evaluated) < NODES * DEVICES_PER_NODE


def test_cel_is_loaded_with_the_first_slice_and_not_while_a_pod_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded: list[None] = []

    def environment() -> Any:
        loaded.append(None)
        return cel_environment.environment()

    monkeypatch.setattr(cel_selectors, "environment", environment)
    rig = rig_with(claim("c", asking("r", "true")))
    assert len(loaded) == 1

    rig.observe(user())
    decide(rig)

    assert len(loaded) == 1


def test_events_are_applied_between_two_slices(evaluated: list[str]) -> None:
    rig = rig_with(claim("c", asking("r", slow())))
    rig.observe(user())
    decide(rig)

    assert not rig.scheduler.attempt_in_progress
    rig.handle(e.PodDeleted(user().uid))
    rig.settle()

    assert len(evaluated) <= 2


def test_a_changed_slice_is_evaluated_again_and_no_other(evaluated: list[str]) -> None:
    rig = rig_with(claim("c", asking("r", slow())))
    rig.observe(user())
    rig.settle()
    evaluated.clear()

    rig.handle(e.DeviceObjectUpdated(device_slice("n3", gpu("new"), generation=2, version=2)))
    rig.pass_time(20)

    assert evaluated == [slow()]


def test_a_gang_is_attempted_once_the_selectors_of_all_members_are_evaluated(evaluated: list[str]) -> None:
    gang = DEFAULT + 'input group: string = pod.labels["group"] optional\ngang by group { min = 2 }\n'
    rig = rig_with(claim("c", asking("r", "true")), claim("d", asking("r", "!false")))
    rig.apply_policies(gang)
    rig.settle()
    for name, of in (("one", "c"), ("two", "d")):
        rig.observe(user(name, of, labels={"group": "g"}))

    while not rig.of(c.Prebind):
        assert rig.scheduler.ready(rig.now_ns)
        before = len(evaluated)
        decide(rig)
        assert len(evaluated) - before <= 50

    assert len(evaluated) == 2 * NODES * DEVICES_PER_NODE


def test_a_pod_with_too_many_selectors_stays_pending_with_a_message(
    evaluated: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("policysched.cluster.devices.pod_selectors.SELECTORS_MAX", 3)
    rig = rig_with(claim("c", asking("r", *[slow(number) for number in range(4)])))

    rig.observe(user(), pod("plain", namespace="friendly"))
    rig.settle()

    assert rig.pending_message("hostile") == (
        "the resource claims have more than 3 different device selectors"
    )
    assert evaluated == []
    assert rig.bind_order() == ["plain"]


@pytest.mark.parametrize("pods", [1, 50])
def test_a_claim_that_is_used_many_times_is_read_once(pods: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim has up to 8,192 selectors: 1.6 seconds for 1,000 uses, several times in each attempt."""
    rig, reads = rig_with(claim("c", asking("r", "true"))), list[ResourceClaimKey]()
    allocation = AvailableDevices.allocation
    uses = [{"name": f"r{number}", "resourceClaimName": "c"} for number in range(100)]

    def counting(self: AvailableDevices, key: ResourceClaimKey) -> Any:
        reads.append(key)
        return allocation(self, key)

    monkeypatch.setattr(AvailableDevices, "allocation", counting)
    hostile = [pod(f"hostile-{number}", spec={"resourceClaims": uses}) for number in range(pods)]
    selectors = pod_selectors._selectors(hostile, rig.scheduler.cache.devices)

    assert (selectors, len(reads)) == ({"true": None}, 1)


@pytest.mark.parametrize("what", ["unallocated", "one is allocated", "alternatives", "extended resources"])
def test_many_claims_of_a_pod_are_read_once_for_all_nodes(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """64 claims with a selector each were read on each of 1,000 nodes: 80 ms in one piece, and several of them for a pod with one
    that is allocated."""
    count = 5
    requests = [asking("r", f"{number} == {number}") for number in range(count)]
    if what == "alternatives":
        requests = [
            {"name": "r", "firstAvailable": [{"name": "a", **ask(f"{number} == {number}")}]}
            for number in range(count)
        ]
    allocated = {"c0": given("g7", node="n3")} if what == "one is allocated" else {}
    claims = [
        claim(f"c{number}", requests[number], status=allocated.get(f"c{number}")) for number in range(count)
    ]
    rig, reads = rig_with(*claims), Counter[ResourceClaimKey]()
    allocation = AvailableDevices.allocation

    def counting(self: AvailableDevices, key: ResourceClaimKey) -> Any:
        reads[key] += 1
        return allocation(self, key)

    monkeypatch.setattr(AvailableDevices, "allocation", counting)
    uses = [{"name": f"r{number}", "resourceClaimName": f"c{number}"} for number in range(count)]
    requested: dict[str, Any] = {}
    if what == "extended resources":
        rig.handle(e.DeviceObjectUpdated(device_class("more", extendedResourceName="example.com/gpu")))
        requested = {"limits": {"example.com/gpu": "1"}}
    rig.observe(pod("hostile", namespace="default", spec={"resourceClaims": uses}, **requested))
    of_calls = []
    while rig.scheduler.ready(rig.now_ns):
        reads.clear()
        decide(rig)
        of_calls.append(max(reads.values(), default=0))

    assert len(rig.of(c.Prebind)) == 1
    assert max(of_calls) < NODES / 2


def test_of_many_claims_with_many_selectors_few_are_visited(monkeypatch: pytest.MonkeyPatch) -> None:
    """384 ms for 40 claims of 8,192 selectors, in each slice."""
    monkeypatch.setattr("policysched.cluster.devices.pod_selectors.SELECTORS_MAX", 3)
    visited = Counter[str]()

    class Selectors(tuple[str, ...]):
        def __iter__(self) -> Iterator[str]:
            for selector in super().__iter__():
                visited[selector] += 1
                yield selector

    equal = [f"{number} == {number}" for number in range(3)]
    different = [f"{number} > 0" for number in range(100)]
    claims = [
        claim(f"c{number}", *[asking(f"r{again}", *equal) for again in range(20)]) for number in range(40)
    ]
    claims += [claim(f"c{number}", asking("r", *different)) for number in range(40, 50)]
    for each in claims:
        object.__setattr__(each, "_selectors", Selectors(each.selectors))
    rig = rig_with(*claims)
    uses = [{"name": f"r{number}", "resourceClaimName": f"c{number}"} for number in range(50)]
    hostile = pod("hostile", spec={"resourceClaims": uses})

    assert too_many_selectors_message([hostile], rig.scheduler.cache.devices) is not None
    assert visited == {**dict.fromkeys(equal, 40), different[0]: 1}


@pytest.mark.parametrize("change", ["the class", "an allocation"])
def test_a_pod_with_too_many_selectors_is_tried_again_when_it_has_fewer(
    monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr("policysched.cluster.devices.pod_selectors.SELECTORS_MAX", 3)
    rig = rig_with(claim("c", asking("r", *[f"{number} == {number}" for number in range(3)])))
    rig.handle(e.DeviceObjectUpdated(device_class("gpu", "true")))
    rig.observe(user())
    rig.settle()
    assert "more than 3 different device selectors" in str(rig.pending_message("hostile"))

    if change == "the class":
        rig.handle(e.DeviceObjectUpdated(device_class()))
    else:
        allocated = claim("c", asking(), version=2, status=given("g0", node="n1"))
        rig.handle(e.DeviceObjectUpdated(allocated))
    rig.pass_time(20)

    assert [prebind.name for prebind in rig.of(c.Prebind)] == ["hostile"]


def test_least_recently_used_selectors_are_dropped_and_evaluated_again(
    evaluated: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selector_results, "SELECTORS_CACHED_MAX", 2)
    claims = [claim(name, asking("r", f"{number} == 9")) for number, name in enumerate("abc")]
    rig = rig_with(*claims)
    for name in "abca":
        rig.observe(user(f"of-{name}-{len(evaluated)}", name))
        rig.settle()

    assert len(evaluated) == 4 * NODES * DEVICES_PER_NODE
    assert len(rig.scheduler.cache.devices.allocation_cache.selector_results._known) == 2


def test_pods_with_more_selectors_together_than_are_kept_do_not_drop_each_others_without_end(
    evaluated: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eight namespaces take turns, each with half as many selectors as are kept, and one with a single selector."""
    monkeypatch.setattr("policysched.cluster.devices.pod_selectors.SELECTORS_MAX", 2)
    monkeypatch.setattr(selector_results, "SELECTORS_CACHED_MAX", 4)
    quick = f"{TEN}.all(a, {TEN}.all(b, a + b > %d)) && false"  # ten devices in a slice
    counts = {f"hostile-{number}": 2 for number in range(8)} | {"friendly": 1}
    claims = []
    for namespace, count in counts.items():
        item = claim("c", asking("r", *[quick % -(10 * len(claims) + at) for at in range(count)]))
        claims.append(replace(item, key=ResourceClaimKey(namespace, "c")))
    rig = rig_with(*claims)
    for namespace in counts:
        rig.observe(pod(namespace, namespace=namespace, spec=claiming("c")))

    attempted: list[str] = []
    for _ in range(1_500):
        decide(rig, elapsed_ms=5)
        attempted += [
            name for name in counts if name not in attempted and rig.pending_message(name) is not None
        ]
        if len(attempted) == len(counts):
            break
        if not rig.scheduler.ready(rig.now_ns):
            rig.pass_time(1)

    assert attempted[0] == "friendly"
    assert len(attempted) == len(counts)


def test_a_log_of_slices_that_is_rewritten_loses_no_slice(evaluated: list[str]) -> None:
    rig = rig_with(claim("c", asking("r", "false")))
    rig.observe(user())
    rig.settle()
    results = rig.scheduler.cache.devices.allocation_cache.selector_results

    for version in range(2, 300):
        rig.handle(
            e.DeviceObjectUpdated(device_slice("n1", gpu(f"g{version}"), generation=version, version=version))
        )
        assert not results.is_evaluated(["false"])
        assert results.evaluate_some(["false"], None)

    assert len(evaluated) == NODES * DEVICES_PER_NODE + 298
    assert len(results._log) < 300


# ── the search ─────────────────────────────────────────────────────────────────────────────────────────────────────


def combining(name: str = "c", prefix: str = "r") -> Any:
    """A claim of three devices whose last two must be one: all combinations of a node are tried."""
    requests = [asking(f"{prefix}{number}") for number in range(3)]
    same = {"requests": [f"{prefix}1", f"{prefix}2"], "matchAttribute": f"{DRIVER}/uuid"}
    return claim(name, *requests, constraints=[same])


def searching_rig(
    monkeypatch: pytest.MonkeyPatch, *more: Any, steps_max: int = 2_000
) -> tuple[Rig, list[int]]:
    """The list has one item for each step of a search."""
    steps: list[int] = []
    count_step = allocator.DeviceSearch._count_step

    def counting(self: allocator.DeviceSearch, count: int = 1) -> bool:
        steps.extend([1] * count)
        return count_step(self, count)

    monkeypatch.setattr(allocator.DeviceSearch, "_count_step", counting)
    monkeypatch.setattr(attempt_runner, "ATTEMPT_STEPS_MAX", steps_max)
    rig = rig_with(combining(), gang_backtracks_max=2)
    slices = [
        device_slice(
            f"n{number}",
            *[gpu(f"g{at}", attributes={"uuid": f"{number}-{at}"}) for at in range(DEVICES_PER_NODE)],
            version=2,
            generation=2,
        )
        for number in range(NODES)
    ]
    rig.handle(*[e.DeviceObjectUpdated(item) for item in (*slices, *more)])
    return rig, steps


def test_an_attempt_searches_no_more_than_its_steps_and_the_next_one_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig, steps = searching_rig(monkeypatch)
    rig.observe(user())

    rounds = []
    for _ in range(60):
        before = len(steps)
        rig.settle()
        rounds.append(len(steps) - before)
        if rig.pending_message("hostile") != search_limits.SEARCH_CONTINUES:
            break
        rig.pass_time(1)

    of_a_node = len(steps) // NODES
    assert len(steps) == NODES * of_a_node, "no node is searched twice"
    assert max(rounds) < 2_000 + of_a_node
    assert len(rounds) > 3
    assert rig.pending_message("hostile") == (
        "0/40 nodes are available: 40 cannot allocate all claims. "
        "preemption: 0/40 nodes are available: 40 Preemption is not helpful for scheduling."
    )


def test_a_pod_whose_search_was_cut_off_gets_the_node_that_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    fitting = device_slice(
        f"n{NODES - 1}",
        *[gpu(f"g{at}", attributes={"uuid": "same"}) for at in range(3)],
        version=3,
        generation=3,
    )
    rig, steps = searching_rig(monkeypatch, fitting)
    rig.observe(user())

    for _ in range(60):
        rig.settle()
        if rig.of(c.Prebind):
            break
        rig.pass_time(1)

    (prebind,) = rig.of(c.Prebind)
    assert prebind.node == f"n{NODES - 1}"
    assert len(steps) > 4_000


def test_others_are_decided_between_two_slices_of_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, steps = searching_rig(monkeypatch, steps_max=1_000_000)
    monkeypatch.setattr(attempt_runner, "SLICE_STEPS_MAX", 1_000)
    rig.observe(user())

    slices = []
    while rig.pending_message("hostile") is None:
        before = len(steps)
        bound = decide(rig, elapsed_ms=5)
        slices.append(len(steps) - before)
        if len(slices) == 3:
            rig.observe(pod("plain", namespace="friendly", scheduler="other", created="2027-01-01T00:00:00Z"))
        if "plain" in bound:
            bound_after = len(slices)
        if not rig.scheduler.ready(rig.now_ns):
            rig.pass_time(1)

    assert max(slices) < 1_000 + STEPS_OF_A_NODE
    assert 3 < bound_after < len(slices)
    assert rig.scheduler.core.pods[user().uid].attempts == 1
    assert len(steps) < NODES * STEPS_OF_A_NODE, "no node is searched twice"


def steps_of_search(rig: Rig, gpus: list[dict[str, Any]]) -> int:
    """Of the search for the only claim on a node that now has these devices."""
    rig.handle(e.DeviceObjectUpdated(device_slice("n0", *gpus, version=2, generation=2)))
    allowance = search_limits.SearchAllowance()
    devices = rig.scheduler.cache.devices
    with devices.allocation_cache.limited(allowance):
        item = devices.claims[next(iter(devices.claims))]
        devices.allocation_cache.find([item], rig.scheduler.cache.nodes["n0"], None, (item.spec_text,))
    return search_limits.ATTEMPT_STEPS_MAX - allowance.steps_left


@pytest.mark.parametrize("shared", [False, True])
def test_devices_that_lack_capacity_count_as_several_steps(shared: bool) -> None:
    """Each is compared with what is requested, and left out."""

    def steps_of(names: int) -> int:
        amounts = {f"c{at:02}": "80Gi" for at in range(names)}
        gpus = [gpu(f"g{at}", capacity=amounts, allowMultipleAllocations=shared) for at in range(64)]
        wanted = {**amounts, f"c{names - 1:02}": "81Gi"}
        return steps_of_search(rig_with(claim("c", asking(capacity={"requests": wanted}))), gpus)

    assert steps_of(32) > 5 * steps_of(1)


@pytest.mark.parametrize("more", ["constraints", "tolerations", "capacities"])
def test_a_device_with_much_to_compare_counts_as_several_steps(more: str) -> None:
    requests = [asking(f"r{number}") for number in range(3)]
    constraints = [{"requests": ["r1", "r2"], "matchAttribute": f"{DRIVER}/uuid"}]
    device: dict[str, Any] = {}
    match more:
        case "constraints":
            constraints += [{"matchAttribute": f"{DRIVER}/same"}] * 31
        case "tolerations":
            for request in requests:
                request["exactly"]["tolerations"] = [
                    {"key": f"k{at}", "operator": "Exists"} for at in range(16)
                ]
            device["taints"] = [{"key": "k15", "effect": "NoSchedule"}] * 4
        case "capacities":
            device["capacity"] = {f"c{at}": "80Gi" for at in range(32)}

    def steps_of(requests: Any, constraints: Any, device: dict[str, Any]) -> int:
        gpus = [gpu(f"g{at}", attributes={"uuid": str(at), "same": "x"}, **device) for at in range(8)]
        return steps_of_search(rig_with(claim("c", *requests, constraints=constraints)), gpus)

    assert steps_of(requests, constraints, device) > 1.5 * steps_of(requests, constraints[:1], {})


def test_a_search_within_its_steps_is_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, _ = searching_rig(monkeypatch, steps_max=search_limits.ATTEMPT_STEPS_MAX)
    rig.observe(user())

    rig.settle()

    message = rig.pending_message("hostile")
    assert message is not None and message.startswith(
        "0/40 nodes are available: 40 cannot allocate all claims."
    )


NODES_OF_A_SLICE = 5
"""Where a slice has 40 steps: five of a search, as for all, and three or more of what is requested."""


def searches_of_calls(rig: Rig, searches: list[Any]) -> list[int]:
    """How many nodes each call of `decide` searched, until there is nothing to do."""
    counts = []
    while rig.scheduler.ready(rig.now_ns):
        before = len(searches)
        decide(rig, elapsed_ms=1)
        counts.append(len(searches) - before)
    return counts


def test_a_new_claim_is_searched_on_few_nodes_in_a_call(
    monkeypatch: pytest.MonkeyPatch, searches: list[Any]
) -> None:
    monkeypatch.setattr(attempt_runner, "SLICE_STEPS_MAX", 40)
    rig = rig_with(claim("c", asking("r")))
    rig.observe(user())

    counts = searches_of_calls(rig, searches)

    assert max(counts) <= NODES_OF_A_SLICE
    assert len(searches) == len(set(searches)) == NODES
    assert [prebind.name for prebind in rig.of(c.Prebind)] == ["hostile"]


def change_shared_devices(rig: Rig, version: int, devices: int = 1) -> None:
    """Each change has all nodes searched from the first one on."""
    gpus = [gpu(f"s{at}") for at in range(devices)]
    shared = device_slice(None, *gpus, name="shared", allNodes=True, version=version, generation=version)
    rig.handle(e.DeviceObjectUpdated(shared))


@pytest.mark.parametrize("is_known", [False, True])
def test_a_search_ends_beside_somebody_who_changes_shared_devices_all_the_time(
    monkeypatch: pytest.MonkeyPatch, searches: list[Any], is_known: bool
) -> None:
    """After two restarts it keeps what was found before a change, and its slices do not grow."""
    monkeypatch.setattr(attempt_runner, "SLICE_STEPS_MAX", 40)
    monkeypatch.setattr(sys.modules[__name__], "STEP_COST", 10_000)  # a slice is one call
    rig = rig_with(claim("c", asking("r")), claim("d", asking("r")))
    if is_known:
        rig.observe(user("first", "d"))
        searches_of_calls(rig, searches)
    prebound = len(rig.of(c.Prebind))
    rig.observe(user())

    counts = []
    for version in range(2, 16):
        before = len(searches)
        change_shared_devices(rig, version)
        decide(rig, elapsed_ms=1)
        counts.append(len(searches) - before)

    assert [prebind.name for prebind in rig.of(c.Prebind)][prebound:] == ["hostile"]
    slices = list(filter(None, counts))
    assert max(slices) <= NODES_OF_A_SLICE
    assert sum(slices) <= NODES + 3 * NODES_OF_A_SLICE


def test_a_long_search_ends_beside_changes_of_shared_devices_within_the_steps_of_an_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig, steps = searching_rig(monkeypatch, steps_max=search_limits.ATTEMPT_STEPS_MAX)
    rig.observe(user())
    attempts: list[int] = []

    for version in range(3, 60):
        before = len(steps)
        change_shared_devices(rig, version, devices=0)
        decide(rig)
        attempts.append(len(steps) - before)
        if rig.pending_message("hostile") is not None:
            break

    of_a_pass = NODES * STEPS_OF_A_NODE
    assert (rig.pending_message("hostile") or "").startswith("0/40 nodes are available: 40 cannot allocate")
    assert max(attempts) <= of_a_pass
    assert sum(attempts) < 4 * of_a_pass


def allocate_shared(rig: Rig, name: str, version: int, *gpus: str) -> None:
    """To a claim of somebody else; none: its devices are free again."""
    status = given(*gpus, node=None) if gpus else None
    rig.handle(e.DeviceObjectUpdated(claim(name, asking(), version=version, status=status)))


def search_beside_changes(rig: Rig, searches: list[Any], nodes: int) -> None:
    """Until so many nodes were searched, and nothing begins anew any more. `s1` is used now and then."""
    for version in range(2, 300):
        allocate_shared(rig, "x", version, *["s1"] * (version % 2))
        decide(rig, elapsed_ms=1)
        if len({name for _, name, _ in searches}) >= nodes:
            return
    raise AssertionError(f"the search does not end: {len(searches)}")


@pytest.mark.parametrize("others", [["s0"], ["s0", "s1"]])
def test_a_device_that_is_allocated_during_a_search_is_not_given_out_again(
    monkeypatch: pytest.MonkeyPatch, searches: list[Any], others: list[str]
) -> None:
    """The search has found it for most nodes before."""
    monkeypatch.setattr(attempt_runner, "SLICE_STEPS_MAX", 40)
    monkeypatch.setattr(sys.modules[__name__], "STEP_COST", 10_000)
    rig = rig_with(
        claim("c", asking("r", count=DEVICES_PER_NODE + 1))
    )  # beside those of the node a shared one
    shared = device_slice(None, gpu("s0"), gpu("s1"), name="shared", allNodes=True)
    rig.handle(e.DeviceObjectUpdated(shared))
    rig.observe(user())
    search_beside_changes(rig, searches, nodes=NODES - 3)
    allocate_shared(rig, "x", 1_000)
    allocate_shared(rig, "y", 1_001, *others)

    rig.settle()

    chosen = [device.device.device for reserve in rig.of(c.Prebind) for device in reserve_of(reserve)]
    assert [name for name in chosen if name.startswith("s")] == (["s1"] if others == ["s0"] else [])
    assert rig.pending_message("hostile") is None or not chosen


def test_the_node_that_an_extender_prefers_has_to_have_the_devices_now(
    monkeypatch: pytest.MonkeyPatch, searches: list[Any]
) -> None:
    """It is not the one that the evaluation selected, which has enough devices of its own."""
    monkeypatch.setattr(attempt_runner, "SLICE_STEPS_MAX", 40)
    monkeypatch.setattr(sys.modules[__name__], "STEP_COST", 10_000)
    asking_extender = 'include kube_default\nscore flat weight 100 prefer node.name == "n0"\nextender gpu weight 500 missing neutral\n'
    extenders = {"gpu": ExtenderCapabilities(filters=True, scores=True)}
    asked = asking("r", count=DEVICES_PER_NODE + 1)
    rig = rig_with(claim("c", asked), claim("d", asked), extenders=extenders)
    rig.apply_policies({"main.policy": f"policy test version 1\n{asking_extender}", "other.policy": OTHER})
    own = device_slice("n0", *[gpu(f"g{at}") for at in range(DEVICES_PER_NODE + 1)], version=2, generation=2)
    shared = device_slice(None, gpu("s0"), gpu("s1"), name="shared", allNodes=True)
    rig.handle(*[e.DeviceObjectUpdated(item) for item in (own, shared)])
    rig.observe(user())
    rig.settle()
    (call,) = rig.of(c.CallExtenders)
    other = user("other", "d", scheduler="other")  # it searches the same, and most nodes before a change
    allocate_shared(rig, "x", 1, "s1")
    rig.observe(other)
    searches.clear()
    search_beside_changes(rig, searches, nodes=NODES - 3)
    rig.handle(e.PodDeleted(other.uid))
    allocate_shared(rig, "x", 1_000)
    allocate_shared(rig, "y", 1_001, "s0", "s1")

    monkeypatch.setattr(attempt_runner, "SLICE_STEPS_MAX", 10_000)
    rig.handle(e.ExtendersAnswered(call.call_id, {"gpu": ExtenderResult({}, {"n5": 10, "n0": 0})}))
    rig.settle()

    chosen = [device.device.device for prebind in rig.of(c.Prebind) for device in reserve_of(prebind)]
    assert not {"s0", "s1"} & {*chosen}


@pytest.mark.parametrize("steps_max", [10_000, 60])
def test_the_answer_of_an_extender_is_kept_until_the_search_for_devices_ends(
    monkeypatch: pytest.MonkeyPatch, steps_max: int
) -> None:
    """Beside devices that change all the time, each answer finds that nothing is searched any more: it was used up by the first
    slice, and the extender was asked again without end."""
    monkeypatch.setattr(attempt_runner, "SLICE_STEPS_MAX", 40)
    monkeypatch.setattr(attempt_runner, "ATTEMPT_STEPS_MAX", steps_max)
    monkeypatch.setattr(sys.modules[__name__], "STEP_COST", 10_000)
    extenders = {"gpu": ExtenderCapabilities(filters=True, scores=True)}
    rig = rig_with(claim("c", asking("r")), extenders=extenders)
    rig.apply_policies(
        {"main.policy": f"{DEFAULT}extender gpu weight 500 missing neutral\n", "other.policy": OTHER}
    )
    rig.observe(user())
    answered = 0

    for version in range(2, 80):
        change_shared_devices(rig, version)
        for call in rig.of(c.CallExtenders)[answered:]:
            rig.handle(e.ExtendersAnswered(call.call_id, {"gpu": ExtenderResult({}, {"n5": 10})}))
            answered += 1
        if not rig.scheduler.ready(rig.now_ns):
            rig.now_ns += 1_000 * MS
        decide(rig, elapsed_ms=1)

    assert answered == 1
    assert [prebind.name for prebind in rig.of(c.Prebind)] == ["hostile"]


def test_a_class_that_changes_during_a_search_is_the_one_that_the_chosen_node_has_to_satisfy(
    monkeypatch: pytest.MonkeyPatch, searches: list[Any]
) -> None:
    monkeypatch.setattr(attempt_runner, "SLICE_STEPS_MAX", 40)
    monkeypatch.setattr(sys.modules[__name__], "STEP_COST", 10_000)
    rig = rig_with(claim("c", asking("r")))
    rig.handle(e.DeviceObjectUpdated(device_slice(None, gpu("s1"), name="shared", allNodes=True)))
    rig.observe(user())
    search_beside_changes(rig, searches, nodes=NODES - 8)

    assert not rig.of(c.Prebind)
    rig.handle(e.DeviceObjectUpdated(device_class("gpu", 'device.driver == "another"')))
    rig.settle()

    assert not rig.of(c.Prebind)


def rig_for_all_devices_of_n0(monkeypatch: pytest.MonkeyPatch) -> Rig:
    """With a claim for all devices of a node but shared ones, a policy that prefers n0, and short slices."""
    monkeypatch.setattr(attempt_runner, "SLICE_STEPS_MAX", 40)
    monkeypatch.setattr(sys.modules[__name__], "STEP_COST", 10_000)
    rig = rig_with(claim("c", asking("r", 'device.driver != "shared"', allocationMode="All")))
    preferring = f'{DEFAULT}score flat weight 100 prefer node.name == "n0"\n'
    rig.apply_policies({"main.policy": preferring, "other.policy": OTHER})
    return rig


def test_all_devices_that_were_found_are_not_searched_again_beside_other_allocations(
    monkeypatch: pytest.MonkeyPatch, searches: list[Any]
) -> None:
    """A node with thousands of devices takes longer than what is left of a slice."""
    rig = rig_for_all_devices_of_n0(monkeypatch)
    shared = device_slice(None, gpu("s0"), gpu("s1"), name="shared", allNodes=True, driver="shared")
    rig.handle(e.DeviceObjectUpdated(shared))
    rig.observe(user())
    search_beside_changes(rig, searches, nodes=NODES - 8)
    assert not rig.of(c.Prebind)
    verified: list[bool] = []
    still_holds = allocator.DeviceSearch.still_holds

    def noting(self: Any, *args: Any, **more: Any) -> bool:
        verified.append(still_holds(self, *args, **more))
        return verified[-1]

    monkeypatch.setattr(allocator.DeviceSearch, "still_holds", noting)
    allocate_shared(rig, "x", 1_000)
    rig.settle()

    assert [prebind.node for prebind in rig.of(c.Prebind)] == ["n0"]
    assert verified == [True]


def test_all_devices_are_those_that_the_chosen_node_has_at_the_end_of_a_search(
    monkeypatch: pytest.MonkeyPatch, searches: list[Any]
) -> None:
    rig = rig_for_all_devices_of_n0(monkeypatch)
    shared = device_slice(None, gpu("s1"), name="shared", driver="shared", allNodes=True)
    rig.handle(e.DeviceObjectUpdated(shared))
    rig.observe(user())
    for version in range(2, 300):
        gpus = [gpu(f"s{at}") for at in range(1 + version % 2)]
        more = {"version": version, "generation": version}
        changed = device_slice(None, *gpus, name="shared", driver="shared", allNodes=True, **more)
        rig.handle(e.DeviceObjectUpdated(changed))
        decide(rig, elapsed_ms=1)
        if len({name for _, name, _ in searches}) >= NODES - 8:
            break
    assert not rig.of(c.Prebind)
    added = [device_slice(f"n{at}", gpu("more"), name=f"more-{at}", pool=f"more-{at}") for at in range(NODES)]
    rig.handle(*[e.DeviceObjectUpdated(each) for each in added])
    rig.settle()

    (prebind,) = rig.of(c.Prebind)
    assert len(reserve_of(prebind)) == DEVICES_PER_NODE + 1


def reserve_of(prebind: Any) -> Any:
    (reserved,) = prebind.claims_to_reserve
    return reserved.allocation.devices


def test_a_device_that_becomes_free_during_a_search_is_found_a_second_later(
    monkeypatch: pytest.MonkeyPatch, searches: list[Any]
) -> None:
    monkeypatch.setattr(attempt_runner, "SLICE_STEPS_MAX", 40)
    monkeypatch.setattr(sys.modules[__name__], "STEP_COST", 10_000)
    in_use = [claim(f"y{number}", asking(), status=given("g0", node=f"n{number}")) for number in range(NODES)]
    rig = rig_with(claim("c", asking("r", count=DEVICES_PER_NODE)), *in_use)
    rig.handle(e.DeviceObjectUpdated(device_slice(None, gpu("s1"), name="shared", allNodes=True)))
    allocate_shared(rig, "x", 1, "s1")
    rig.observe(user())
    version = 1
    while len({name for _, name, _ in searches}) < NODES - 3:
        version += 2
        allocate_shared(rig, "x", version - 1)  # for a moment
        allocate_shared(rig, "x", version, "s1")
        decide(rig, elapsed_ms=1)
    rig.handle(e.DeviceObjectUpdated(claim("y0", asking(), version=2)))
    rig.settle()
    assert not rig.of(c.Prebind), "as no event tells of it any more"

    rig.pass_time(1)

    assert [prebind.node for prebind in rig.of(c.Prebind)] == ["n0"]


def heavy_rig(monkeypatch: pytest.MonkeyPatch, *more: Any) -> tuple[Rig, list[int]]:
    """The claim has thousands of combinations on the first node, and on the others no device."""
    rig, steps = searching_rig(monkeypatch, steps_max=search_limits.ATTEMPT_STEPS_MAX)
    monkeypatch.setattr(sys.modules[__name__], "STEP_COST", 10_000)
    gpus = [gpu(f"g{at}", attributes={"uuid": str(at)}) for at in range(20)]
    slices = [device_slice(f"n{number}", version=4, generation=4) for number in range(1, NODES)]
    slices += [device_slice("n0", *gpus, version=4, generation=4), *more]
    rig.handle(*[e.DeviceObjectUpdated(item) for item in slices])
    return rig, steps


def steps_of_calls(rig: Rig, steps: list[int], change: Any = None) -> list[int]:
    """Of each call of `decide`, until the pod is decided about. `change` is called with a growing number before each."""
    counts = []
    for number in range(10, 100):
        if rig.pending_message("hostile") is not None or rig.of(c.Prebind):
            return counts
        if change is not None:
            change(number)
        before = len(steps)
        decide(rig, elapsed_ms=1)
        counts.append(len(steps) - before)
    raise AssertionError(f"the search does not end: {counts}")


def test_the_search_on_one_node_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, steps = heavy_rig(monkeypatch)
    rig.observe(user())

    counts = steps_of_calls(rig, steps)

    assert sum(counts) > 5_000
    assert max(counts) < search_limits.SLICE_STEPS_MAX + search_limits.PIECE_STEPS
    assert (rig.pending_message("hostile") or "").startswith("0/40 nodes are available: 40 cannot allocate")


def test_a_node_whose_search_was_divided_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [gpu(f"g{at:02}", attributes={"uuid": str(min(at, 17))}) for at in range(19)]
    rig, steps = heavy_rig(monkeypatch, device_slice("n0", *gpus, version=5, generation=5))
    rig.observe(user())

    counts = steps_of_calls(rig, steps)

    (prebind,) = rig.of(c.Prebind)
    assert len(counts) > 1
    assert [device.device.device for device in reserve_of(prebind)] == ["g00", "g17", "g18"]


def test_a_node_is_found_beside_allocations_of_other_devices_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its search goes on beside them, and would otherwise begin anew until the node is rejected."""
    gpus = [gpu(f"g{at:02}", attributes={"uuid": str(min(at, 18))}) for at in range(20)]
    fitting = device_slice("n0", *gpus, version=5, generation=5)
    shared = device_slice(None, gpu("s0"), name="shared", allNodes=True)
    rig, steps = heavy_rig(monkeypatch, fitting, shared)
    monkeypatch.setattr(attempt_runner, "SLICE_STEPS_MAX", 100)
    rig.observe(user())

    steps_of_calls(rig, steps, lambda number: allocate_shared(rig, "x", number, *["s0"] * (number % 2)))

    assert [prebind.node for prebind in rig.of(c.Prebind)] == ["n0"]


@pytest.mark.parametrize("what", ["allocations of the node", "slices of the node", "shared allocations"])
def test_the_search_on_one_node_ends_beside_changes_of_it_all_the_time(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    rig, steps = heavy_rig(monkeypatch, device_slice(None, gpu("s0"), name="shared", allNodes=True))
    rig.observe(user())

    def change(number: int) -> None:
        if what == "slices of the node":
            gpus = [gpu(f"g{at}", attributes={"uuid": str(at)}) for at in range(20)]
            rig.handle(e.DeviceObjectUpdated(device_slice("n0", *gpus, version=number, generation=number)))
            return
        node = "n0" if what == "allocations of the node" else None
        status = given("g0" if node else "s0", node=node) if number % 2 else None
        rig.handle(e.DeviceObjectUpdated(claim("x", asking(), version=number, status=status)))

    counts = steps_of_calls(rig, steps, change)

    assert max(counts) < search_limits.SLICE_STEPS_MAX + 2 * search_limits.PIECE_STEPS
    assert sum(counts) < 6 * search_limits.STEPS_MAX


def test_a_node_that_loses_its_devices_with_a_label_during_its_search_gets_no_pod(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither the slice changes nor what is allocated of it."""
    gpus = [gpu(f"g{at:02}", attributes={"uuid": str(min(at, 17))}) for at in range(19)]
    terms = [{"matchExpressions": [{"key": "gpus", "operator": "Exists"}]}]
    of_label = device_slice(None, *gpus, name="of-label", nodeSelector={"nodeSelectorTerms": terms})
    rig, steps = heavy_rig(monkeypatch, of_label, device_slice("n0", version=5, generation=5))
    monkeypatch.setattr(attempt_runner, "SLICE_STEPS_MAX", 100)
    rig.observe(node("n0", cpu="8", labels={"gpus": ""}))
    rig.observe(user())
    decide(rig, elapsed_ms=1)

    assert steps and not rig.scheduler.attempt_in_progress
    rig.observe(node("n0", cpu="8"))
    steps_of_calls(rig, steps)

    assert not rig.of(c.Prebind)
    assert (rig.pending_message("hostile") or "").startswith("0/40 nodes are available: 40 cannot allocate")


def test_a_search_that_began_anew_finds_nothing_that_was_true_before(
    monkeypatch: pytest.MonkeyPatch, searches: list[Any]
) -> None:
    monkeypatch.setattr(attempt_runner, "SLICE_STEPS_MAX", 40)
    asked = asking("r", count=DEVICES_PER_NODE + 1)  # beside those of the node a shared one
    rig = rig_with(claim("c", asked))
    change_shared_devices(rig, 2)
    rig.observe(user())
    decide(rig, elapsed_ms=1)
    found = len(searches)

    change_shared_devices(rig, 3, devices=0)
    searches_of_calls(rig, searches)

    assert 0 < found < NODES
    assert not rig.of(c.Prebind)
    change_shared_devices(rig, 4)
    rig.settle()
    rig.pass_time(10)
    assert [prebind.name for prebind in rig.of(c.Prebind)] == ["hostile"]


def test_a_pod_of_another_policy_is_bound_while_a_claim_is_searched(
    monkeypatch: pytest.MonkeyPatch, searches: list[Any]
) -> None:
    monkeypatch.setattr(attempt_runner, "SLICE_STEPS_MAX", 40)
    rig = rig_with(claim("c", asking("r")))
    rig.observe(user())
    decide(rig, elapsed_ms=110)  # its namespace has spent what it may at once
    rig.observe(pod("plain", namespace="friendly", created="2027-01-01T00:00:00Z"))

    assert decide(rig) == ["plain"]
    assert len(searches) <= NODES_OF_A_SLICE


def test_the_claims_of_a_gang_are_searched_on_few_nodes_in_a_call(
    monkeypatch: pytest.MonkeyPatch, searches: list[Any]
) -> None:
    monkeypatch.setattr(allocation_cache, "PIECE_STEPS", 40)
    monkeypatch.setattr(sys.modules[__name__], "STEP_COST", 20)
    rig = rig_with(claim("c0", asking("r0")), claim("c1", asking("r1")))
    rig.apply_policies(GANG % 2)
    rig.observe(member(0, "c0"), member(1, "c1"))

    counts = searches_of_calls(rig, searches)

    assert max(counts) <= NODES_OF_A_SLICE + 1, "beside the node that the first member changes"
    assert len(searches) == len(set(searches)) == 2 * NODES + 1
    assert len(rig.of(c.Prebind)) == 2


@pytest.mark.parametrize("fits", [True, False])
def test_a_namespace_pays_for_a_repeated_search_only_if_it_is_in_vain(
    monkeypatch: pytest.MonkeyPatch, searches: list[Any], fits: bool
) -> None:
    """Each allocation of a device that several nodes can use has all nodes searched again for the next pod."""
    monkeypatch.setattr(attempt_runner, "SLICE_STEPS_MAX", 40)
    charged: list[int] = []
    monkeypatch.setattr(DecisionTime, "charge_failed_attempt", lambda *charge: charged.append(charge[2]))
    rig = rig_with(*[claim(f"c{number}", asking("r", count=1 if fits else 99)) for number in range(2)])

    def slices() -> int:
        calls = len(searches_of_calls(rig, searches))
        assert calls > 5
        return calls * MS

    rig.observe(user("first", "c0"))
    spent = slices()
    assert sum(charged) in (spent, spent - MS), "all slices of a new search"
    charged.clear()
    rig.handle(e.DeviceObjectUpdated(device_slice(None, gpu("s"), name="shared", allNodes=True)))
    if fits:
        rig.observe(user("second", "c1"))
    else:
        rig.now_ns += 5_000 * MS

    spent = slices()

    assert len(searches) == 2 * NODES
    assert sum(charged) == (0 if fits else spent)


# ── explanations of a running scheduler ──────────────────────────────────────────────────────────────────────────────


def test_an_explanation_evaluates_selectors_in_slices_and_gives_up(
    evaluated: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = rig_with(claim("c", asking("r", slow())))
    rig.observe(user())

    slices = []
    for _ in explain_running(rig.scheduler.core, "default/hostile", rig.now_ns):
        slices.append(len(evaluated) - sum(slices))
    assert len(evaluated) == NODES * DEVICES_PER_NODE
    assert max(slices) <= 2

    monkeypatch.setattr(live, "_SELECTOR_SLICES_MAX", 3)
    rig.handle(e.DeviceObjectUpdated(claim("d", asking("r", slow(1)))))
    rig.observe(user("later", "d"))
    with pytest.raises(NotExplainable, match="try again"):
        list(explain_running(rig.scheduler.core, "default/later", rig.now_ns))


def test_an_explanation_searches_no_more_than_the_steps_of_an_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig, steps = searching_rig(monkeypatch)
    monkeypatch.setattr(live, "SearchAllowance", lambda: search_limits.SearchAllowance(2_000))
    rig.observe(user())

    *_, result = explain_running(rig.scheduler.core, "default/hostile", rig.now_ns)

    of_a_node = 2_000
    assert result is not None
    assert 2_000 <= len(steps) < 2_000 + of_a_node
    assert not rig.scheduler.cache.devices.allocation_cache.is_cut_off


def test_preemption_searches_no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """An eviction frees none before the pod is gone, so only nodes that have the devices already are candidates. A search
    that is cut off ends before preemption, and goes on in the next attempt."""
    totals, rounds = [], []
    for steps_max in (search_limits.ATTEMPT_STEPS_MAX, 1_000):
        equal = [gpu(f"h{at}", attributes={"uuid": "same"}) for at in range(2)]
        unequal = [gpu(f"g{at}", attributes={"uuid": str(at)}) for at in range(DEVICES_PER_NODE)]
        fitting = [
            device_slice(f"n{number}", *unequal, *equal, version=3, generation=3) for number in range(NODES)
        ]
        rig, steps = searching_rig(monkeypatch, *fitting, steps_max=steps_max)
        for number in range(NODES):
            rig.observe(placed(pod(f"full-{number}", cpu="8", priority=-1), f"n{number}"))
        rig.observe(user(cpu="4"))
        seconds = 0
        while not rig.of(c.Evict):
            rig.settle()
            rig.pass_time(1)
            seconds += 1
        totals.append(len(steps))
        rounds.append(seconds)

    assert rounds[0] == 1 < rounds[1]
    assert totals[0] == totals[1], "each node is searched once, and none again for the eviction"


# ── the search for a gang ────────────────────────────────────────────────────────────────────────────────────────────


GANG = DEFAULT + 'input group: string = pod.labels["group"] optional\ngang by group { min = %d }\n'


def member(number: int, of: str, **more: Any) -> Any:
    created = f"2026-01-01T00:00:{number:02}Z"
    return user(f"member-{number}", of, labels={"group": "g"}, created=created, **more)


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The searches: of which claims, on which node, and what is allocated in the hypothetical cluster."""
    made: list[Any] = []
    search = AllocationCache._begin_search

    def counting(self: AllocationCache, claims: Any, on: Any, overlay: Any, *more: Any) -> Any:
        allocated = () if overlay is None else tuple(sorted(map(str, overlay.usage.whole)))
        made.append((tuple(each.spec_text for each in claims), on.name, allocated))
        return search(self, claims, on, overlay, *more)

    monkeypatch.setattr(AllocationCache, "_begin_search", counting)
    return made


STEPS_OF_A_NODE = 700
"""Steps of a search for `combining`, at most."""


def searching_rounds(rig: Rig, steps: list[int]) -> list[int]:
    """The steps of each attempt until there are none for half a minute, longer than any backoff."""
    rig.settle()
    rounds = [len(steps)]
    while any(rounds[-30:]):
        before = len(steps)
        rig.pass_time(1)
        rounds.append(len(steps) - before)
    return rounds


@pytest.mark.parametrize("fits", [False, True])
def test_the_search_for_a_gang_goes_on_where_it_was_cut_off(
    monkeypatch: pytest.MonkeyPatch, searches: list[Any], fits: bool
) -> None:
    """The first member takes a device of a node, on which claims of six texts are then searched in vain."""
    rig, steps = searching_rig(monkeypatch, steps_max=1_000)
    rig.apply_policies(GANG % 2)
    claims = [claim(f"c{number}", asking(f"r{number}")) for number in (0, 7)]
    claims += [combining(f"c{number}", prefix=f"r{number}-") for number in range(1, 7)]
    rig.handle(*[e.DeviceObjectUpdated(item) for item in claims])
    for number in range(8 if fits else 7):
        rig.observe(member(number, f"c{number}"))

    rounds = searching_rounds(rig, steps)

    assert {prebind.name for prebind in rig.of(c.Prebind)} == ({"member-0", "member-7"} if fits else set())
    assert len([count for count in rounds if count]) > 10
    assert max(rounds) < 1_000 + 8 * search_limits.MEMBER_STEPS_MAX + STEPS_OF_A_NODE
    assert len(searches) == len(set(searches)), "nothing is searched twice"


def test_the_search_for_a_gang_that_evicts_pods_goes_on_where_it_was_cut_off(
    monkeypatch: pytest.MonkeyPatch, searches: list[Any]
) -> None:
    unequal = [gpu(f"g{at}", attributes={"uuid": str(at)}) for at in range(DEVICES_PER_NODE)]
    equal = [gpu(f"h{at}", attributes={"uuid": "same"}) for at in range(2)]
    fitting = [
        device_slice(f"n{number}", *unequal, *equal, version=3, generation=3) for number in range(NODES)
    ]
    rig, steps = searching_rig(monkeypatch, *fitting, steps_max=1_000)
    rig.apply_policies(GANG % 4)
    for number in range(4):
        rig.handle(e.DeviceObjectUpdated(combining(f"c{number}", prefix=f"r{number}-")))
    for number in range(NODES):
        rig.observe(placed(pod(f"full-{number}", cpu="8", priority=-1), f"n{number}"))
    for number in range(4):
        rig.observe(member(number, f"c{number}", cpu="2"))

    rounds = searching_rounds(rig, steps)

    assert len(rig.of(c.Evict)) == 4
    assert max(rounds) < 1_000 + 4 * search_limits.MEMBER_STEPS_MAX + STEPS_OF_A_NODE
    assert len(searches) == len(set(searches)), "nothing is searched twice"


def gang_steps_of_calls(rig: Rig, steps: list[int], change: Any = None) -> list[int]:
    """Of each call, until the gang is decided about. `change` is called with a growing number after each slice."""
    counts = []
    for number in range(10, 2_000):
        if rig.of(c.Prebind) or rig.pending_message("member-0") is not None:
            return counts
        before = len(steps)
        decide(rig, elapsed_ms=1)
        counts.append(len(steps) - before)
        if change is not None and not rig.scheduler.attempt_in_progress:
            change(number)
    raise AssertionError(f"the search does not end: {counts[-20:]}")


STEPS_OF_A_CALL = 2 * STEP_COST + 2 * search_limits.PIECE_STEPS


def test_the_search_for_a_gang_on_one_node_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """40 ms in one piece."""
    rig, steps = heavy_rig(monkeypatch)
    rig.apply_policies(GANG % 2)
    rig.observe(member(0, "c"), member(1, "c"))

    counts = gang_steps_of_calls(rig, steps)

    assert sum(counts) > 5_000
    assert max(counts) <= STEPS_OF_A_CALL


@pytest.mark.parametrize("fits", [True, False])
def test_the_search_on_a_node_that_a_member_changed_is_divided(
    monkeypatch: pytest.MonkeyPatch, fits: bool
) -> None:
    gpus = [gpu(f"g{at:02}", attributes={"uuid": str(min(at, 18) if fits else at)}) for at in range(20)]
    changed = device_slice("n0", *gpus, version=5, generation=5)
    rig, steps = heavy_rig(monkeypatch, changed, claim("c0", asking()))
    rig.apply_policies(GANG % 2)
    rig.observe(member(0, "c0"), member(1, "c"))

    counts = gang_steps_of_calls(rig, steps)

    assert fits or sum(counts) > 10_000, "with and without the device of the first member"
    assert max(counts) <= STEPS_OF_A_CALL
    assert len(rig.of(c.Prebind)) == (2 if fits else 0)


def test_others_are_decided_between_two_slices_of_the_search_for_a_gang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig, steps = searching_rig(monkeypatch, steps_max=1_000_000)
    texts = {"main.policy": GANG % 2, "other.policy": OTHER}
    rig.apply_policies(texts)
    rig.observe(member(0, "c"), member(1, "c"))

    slices, begun, bound_after = [], 0, None
    while rig.pending_message("member-0") is None:
        bound = decide(rig, elapsed_ms=5)
        if not rig.scheduler.attempt_in_progress:
            slices.append(len(steps) - begun)
            begun = len(steps)
        if len(slices) == 3:
            rig.observe(pod("plain", namespace="friendly", scheduler="other", created="2027-01-01T00:00:00Z"))
        if "plain" in bound:
            bound_after = len(slices)
        if not rig.scheduler.ready(rig.now_ns):
            rig.pass_time(1)

    assert max(slices) < search_limits.SLICE_STEPS_MAX + 2 * search_limits.PIECE_STEPS
    assert bound_after is not None and 3 < bound_after < len(slices)
    assert len(steps) < NODES * STEPS_OF_A_NODE, "no node is searched twice"


@pytest.mark.parametrize("fits", [True, False])
def test_the_search_for_a_gang_ends_beside_changes_of_shared_devices_all_the_time(
    monkeypatch: pytest.MonkeyPatch, fits: bool
) -> None:
    """Its slices do not grow: they did to 0.4 s."""
    rig, steps = searching_rig(monkeypatch, steps_max=search_limits.ATTEMPT_STEPS_MAX)
    rig.apply_policies(GANG % 2)
    rig.handle(e.DeviceObjectUpdated(combining("d", prefix="s")))
    if fits:
        gpus = [gpu(f"g{at}", attributes={"uuid": str(at // 6)}) for at in range(8)]
        rig.handle(e.DeviceObjectUpdated(device_slice("n39", *gpus, version=3, generation=3)))
        gpus = [gpu(f"g{at}", attributes={"uuid": str(at // 6)}) for at in range(8)]
        rig.handle(e.DeviceObjectUpdated(device_slice("n38", *gpus, version=3, generation=3)))
    rig.observe(member(0, "c"), member(1, "d"))
    sizes, begun = [], 0

    def change(number: int) -> None:
        nonlocal begun
        sizes.append(len(steps) - begun)
        begun = len(steps)
        change_shared_devices(rig, number, devices=0)

    gang_steps_of_calls(rig, steps, change)

    assert max(sizes) < search_limits.SLICE_STEPS_MAX + search_limits.GANG_SLICE_STEPS_MAX
    assert len(steps) < 5 * 2 * NODES * STEPS_OF_A_NODE
    assert len(rig.of(c.Prebind)) == (2 if fits else 0)


def visits_of_slices(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Grows with each slice that is looked at for a node."""
    visits: list[None] = []
    is_relevant = pools.PoolSlices.is_relevant

    def counting(*arguments: Any) -> bool:
        visits.append(None)
        return is_relevant(*arguments)

    monkeypatch.setattr(pools.PoolSlices, "is_relevant", counting)
    return visits


@pytest.mark.parametrize("what", ["slices of several nodes", "slices of each node in one pool"])
def test_many_slices_that_a_node_may_use_are_visited_for_few_nodes_in_a_call(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """1,000 slices with selectors of nodes: 126 ms in one piece."""
    visits = visits_of_slices(monkeypatch)
    monkeypatch.setattr(attempt_runner, "SLICE_STEPS_MAX", 100)
    rig = rig_with(claim("c", asking("r", count=2)))
    count = 400
    if what == "slices of several nodes":
        slices = [
            device_slice(None, gpu("s"), name=f"s{at}", pool=f"p{at}", allNodes=True) for at in range(count)
        ]
    else:
        slices = [
            device_slice(
                None,
                *[gpu(f"s{at}-{number}") for number in range(64)],
                name=f"s{at}",
                pool="p",
                slices=101,
                allNodes=True,
            )
            for at in range(100)
        ]
        slices += [
            device_slice(f"n{at}", gpu(f"x{at}"), name=f"x{at}", pool="p", slices=101) for at in range(NODES)
        ]
    rig.handle(*[e.DeviceObjectUpdated(each) for each in slices])
    rig.observe(user())
    counts = []
    while rig.scheduler.ready(rig.now_ns):
        before = len(visits)
        decide(rig, elapsed_ms=1)
        counts.append(len(visits) - before)

    assert rig.of(c.Prebind)
    assert sum(counts) >= NODES * 100
    assert max(counts) <= 2 * (count + 2 if what == "slices of several nodes" else 103)


def test_counters_of_a_node_are_visited_for_this_node_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    visits = visits_of_slices(monkeypatch)
    rig = rig_with(claim("c", asking("r")))
    sets = [{"name": "card", "counters": {"memory": {"value": "1"}}}]
    for number in range(NODES):
        counters = device_slice(f"n{number}", name=f"c{number}", pool=f"c{number}", sharedCounters=sets)
        rig.handle(e.DeviceObjectUpdated(counters))
    rig.observe(user())
    rig.settle()

    assert rig.of(c.Prebind)
    assert len(visits) == 2 * NODES


@pytest.mark.parametrize("taken_at", range(1, 9))
def test_a_result_that_was_accepted_in_an_evaluation_is_not_taken_for_a_new_one(
    monkeypatch: pytest.MonkeyPatch, taken_at: int
) -> None:
    """All nodes were searched, and then devices of one changed: its search is divided in evaluations. The device that it holds is
    allocated to somebody else meanwhile."""
    rig, _ = heavy_rig(monkeypatch)
    monkeypatch.setattr(attempt_runner, "SLICE_STEPS_MAX", 100)
    gpus = [
        gpu(f"g{at:02}", attributes={"uuid": str(min(at, 18)), "first": at == 0, "other": at == 5})
        for at in range(20)
    ]
    first = asking("r0", f"device.attributes['{DRIVER}'].first")
    same = {"requests": ["r1", "r2"], "matchAttribute": f"{DRIVER}/uuid"}
    wanted = claim("w", first, asking("r1"), asking("r2"), constraints=[same])
    rig.handle(
        *[
            e.DeviceObjectUpdated(item)
            for item in (device_slice("n0", *gpus, version=5, generation=5), wanted)
        ]
    )
    allocate(rig, "y", 1, "g00")
    rig.observe(user(of="w"))
    rig.settle()
    allocate(rig, "y", 2)
    rig.now_ns += 10 * 10**9

    for number in range(1, 12):
        decide(rig)
        if number < taken_at:
            allocate(rig, "z", 100 + number, *["g05"] * (number % 2))
        elif number == taken_at and not rig.of(c.Prebind):
            allocate(rig, "y", 3, "g00")
    rig.settle()

    assert "internal error" not in (rig.pending_message("hostile") or "")


def allocate(rig: Rig, name: str, version: int, *gpus: str) -> None:
    status = given(*gpus, node="n0") if gpus else None
    rig.handle(e.DeviceObjectUpdated(claim(name, asking(), version=version, status=status)))


def test_nodes_whose_search_exceeds_its_limit_are_looked_up_once_in_an_evaluation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Five times: 18 ms for each pod at 1,000 nodes."""
    gpus = [gpu(f"g{at}", attributes={"uuid": str(at)}) for at in range(40)]
    slices = [device_slice(f"n{number}", *gpus, version=3, generation=3) for number in range(NODES)]
    rig, _ = searching_rig(monkeypatch, *slices, steps_max=search_limits.ATTEMPT_STEPS_MAX)
    rig.observe(user())
    while rig.scheduler.ready(rig.now_ns):
        decide(rig)
    assert search_limits.STEPS_EXCEEDED in (rig.pending_message("hostile") or "")
    looked_up: list[None] = []
    find = AllocationCache.find

    def counting(*arguments: Any) -> Any:
        looked_up.append(None)
        return find(*arguments)

    monkeypatch.setattr(AllocationCache, "find", counting)
    rig.handle(e.DeviceObjectUpdated(combining("d")))
    rig.observe(user("another", of="d", priority=1))
    rig.settle()

    assert search_limits.STEPS_EXCEEDED in (rig.pending_message("another") or "")
    assert len(looked_up) <= NODES + 1
