"""Kernels and plain meanings agree on random claims and volumes, and go on agreeing as these change."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from policysched import evaluate
from policysched.cluster.cache import ClusterCache
from policysched.cluster.volumes.availability import AvailableVolumes
from policysched.cluster.volumes.binder import choose_volumes, pod_volume_claims
from policysched.cluster.volumes.reservations import VolumeChoice, VolumeReservations
from policysched.evaluate import VolumesToBind
from policysched.lang.ir.program import Program
from policysched.lang.ir.rules import BuiltinFilter
from policysched.model.identifiers import NodeName
from policysched.model.pods import Pod
from tests import reference
from tests.conformance.kube_default import kube_default
from tests.evaluate.clusters import Dice, Scene
from tests.evaluate.storage import change, storage_scenes
from tests.evaluate.test_builtins_property import agree, differences, only

FILTERS = ("volume_restrictions", "node_volume_limits", "volume_binding", "volume_zone")
SEARCH = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)


def alone(name: str) -> Program:
    """The filter by itself, beside `volume_binding`: without that, pods with claims are not let in at all."""
    rules = {one.name: one for one in kube_default().rules.filters if isinstance(one, BuiltinFilter)}
    return (
        only((rules[name],), ())
        if name == "volume_binding"
        else only((rules[name], rules["volume_binding"]), ())
    )


@pytest.mark.parametrize("name", FILTERS)
@SEARCH
@given(scene=storage_scenes())
def test_a_filter_of_volumes_and_its_kernel_agree_on_every_node(name: str, scene: Scene) -> None:
    agree(alone(name), scene)


@SEARCH
@given(scene=storage_scenes())
def test_the_default_profile_agrees_on_pods_with_volumes(scene: Scene) -> None:
    agree(kube_default(), scene)


def chosen_alike(cache: ClusterCache, found: VolumesToBind | None, user: Pod, on: NodeName) -> None:
    """The volumes that the kernel chose are those that one finds by looking through all."""
    claims = pod_volume_claims(user, AvailableVolumes(cache.volumes))
    assert not isinstance(claims, str), f"{user.full_name} was let pass, and now: {claims}"
    plainly = choose_volumes(claims, cache.nodes[on], AvailableVolumes(cache.volumes))
    assert (VolumeChoice() if found is None else found.choice) == plainly


def followed(scene: Scene) -> None:
    """One evaluator asked again after each change says what the oracle says."""
    cache, program = scene.cache, kube_default()
    evaluator, compiled = evaluate.Evaluator(cache), evaluate.compile(program)
    given_ = {"now_ns": scene.now_ns, "facts": scene.facts, "samples": scene.samples}
    dice = Dice(len(cache.volumes.volumes) + 7 * len(cache.nodes))
    for step in range(8):
        for pod in scene.pods:
            verdict = evaluator.evaluate(compiled, pod, **given_)
            slow = reference.evaluate(program, pod, cache, **given_)
            assert (verdict.selected, verdict.pod_refusal) == (slow.selected, slow.pod_refusal), step
            if verdict.selected is not None:
                needs = evaluator.prebind_requirements(compiled, pod, verdict.selected, **given_)
                chosen_alike(cache, None if needs is None else needs.volumes, pod, verdict.selected)
            assert differences(evaluator.explain(compiled, pod, **given_), slow) == [], step
        if dice.one_in(4) and cache.nodes and cache.ledger.placement(scene.pods[0].uid) is None:
            cache.assume(scene.pods[0], dice.choice(sorted(cache.nodes)))
        change(cache, dice, step)


@SEARCH
@given(scene=storage_scenes())
def test_what_is_remembered_follows_every_change_of_storage(scene: Scene) -> None:
    followed(scene)


def laid_agrees(scene: Scene) -> None:
    """A pod placed on an overlay, with the volumes that it was given, is as good as a pod placed."""
    cache, program = scene.cache, kube_default()
    evaluator, compiled = evaluate.Evaluator(cache), evaluate.compile(program)
    given_ = {"now_ns": scene.now_ns, "facts": scene.facts, "samples": scene.samples}
    first, second, _ = scene.pods
    overlay = evaluator.overlay()
    node = evaluator.evaluate(compiled, first, **given_, overlay=overlay).selected
    if node is None:
        return
    needs = evaluator.prebind_requirements(compiled, first, node, **given_, overlay=overlay)
    found = None if needs is None else needs.volumes

    overlay.add_pod(first, node)
    if found is not None:
        overlay.reserve_volumes(first.uid, found.choice, node)
    tried = evaluator.explain(compiled, second, **given_, overlay=overlay)
    cache.assume(first, node)
    if found is not None:
        cache.volumes.reserve(first.uid, found.choice, node)

    assert differences(tried, reference.evaluate(program, second, cache, **given_)) == []


@SEARCH
@given(scene=storage_scenes())
def test_volumes_that_are_given_on_an_overlay_are_given(scene: Scene) -> None:
    laid_agrees(scene)


@SEARCH
@given(scene=storage_scenes())
def test_no_volume_is_chosen_twice_for_one_pod_or_from_what_is_promised(scene: Scene) -> None:
    stock, promises = AvailableVolumes(scene.cache.volumes), VolumeReservations()
    for pod in scene.pods:
        claims = pod_volume_claims(pod, stock.with_overlay(promises))
        for node in scene.cache.nodes.values() if not isinstance(claims, str) else ():
            assert not isinstance(claims, str)
            choice = choose_volumes(claims, node, stock.with_overlay(promises))
            if isinstance(choice, VolumeChoice) and choice:
                volumes = [volume.name for _, volume in choice.static_bindings]
                taken = {name: one.pods for name, one in promises.by_key.items() if isinstance(name, str)}
                assert len(volumes) == len(set(volumes))
                assert all(
                    stock.with_overlay(promises).claim_ref_of(volume).claim == claim.key  # type: ignore[union-attr]
                    for claim, volume in choice.static_bindings
                    if volume.name in taken
                )
                promises.add(pod.uid, choice, node.name)
                break
