"""Cached device allocations agree with fresh searches on random devices and claims, also while these change, and no
device is allocated twice."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from policysched import evaluate
from policysched.builtins.dynamic_resources import kernel as dynamic_resources
from policysched.builtins.node_resources_fit import kernel as node_resources_fit
from policysched.builtins.registry import BUILTINS
from policysched.cluster.devices import allocator, taken_devices
from policysched.cluster.devices.availability import AvailableDevices
from policysched.cluster.devices.change_stamps import DeviceChangeStamps
from policysched.cluster.devices.device_cache import DeviceCache
from policysched.cluster.devices.device_requests import DeviceSearchFailed
from policysched.cluster.devices.device_usage import DeviceUsage
from policysched.lang.ir.program import Program
from policysched.lang.ir.rules import BuiltinFilter, BuiltinParamValue, BuiltinScore
from tests import reference
from tests.conformance.kube_default import kube_default
from tests.evaluate.clusters import ClusterRandom, Scene
from tests.evaluate.device_scenes import RESOURCES, change, device_scene_of, device_scenes, reserve_some
from tests.evaluate.test_builtins_property import agree, differences, only

SEARCH = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
LATER_NS = 40 * 365 * 86_400 * 10**9
"""Each device that was not bound by then is too late."""


def devices_only() -> Program:
    rules = kube_default().rules
    filters = [rule for rule in rules.filters if rule.name == "dynamic_resources"]
    scores = [rule for rule in rules.scores if rule.name == "dynamic_resources"]
    assert isinstance(filters[0], BuiltinFilter) and isinstance(scores[0], BuiltinScore)
    return only(tuple(filters), tuple(scores))


def with_resources() -> Program:
    """With the rules about resources, some of which devices back."""
    span = kube_default().queue[0].value.span
    weights = tuple((name, 2) for name in ("cpu", *RESOURCES))
    rules = devices_only().rules
    fit = BUILTINS["node_resources_fit"]
    arguments: dict[str, BuiltinParamValue] = {
        parameter.name: parameter.default for parameter in (*fit.parameters, *fit.filter_parameters)
    }
    params = tuple({**arguments, "resources": weights, "strategy": "most_allocated"}.items())
    balance = BUILTINS["node_resources_balanced_allocation"]
    balanced = {parameter.name: parameter.default for parameter in balance.parameters} | {
        "resources": weights
    }
    return only(
        (
            BuiltinFilter("node_resources_fit", "node_resources_fit", params, None, False, span),
            *rules.filters,
        ),
        (
            BuiltinScore("node_resources_fit", "node_resources_fit", 1, params, None, False, span),
            BuiltinScore("balance", balance.name, 1, tuple(balanced.items()), None, False, span),
            *rules.scores,
        ),
    )


@SEARCH
@given(scene=device_scenes())
def test_the_filter_and_its_kernel_agree_on_every_node(scene: Scene) -> None:
    agree(devices_only(), scene)


def without_extended_resources() -> Program:
    """The rules of a cluster without the feature gate DRAExtendedResource."""
    rules = with_resources().rules
    filters = tuple(
        replace(rule, params=tuple({**dict(rule.params), "extended_resources": "no"}.items()))
        if isinstance(rule, BuiltinFilter) and rule.builtin == "dynamic_resources"
        else rule
        for rule in rules.filters
    )
    return only(filters, rules.scores)


@SEARCH
@given(scene=device_scenes())
def test_rules_that_allocate_nothing_for_extended_resources_agree(scene: Scene) -> None:
    agree(without_extended_resources(), scene)


@SEARCH
@given(scene=device_scenes())
def test_rules_about_device_backed_resources_agree(scene: Scene) -> None:
    agree(with_resources(), scene)


def changes_are_followed(scene: Scene, program: Program | None = None) -> None:
    """An evaluator that is asked after each change agrees with the reference, and usage adds up."""
    cache, program = scene.cache, program or devices_only()
    evaluator, compiled = evaluate.Evaluator(cache), evaluate.compile(program)
    arguments = {"now_ns": scene.now_ns, "facts": scene.facts, "samples": scene.samples}
    rng = ClusterRandom(len(cache.devices.slices) + 7 * len(cache.nodes))
    for step in range(8):
        for pod in scene.pods:
            verdict = evaluator.evaluate(compiled, pod, **arguments)
            slow = reference.evaluate(program, pod, cache, **arguments)
            assert (verdict.selected, verdict.pod_rejection) == (slow.selected, slow.pod_rejection), step
            assert differences(evaluator.explain(compiled, pod, **arguments), slow) == [], step
        change(cache, rng, step)
        usage_is_consistent(cache.devices)


def times_are_followed(scene: Scene) -> None:
    """An evaluator that is asked again decades later, without a change, agrees with the reference."""
    cache, program = scene.cache, devices_only()
    evaluator, compiled = evaluate.Evaluator(cache), evaluate.compile(program)
    for now_ns in (scene.now_ns, scene.now_ns + LATER_NS):
        arguments = {"now_ns": now_ns, "facts": scene.facts, "samples": scene.samples}
        for pod in scene.pods:
            verdict = evaluator.evaluate(compiled, pod, **arguments)
            slow = reference.evaluate(program, pod, cache, **arguments)
            assert (verdict.selected, verdict.pod_rejection) == (slow.selected, slow.pod_rejection)
            assert differences(evaluator.explain(compiled, pod, **arguments), slow) == []


def resource_rules_follow_changes(scene: Scene) -> None:
    changes_are_followed(scene, with_resources())


def usage_is_consistent(devices: DeviceCache) -> None:
    """Usage, recomputed here from the claims alone."""
    whole: dict[object, int] = {}
    promised = {key for key, *_ in devices.unwritten_reservations()}
    for key in {
        *devices.claims,
        *promised,
        *(key for keys in devices._extended_claims.values() for key in keys),
    }:
        allocation = devices.allocation(key)
        for allocated in () if allocation is None else allocation.devices:
            if not allocated.admin_access and not allocated.share_id:
                whole[allocated.device] = whole.get(allocated.device, 0) + 1
    assert dict(devices.usage.whole) == whole
    assert devices.check() == []


@SEARCH
@given(scene=device_scenes())
def test_caches_follow_every_change_of_devices(scene: Scene) -> None:
    changes_are_followed(scene)


@SEARCH
@given(scene=device_scenes())
def test_caches_follow_the_time_at_which_a_binding_is_too_late(scene: Scene) -> None:
    times_are_followed(scene)


@SEARCH
@given(scene=device_scenes())
def test_rules_about_resources_follow_every_change_of_devices(scene: Scene) -> None:
    resource_rules_follow_changes(scene)


def overlay_agrees(scene: Scene) -> None:
    """A pod and its devices on an overlay equal a placed pod."""
    cache, program = scene.cache, devices_only()
    evaluator, compiled = evaluate.Evaluator(cache), evaluate.compile(program)
    arguments = {"now_ns": scene.now_ns, "facts": scene.facts, "samples": scene.samples}
    first, second, _ = scene.pods
    evaluator.evaluate(compiled, second, **arguments)
    overlay = evaluator.overlay()
    node = evaluator.evaluate(compiled, first, **arguments, overlay=overlay).selected
    if node is None:
        return
    needs = evaluator.prebind_requirements(compiled, first, node, **arguments, overlay=overlay)

    overlay.add_pod(first, node)
    if needs is not None:
        overlay.reserve_devices(needs.devices)
    tried = evaluator.explain(compiled, second, **arguments, overlay=overlay)
    verdict = evaluator.evaluate(compiled, second, **arguments, overlay=overlay)
    cache.assume(first, node)
    if needs is not None:
        cache.devices.reserve(first.uid, needs.devices, 1)

    slow = reference.evaluate(program, second, cache, **arguments)
    assert differences(tried, slow) == []
    assert verdict.selected == slow.selected


@SEARCH
@given(scene=device_scenes())
def test_devices_reserved_on_an_overlay_are_taken(scene: Scene) -> None:
    overlay_agrees(scene)


def devices_are_allocated_once(scene: Scene) -> None:
    """Starting from unallocated claims, for any number of reservations."""
    cache, rng = scene.cache, ClusterRandom(3 * len(scene.cache.nodes))
    for key, claim in list(cache.devices.claims.items()):
        if claim.allocation is not None:
            cache.devices.drop_claim(key)
    for step in range(12):
        reserve_some(cache, rng, step)
        usage = cache.devices.usage
        assert all(count == 1 for count in usage.whole.values())
        assert not usage.whole.keys() & usage.shares.keys()
        for resource_slice in cache.devices.slices.values():
            for device in resource_slice.devices:
                consumed = usage.consumed.get(allocator.DeviceId(*resource_slice.pool, device.name), {})
                assert all(amount <= device.capacity[name].amount for name, amount in consumed.items())


@SEARCH
@given(scene=device_scenes())
def test_no_device_is_allocated_to_two_claims(scene: Scene) -> None:
    devices_are_allocated_once(scene)


def divided_searches_agree(scene: Scene) -> None:
    """A search that is suspended wherever it can be finds what one in one piece finds, in as many steps."""
    devices = scene.cache.devices
    claims = [claim for claim in devices.claims.values() if claim.allocation is None]
    for node in scene.cache.nodes.values():
        whole, divided = [devices.allocation_cache._begin_search(claims, node, None) for _ in range(2)]
        assert outcome(whole, None) == outcome(divided, 1)


def outcome(search: allocator.DeviceSearch, piece: int | None) -> tuple[object, int]:
    try:
        while not search.advance(piece):
            pass
    except DeviceSearchFailed as failed:
        return failed.message, search.steps
    return search.result, search.steps


@SEARCH
@given(scene=device_scenes())
def test_a_divided_search_finds_the_same(scene: Scene) -> None:
    divided_searches_agree(scene)


def over_after_a_piece(search: allocator.DeviceSearch, steps_max: int | None = None) -> bool:
    """A planted bug: what was not searched yet is forgotten."""
    search._piece_end = math.inf if steps_max is None else search.steps + 3 * steps_max
    next(search._parts, None)
    return True


# ── planted bugs ───────────────────────────────────────────────────────────────────────────────────────────────────


SCENES_MAX = 800
"""The scenes tried when the known scene of a bug no longer shows it."""


def is_violated(holds: Callable[[Scene], None], number: int) -> bool:
    try:
        holds(device_scene_of(number))
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize(
    ("where", "part", "planted", "holds", "known"),
    [
        (DeviceChangeStamps, "pool_changed", lambda *_: None, changes_are_followed, 38),
        (DeviceChangeStamps, "slices_changed", DeviceChangeStamps.pool_changed, changes_are_followed, 38),
        (DeviceChangeStamps, "changed_nodes", lambda *_: set(), changes_are_followed, 56),
        (DeviceCache, "exclusive_node_of", lambda *_: "n0", changes_are_followed, 48),
        (DeviceCache, "_recount", lambda *_: frozenset(), changes_are_followed, 0),
        (DeviceUsage, "remove", lambda *_: None, devices_are_allocated_once, 16),
        (AvailableDevices, "add_to_overlay", lambda *_: None, overlay_agrees, 18),
        (dynamic_resources.DynamicResourcesFilter, "fingerprint", lambda *_: 0, changes_are_followed, 1),
        (
            node_resources_fit.NodeResourcesFitFilter,
            "fingerprint",
            lambda *_: 0,
            resource_rules_follow_changes,
            13,
        ),
        (node_resources_fit._Score, "fingerprint", lambda *_: 0, resource_rules_follow_changes, 26),
        (dynamic_resources._CachedPodDevices, "lost_claims", lambda *_: 0, times_are_followed, 89),
        (taken_devices.TakenDevices, "is_free", lambda *_: True, devices_are_allocated_once, 6),
        (taken_devices.TakenDevices, "has_capacity", lambda *_: True, devices_are_allocated_once, 7),
        (allocator.DeviceSearch, "advance", over_after_a_piece, divided_searches_agree, 7),
    ],
    ids=[
        "cached results of a node are not dropped",
        "pools of a node are kept when its slices change",
        "changed nodes are not reevaluated",
        "every pool belongs to one node",
        "allocations are not counted",
        "deallocations are not counted",
        "reservations on an overlay are not counted",
        "the filter ignores change stamps",
        "the resource filter ignores device classes",
        "the resource score ignores allocated devices",
        "the filter ignores claims that can no longer be bound",
        "allocated devices count as free",
        "shares of a device are unlimited",
        "a suspended search is over",
    ],
)
def test_a_planted_bug_is_caught(
    where: Any,
    part: str,
    planted: Callable[..., Any],
    holds: Callable[[Scene], None],
    known: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(where, part, planted)

    assert any(is_violated(holds, number) for number in (known, *range(SCENES_MAX)))
