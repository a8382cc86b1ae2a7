"""Volume kernels agree with their reference on random claims and volumes, also while these change."""

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
from tests.evaluate.clusters import ClusterRandom, Scene
from tests.evaluate.storage import change, storage_scenes
from tests.evaluate.test_builtins_property import agree, differences, only

FILTERS = ("volume_restrictions", "node_volume_limits", "volume_binding", "volume_zone")
SEARCH = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)


def filter_only(name: str) -> Program:
    """The filter and `volume_binding`, without which pods with claims are not admitted."""
    rules = {rule.name: rule for rule in kube_default().rules.filters if isinstance(rule, BuiltinFilter)}
    return (
        only((rules[name],), ())
        if name == "volume_binding"
        else only((rules[name], rules["volume_binding"]), ())
    )


@pytest.mark.parametrize("name", FILTERS)
@SEARCH
@given(scene=storage_scenes())
def test_a_filter_of_volumes_and_its_kernel_agree_on_every_node(name: str, scene: Scene) -> None:
    agree(filter_only(name), scene)


@SEARCH
@given(scene=storage_scenes())
def test_the_default_profile_agrees_on_pods_with_volumes(scene: Scene) -> None:
    agree(kube_default(), scene)


def choices_agree(cache: ClusterCache, requirement: VolumesToBind | None, user: Pod, on: NodeName) -> None:
    """The kernel chooses the volumes that a search through all volumes finds."""
    claims = pod_volume_claims(user, AvailableVolumes(cache.volumes))
    assert not isinstance(claims, str), f"{user.full_name} passed the filter, but now: {claims}"
    expected = choose_volumes(claims, cache.nodes[on], AvailableVolumes(cache.volumes))
    assert (VolumeChoice() if requirement is None else requirement.choice) == expected


def changes_are_followed(scene: Scene) -> None:
    """An evaluator that is asked after each change agrees with the reference each time."""
    cache, program = scene.cache, kube_default()
    evaluator, compiled = evaluate.Evaluator(cache), evaluate.compile(program)
    arguments = {"now_ns": scene.now_ns, "facts": scene.facts, "samples": scene.samples}
    rng = ClusterRandom(len(cache.volumes.volumes) + 7 * len(cache.nodes))
    for step in range(8):
        for pod in scene.pods:
            verdict = evaluator.evaluate(compiled, pod, **arguments)
            slow = reference.evaluate(program, pod, cache, **arguments)
            assert (verdict.selected, verdict.pod_rejection) == (slow.selected, slow.pod_rejection), step
            if verdict.selected is not None:
                needs = evaluator.prebind_requirements(compiled, pod, verdict.selected, **arguments)
                choices_agree(cache, None if needs is None else needs.volumes, pod, verdict.selected)
            assert differences(evaluator.explain(compiled, pod, **arguments), slow) == [], step
        if rng.one_in(4) and cache.nodes and cache.ledger.placement(scene.pods[0].uid) is None:
            cache.assume(scene.pods[0], rng.choice(sorted(cache.nodes)))
        change(cache, rng, step)


@SEARCH
@given(scene=storage_scenes())
def test_caches_follow_every_change_of_storage(scene: Scene) -> None:
    changes_are_followed(scene)


def overlay_agrees(scene: Scene) -> None:
    """A pod and its volumes on an overlay equal a placed pod."""
    cache, program = scene.cache, kube_default()
    evaluator, compiled = evaluate.Evaluator(cache), evaluate.compile(program)
    arguments = {"now_ns": scene.now_ns, "facts": scene.facts, "samples": scene.samples}
    first, second, _ = scene.pods
    overlay = evaluator.overlay()
    node = evaluator.evaluate(compiled, first, **arguments, overlay=overlay).selected
    if node is None:
        return
    needs = evaluator.prebind_requirements(compiled, first, node, **arguments, overlay=overlay)
    volumes = None if needs is None else needs.volumes

    overlay.add_pod(first, node)
    if volumes is not None:
        overlay.reserve_volumes(first.uid, volumes.choice, node)
    tried = evaluator.explain(compiled, second, **arguments, overlay=overlay)
    cache.assume(first, node)
    if volumes is not None:
        cache.volumes.reserve(first.uid, volumes.choice, node)

    assert differences(tried, reference.evaluate(program, second, cache, **arguments)) == []


@SEARCH
@given(scene=storage_scenes())
def test_volumes_reserved_on_an_overlay_are_taken(scene: Scene) -> None:
    overlay_agrees(scene)


def test_no_volume_is_chosen_twice_for_one_pod_or_when_reserved() -> None:
    chosen_count = 0

    def count(scene: Scene) -> None:
        nonlocal chosen_count
        chosen_count += volumes_are_chosen_once(scene)

    for max_examples in (60, 240, 960):  # in a quarter of the runs none of 60 scenes has one
        if not chosen_count:
            settings(SEARCH, max_examples=max_examples)(given(scene=storage_scenes())(count))()
    assert chosen_count > 0, "no scene has a pod for whose claims volumes are chosen"


def volumes_are_chosen_once(scene: Scene) -> int:
    """Returns how many volumes are chosen for the pods, one pod after the other."""
    chosen_count = 0
    volumes_available, reservations = AvailableVolumes(scene.cache.volumes), VolumeReservations()
    for pod in scene.pods:
        claims = pod_volume_claims(pod, volumes_available.with_overlay(reservations))
        for node in scene.cache.nodes.values() if not isinstance(claims, str) else ():
            assert not isinstance(claims, str)
            choice = choose_volumes(claims, node, volumes_available.with_overlay(reservations))
            if isinstance(choice, VolumeChoice) and choice:
                volumes = [volume.name for _, volume in choice.static_bindings]
                taken = {
                    name: reservation.pods
                    for name, reservation in reservations.by_key.items()
                    if isinstance(name, str)
                }
                chosen_count += len(volumes)
                assert len(volumes) == len(set(volumes))
                assert all(
                    volumes_available.with_overlay(reservations).claim_ref_of(volume).claim == claim.key  # type: ignore[union-attr]
                    for claim, volume in choice.static_bindings
                    if volume.name in taken
                )
                reservations.add(pod.uid, choice, node.name)
                break
    return chosen_count
