"""What is kept about devices and what is searched anew agree on random devices and claims, and go on agreeing as these
change; and no device is ever two claims'."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from policysched import evaluate
from policysched.builtins.dynamic_resources import kernel as dynamic_resources
from policysched.builtins.node_resources_fit import kernel as node_resources_fit
from policysched.builtins.registry import BUILTINS
from policysched.cluster.devices import allocator
from policysched.cluster.devices.availability import AvailableDevices
from policysched.cluster.devices.change_stamps import DeviceChangeStamps
from policysched.cluster.devices.device_cache import DeviceCache
from policysched.cluster.devices.usage import DeviceUsage
from policysched.lang.ir.program import Program
from policysched.lang.ir.rules import BuiltinFilter, BuiltinParamValue, BuiltinScore
from tests import reference
from tests.conformance.kube_default import kube_default
from tests.evaluate.clusters import Dice, Scene
from tests.evaluate.device_scenes import RESOURCES, change, device_scenes, promise_some
from tests.evaluate.test_builtins_property import agree, differences, only

SEARCH = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)


def alone() -> Program:
    rules = kube_default().rules
    filters = [one for one in rules.filters if one.name == "dynamic_resources"]
    scores = [one for one in rules.scores if one.name == "dynamic_resources"]
    assert isinstance(filters[0], BuiltinFilter) and isinstance(scores[0], BuiltinScore)
    return only(tuple(filters), tuple(scores))


def with_resources() -> Program:
    """Where rules about resources, of which devices are some, have a say as well."""
    span = kube_default().queue[0].value.span
    weights = tuple((name, 2) for name in ("cpu", *RESOURCES))
    rules = alone().rules
    fit = BUILTINS["node_resources_fit"]
    given_: dict[str, BuiltinParamValue] = {
        one.name: one.default for one in (*fit.parameters, *fit.filter_parameters)
    }
    params = tuple({**given_, "resources": weights, "strategy": "most_allocated"}.items())
    balance = BUILTINS["node_resources_balanced_allocation"]
    balanced = {one.name: one.default for one in balance.parameters} | {"resources": weights}
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
    agree(alone(), scene)


@SEARCH
@given(scene=device_scenes())
def test_rules_about_resources_leave_the_same_to_devices(scene: Scene) -> None:
    agree(with_resources(), scene)


def followed(scene: Scene, program: Program | None = None) -> None:
    """One evaluator asked again after each change says what the oracle says, and what is taken adds up."""
    cache, program = scene.cache, program or alone()
    evaluator, compiled = evaluate.Evaluator(cache), evaluate.compile(program)
    given_ = {"now_ns": scene.now_ns, "facts": scene.facts, "samples": scene.samples}
    dice = Dice(len(cache.devices.slices) + 7 * len(cache.nodes))
    for step in range(8):
        for pod in scene.pods:
            verdict = evaluator.evaluate(compiled, pod, **given_)
            slow = reference.evaluate(program, pod, cache, **given_)
            assert (verdict.selected, verdict.pod_refusal) == (slow.selected, slow.pod_refusal), step
            assert differences(evaluator.explain(compiled, pod, **given_), slow) == [], step
        change(cache, dice, step)
        counted_again(cache.devices)


def counted_again(found: DeviceCache) -> None:
    """What is taken, added up here from the claims alone."""
    whole: dict[object, int] = {}
    promised = {key for key, _ in found.unwritten_reservations()}
    for key in {*found.claims, *promised, *(key for keys in found._extended_claims.values() for key in keys)}:
        allocation = found.allocation(key)
        for one in () if allocation is None else allocation.devices:
            if not one.admin_access and not one.share_id:
                whole[one.device] = whole.get(one.device, 0) + 1
    assert dict(found.usage.whole) == whole
    assert found.check() == []


@SEARCH
@given(scene=device_scenes())
def test_what_is_kept_follows_every_change_of_devices(scene: Scene) -> None:
    followed(scene)


@SEARCH
@given(scene=device_scenes())
def test_what_resources_say_follows_every_change_of_devices(scene: Scene) -> None:
    followed(scene, with_resources())


def laid_agrees(scene: Scene) -> None:
    """A pod placed on an overlay, with the devices that it was given, is as good as a pod placed."""
    cache, program = scene.cache, alone()
    evaluator, compiled = evaluate.Evaluator(cache), evaluate.compile(program)
    given_ = {"now_ns": scene.now_ns, "facts": scene.facts, "samples": scene.samples}
    first, second, _ = scene.pods
    evaluator.evaluate(compiled, second, **given_)
    overlay = evaluator.overlay()
    node = evaluator.evaluate(compiled, first, **given_, overlay=overlay).selected
    if node is None:
        return
    needs = evaluator.prebind_requirements(compiled, first, node, **given_, overlay=overlay)

    overlay.add_pod(first, node)
    if needs is not None:
        overlay.reserve_devices(needs.devices)
    tried = evaluator.explain(compiled, second, **given_, overlay=overlay)
    verdict = evaluator.evaluate(compiled, second, **given_, overlay=overlay)
    cache.assume(first, node)
    if needs is not None:
        cache.devices.reserve(first.uid, needs.devices)

    slow = reference.evaluate(program, second, cache, **given_)
    assert differences(tried, slow) == []
    assert verdict.selected == slow.selected


@SEARCH
@given(scene=device_scenes())
def test_devices_that_are_given_on_an_overlay_are_given(scene: Scene) -> None:
    laid_agrees(scene)


def nobody_gets_what_another_has(scene: Scene) -> None:
    """Starting from claims that have nothing, however many pods are promised devices."""
    cache, dice = scene.cache, Dice(3 * len(scene.cache.nodes))
    for key, claim in list(cache.devices.claims.items()):
        if claim.allocation is not None:
            cache.devices.drop_claim(key)
    for step in range(12):
        promise_some(cache, dice, step)
        held = cache.devices.usage
        assert all(count == 1 for count in held.whole.values())
        assert not held.whole.keys() & held.shares.keys()
        for one in cache.devices.slices.values():
            for device in one.devices:
                consumed = held.consumed.get(allocator.DeviceId(*one.pool, device.name), {})
                assert all(amount <= device.capacity[name].amount for name, amount in consumed.items())


@SEARCH
@given(scene=device_scenes())
def test_no_device_is_given_to_two_claims(scene: Scene) -> None:
    nobody_gets_what_another_has(scene)


# ── planted bugs ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("where", "part", "planted"),
    [
        (DeviceChangeStamps, "pool_changed", lambda *_: None),
        (DeviceChangeStamps, "changed_nodes", lambda *_: set()),
        (DeviceCache, "exclusive_node_of", lambda *_: "n0"),
        (DeviceCache, "_recount", lambda *_: frozenset()),
        (DeviceUsage, "remove", lambda *_: None),
        (AvailableDevices, "add_to_overlay", lambda *_: None),
        (dynamic_resources.DynamicResourcesFilter, "fingerprint", lambda *_: 0),
        (dynamic_resources._CachedPodDevices, "lost_claims", lambda *_: 0),
        (node_resources_fit.NodeResourcesFitFilter, "fingerprint", lambda *_: 0),
        (node_resources_fit._Score, "fingerprint", lambda *_: 0),
        (allocator._DeviceSearch, "_is_free", lambda *_: True),
        (allocator._DeviceSearch, "_has_capacity", lambda *_: True),
    ],
    ids=[
        "what is kept of a node is not forgotten",
        "nobody looks again at a node whose devices changed",
        "every pool is of one node",
        "what claims have is not counted",
        "what they give back neither",
        "what is given on an overlay is not",
        "what is remembered is not followed",
        "devices that cannot be bound are not followed",
        "classes that stand for resources are not followed by the filter",
        "devices that are taken are not followed by the score",
        "devices that are taken are free",
        "shares are without bounds",
    ],
)
def test_a_planted_bug_is_found(
    where: Any, part: str, planted: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(where, part, planted)

    @settings(SEARCH, max_examples=800, database=None, derandomize=True)
    @given(scene=device_scenes())
    def search(scene: Scene) -> None:
        laid_agrees(scene)
        followed(scene)
        followed(scene, with_resources())
        nobody_gets_what_another_has(scene)

    with pytest.raises((AssertionError, ExceptionGroup)):
        search()
