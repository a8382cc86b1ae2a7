"""The compiled preemption clause agrees with the reference implementation."""

import pytest
from hypothesis import given, settings

from policysched import evaluate
from policysched.model.pods import QueuedPodInfo
from tests.builders import namespace, pod
from tests.evaluate.clusters import Scene, scenes
from tests.reference import selected_by_policy
from tests.reference.checked import program

CLAUSES = {
    "priorities": "victim.priority + 3 < pod.priority",
    "a missing label": 'victim.labels["pool"] == pod.labels["gen"]',
    "requests": "victim.requests.cpu <= pod.requests.cpu and not (victim.qos == Guaranteed)",
    "namespaces": "victim.namespace == namespace.name or victim.created > pod.created",
    "the clock": 'now - victim.created > 5s or window("Mon 00:00-24:00", "UTC")',
    "shares": "victim.namespace.share.cpu > namespace.share.memory or victim.namespace.share.memory > 10%",
    "owners": 'victim.owner.kind in ["Job", "ReplicaSet"] and victim.scheduler == pod.scheduler',
}


@pytest.mark.parametrize("clause", CLAUSES.values(), ids=CLAUSES.keys())
@given(scene=scenes(pods=4))
@settings(max_examples=60, deadline=None)
def test_a_condition_allows_lower_priority_pods_for_which_the_reference_is_true(
    clause: str, scene: Scene
) -> None:
    policy = program("include kube_default", f"preemption {{ victims = {guarded(clause)} }}")
    compiled = evaluate.compile(policy)
    assert policy.preemption.victims is not None
    for preemptor in scene.pods:
        space = scene.cache.namespaces.get(preemptor.namespace)
        allowed = compiled.may_evict(preemptor, space, scene.facts, scene.now_ns, scene.cache.shares)
        for other in scene.pods:
            selected = selected_by_policy(
                policy, preemptor, space, other, facts=scene.facts, now_ns=scene.now_ns, cache=scene.cache
            )
            assert allowed(other) == selected


def guarded(clause: str) -> str:
    """Labels that a pod may lack are read with a fallback."""
    for owner, key in (("victim", "pool"), ("pod", "gen")):
        clause = clause.replace(f'{owner}.labels["{key}"]', f'({owner}.labels["{key}"] else "")')
    return clause


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("preemption never", [False, False, False]),
        ("preemption { victims = own }", [True, False, False]),
        ("", [True, False, False]),
        ("preemption { victims = any }", [True, True, False]),
    ],
)
def test_the_modes_of_the_clause(statement: str, expected: list[bool]) -> None:
    compiled = evaluate.compile(program("include kube_default", statement))
    preemptor = pod("one", priority=5)
    others = [pod("own", priority=4), pod("other", priority=4, scheduler="x"), pod("equal", priority=5)]

    allowed = compiled.may_evict(preemptor, namespace(), QueuedPodInfo(0, 0), 0)

    assert [allowed(other) for other in others] == expected
    assert compiled.allows_preemption == (True in expected)
