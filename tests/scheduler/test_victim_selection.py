"""Preemption candidates on random clusters, checked by the reference implementation on clusters
without the victims. It shares no code with the search."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from policysched import evaluate as plan
from policysched.cluster.cache import ClusterCache
from policysched.lang.ir.program import Program
from policysched.lang.ir.verdict import PlacementExplanation
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.pods import Pod
from policysched.model.selectors import LabelSelector, SelectorRequirement
from policysched.model.workloads import DisruptionBudget
from policysched.scheduler.preemption import best_candidate_search, disruption_bound
from policysched.scheduler.preemption import victim_selection as searching
from policysched.scheduler.preemption.best_candidate_search import find_best_candidate, rejection_reasons
from policysched.scheduler.preemption.candidate_search import (
    NO_VICTIMS,
    NOT_HELPFUL,
    CandidateSearchResult,
    begun_elsewhere,
    find_candidates,
)
from policysched.scheduler.preemption.disruption_bound import (
    bound_for_any_pod,
    disruption_lower_bound,
)
from policysched.scheduler.preemption.running_gangs import EvictablePods
from policysched.scheduler.preemption.victim_selection import (
    Candidate,
    PreemptionInputs,
    least_disruptive,
)
from tests.builders import pod
from tests.evaluate.clusters import Scene, scenes
from tests.inline import run_to_completion
from tests.reference import evaluate
from tests.reference.checked import program
from tests.reference.victims import goes_first

DEFAULT = program("include kube_default", "preemption { victims = any }")
OF_NODES = program("filter node_ports", "filter node_resources_fit", "preemption { victims = any }")
CHOOSY = program(
    "include kube_default",
    "filter roomy require node.free.cpu - pod.requests.cpu >= 250m",
    'preemption { victims = victim.labels["pool"] else "" != pod.labels["pool"] else "" }',
)
OWN = program("include kube_default")
ROOMY = program(
    "filter node_resources_fit",
    "filter roomy require node.free.cpu - pod.requests.cpu >= 250m",
    "preemption { victims = any }",
)

ORDERED = program(
    "filter node_ports",
    "filter node_resources_fit",
    'preemption { victims = any  order = [victim.labels["pool"] desc, victim.requests.cpu, victim.priority desc] }',
)
Scenes = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
HUNT = settings(Scenes, derandomize=True, database=None, max_examples=2500, phases=[Phase.generate])
"""A planted bug is found: the search ends at the first example, without shrinking it."""


def urgent(scene: Scene) -> Pod:
    return replace(scene.pods[0], priority=10, preemption_policy="PreemptLowerPriority")


def searched(
    scene: Scene, by: Program, pod: Pod
) -> tuple[CandidateSearchResult, tuple[NodeName, ...], Callable[[Pod], bool]]:
    compiled, evaluator, cache = plan.compile(by), plan.Evaluator(scene.cache), scene.cache
    evaluator.build_columns(compiled)
    dry_run = evaluator.dry_run(compiled, pod, now_ns=scene.now_ns, facts=scene.facts, samples=scene.samples)
    allowed = compiled.may_evict(pod, cache.namespaces.get(pod.namespace), scene.facts, scene.now_ns)
    cluster = PreemptionInputs(
        lambda node: cache.ledger.usage(node).pods.values(),
        lambda uid: cache.pods[uid].started_ns,
        (),
        len(cache.nodes),
        order=compiled.victim_order(pod, cache.namespaces.get(pod.namespace), scene.facts, scene.now_ns),
    )
    return (
        run_to_completion(find_candidates(dry_run, EvictablePods(allowed), cluster)),
        dry_run.potential_nodes,
        allowed,
    )


def without(scene: Scene, removed: Iterable[PodUid]) -> ClusterCache:
    """The same cluster without these pods."""
    cache, left_out = ClusterCache(), set(removed)
    for space in scene.cache.namespaces.values():
        cache.put_namespace(space)
    for node in scene.cache.nodes.values():
        cache.put_node(node)
    for uid, observed in scene.cache.pods.items():
        if uid not in left_out:
            cache.put_pod(observed)
    return cache


def judged(scene: Scene, by: Program, pod: Pod, removed: Iterable[PodUid] = ()) -> PlacementExplanation:
    cache = without(scene, removed)
    return evaluate(by, pod, cache, now_ns=scene.now_ns, facts=scene.facts, samples=scene.samples)


def uids(pods: Iterable[Pod]) -> list[PodUid]:
    return [pod.uid for pod in pods]


def stuck(scene: Scene, by: Program) -> Pod | None:
    """A pod of the scene that every node rejects; None if there is none."""
    preemptor = urgent(scene)
    explanation = judged(scene, by, preemptor)
    return (
        preemptor
        if explanation.pod_rejection is None and explanation.selected is None and explanation.rejections
        else None
    )


class Search(NamedTuple):
    """The search for a pod that every node rejects."""

    by: Program
    scene: Scene
    preemptor: Pod
    result: CandidateSearchResult
    potential_nodes: tuple[NodeName, ...]
    allowed: Callable[[Pod], bool]


def search_of(by: Program, scene: Scene) -> Search | None:
    """None if no pod of the scene is rejected by every node."""
    preemptor = stuck(scene, by)
    return None if preemptor is None else Search(by, scene, preemptor, *searched(scene, by, preemptor))


Check = Callable[[Search], int]
"""Checks one search; returns how many candidates, victims or nodes it checked."""
ROUNDS_MAX = 10
"""Of examples until a check had something to check: candidates are rare where few pods may be evicted.

Each has its own seed: where Hypothesis finds `CI` set, it would repeat the same examples."""


def check_scenes(by: Program, *checks: Check) -> None:
    """Check random scenes. Fails if one of the checks found nothing to check in any of them."""
    checked = dict.fromkeys(checks, 0)

    @given(scene=scenes(placed_max=10))
    @Scenes
    def check_scene(scene: Scene) -> None:
        search = search_of(by, scene)
        if search is not None:
            for check in checks:
                checked[check] += check(search)

    for number in range(ROUNDS_MAX):
        seed(number)(check_scene)()
        if all(count > 0 for count in checked.values()):
            return
    raise AssertionError("nothing to check in any scene")


@pytest.mark.parametrize("by", [DEFAULT, CHOOSY, OWN], ids=["default", "choosy", "own"])
def test_candidates_are_the_nodes_that_evictions_could_help_with_allowed_victims(by: Program) -> None:
    check_scenes(by, check_pod_fits, check_victims_are_allowed, check_all_candidates_found)


def check_pod_fits(search: Search) -> int:
    """The pod fits on the node of each candidate without its victims."""
    for candidate in search.result.candidates:
        explanation = judged(search.scene, search.by, search.preemptor, uids(candidate.victims))
        assert candidate.node in explanation.feasible, (
            f"{candidate}: {explanation.rejections.get(candidate.node)}"
        )
    return len(search.result.candidates)


def check_victims_are_allowed(search: Search) -> int:
    """Every victim is on the node, has a lower priority, and is allowed by the clause."""
    by, preemptor = search.by, search.preemptor
    for candidate in search.result.candidates:
        for victim in candidate.victims:
            assert search.scene.cache.pods[victim.uid].node == candidate.node
            assert victim.priority < preemptor.priority
            assert by is not OWN or victim.scheduler == preemptor.scheduler
            assert by is not CHOOSY or victim.labels.get("pool", "") != preemptor.labels.get("pool", "")
    return sum(len(candidate.victims) for candidate in search.result.candidates)


def check_all_candidates_found(search: Search) -> int:
    """Every node that evictions could help is a candidate, and the others are counted by reason."""
    by, scene, preemptor = search.by, search.scene, search.preemptor
    explanation = judged(scene, by, preemptor)

    assert set(search.potential_nodes) == {
        node for node, rules in explanation.rejections.items() if rules[0].resolvable
    }
    reasons: Counter[str] = Counter()
    possible = set()
    for node in explanation.rejections:
        usage = scene.cache.ledger.usage(NodeName(node))
        pods = [other for other in usage.pods.values() if search.allowed(other)]
        if node not in search.potential_nodes:
            reasons[NOT_HELPFUL] += 1
        elif not pods:
            reasons[NO_VICTIMS] += 1
        else:
            empty = judged(scene, by, preemptor, uids(pods))
            if node in empty.feasible:
                possible.add(node)
            else:
                reasons.update(empty.rejections[node][0].event_reasons)
    assert {candidate.node for candidate in search.result.candidates} == possible
    assert Counter(search.result.reasons) == reasons
    return len(explanation.rejections)


def test_no_victim_could_have_stayed() -> None:
    """For resources and ports: there an additional pod never makes another one fit."""
    check_scenes(OF_NODES, check_victims_are_minimal)


def check_victims_are_minimal(search: Search) -> int:
    for candidate in search.result.candidates:
        for spared in candidate.victims:
            removed = [victim.uid for victim in candidate.victims if victim is not spared]
            explanation = judged(search.scene, search.by, search.preemptor, removed)
            assert candidate.node not in explanation.feasible, f"{spared.full_name} could have stayed"
    return sum(len(candidate.victims) for candidate in search.result.candidates)


def test_a_victim_goes_only_where_those_before_it_in_the_order_are_too_few() -> None:
    """For resources and ports, as above."""
    check_scenes(ORDERED, check_order)


def check_order(search: Search) -> int:
    by, scene, preemptor = search.by, search.scene, search.preemptor
    namespace = scene.cache.namespaces.get(preemptor.namespace)
    for candidate in search.result.candidates:
        usage = scene.cache.ledger.usage(candidate.node)
        evictable = [other for other in usage.pods.values() if search.allowed(other)]
        for victim in candidate.victims:
            removed = {other.uid for other in candidate.victims} | {
                other.uid
                for other in evictable
                if goes_first(by, preemptor, namespace, other, victim, facts=scene.facts, now_ns=scene.now_ns)
            }
            assert candidate.node not in judged(scene, by, preemptor, removed - {victim.uid}).feasible, (
                f"{victim.full_name} went before others"
            )
    return sum(len(candidate.victims) for candidate in search.result.candidates)


@pytest.mark.parametrize(
    "by", [OF_NODES, ROOMY, ORDERED], ids=["of nodes", "with a rule of its own", "with an order"]
)
def test_best_candidate_is_found_without_evaluating_every_node(by: Program) -> None:
    checked = 0

    @given(
        scene=scenes(placed_max=14),
        started=st.lists(st.none() | st.integers(0, 3), min_size=14, max_size=14),
        room=st.integers(-1, 2),
    )
    @Scenes
    def search(scene: Scene, started: list[int | None], room: int) -> None:
        nonlocal checked
        checked += check_best_candidate(by, scene, started, room)

    for number in range(ROUNDS_MAX):
        seed(number)(search)()
        if checked > 0:
            return
    raise AssertionError("no scene has a candidate")


def check_best_candidate(by: Program, scene: Scene, started: list[int | None], room: int) -> int:
    """`room`: of a budget of all pods with labels. Returns how many candidates the search through all nodes found."""
    preemptor = stuck(scene, by)
    if preemptor is None:
        return 0
    compiled, evaluator, cache = plan.compile(by), plan.Evaluator(scene.cache), scene.cache
    evaluator.build_columns(compiled)
    allowed = compiled.may_evict(
        preemptor, cache.namespaces.get(preemptor.namespace), scene.facts, scene.now_ns
    )
    times = dict(zip(sorted(cache.pods), started, strict=False))
    budget = DisruptionBudget(
        "default", "b", LabelSelector((SelectorRequirement("rare", "DoesNotExist", ()),)), room, frozenset()
    )
    order = compiled.victim_order(
        preemptor, cache.namespaces.get(preemptor.namespace), scene.facts, scene.now_ns
    )
    cluster = PreemptionInputs(
        lambda node: cache.ledger.usage(node).pods.values(),
        times.get,
        (budget,),
        len(cache.nodes),
        order=order,
    )

    def fresh() -> plan.DryRun:
        return evaluator.dry_run(
            compiled, preemptor, now_ns=scene.now_ns, facts=scene.facts, samples=scene.samples
        )

    every, dry_run = run_to_completion(find_candidates(fresh(), EvictablePods(allowed), cluster)), fresh()
    assert dry_run.node_local, "these policies look at nodes alone"
    candidates, best = run_to_completion(find_best_candidate(dry_run, EvictablePods(allowed), cluster))

    assert best == (least_disruptive(every.candidates) if every.candidates else None)
    if best is None:
        assert rejection_reasons(candidates, dry_run, cluster) == every.reasons
    for candidate in every.candidates:
        check_bound(candidate, dry_run, cluster, EvictablePods(allowed))
    return len(every.candidates)


def check_bound(
    candidate: Candidate, dry_run: plan.DryRun, cluster: PreemptionInputs, evictable: EvictablePods
) -> None:
    """That of a node where evictions help is no higher than the disruption, in any part: the start counts for the priority."""
    (missing,) = dry_run.shortfalls([candidate.node])
    pods = run_to_completion(cluster.evictable_pods(candidate.node, evictable))
    for bound in (disruption_lower_bound(pods, missing, cluster), bound_for_any_pod(pods, cluster)):
        parts = list(zip(bound, candidate.disruption, strict=True))
        assert all(low <= real for low, real in parts[:-1]), f"{bound} of {candidate.disruption}"
        assert bound[2] < candidate.disruption[2] or bound[-1] <= candidate.disruption[-1], f"{bound}"


TOO_HIGH: list[tuple[object, str, Any]] = [
    (disruption_bound, "_count_min", lambda sizes, amount: (amount > 0) * (1 + len(list(sizes)) // 2)),
    (disruption_bound, "_last_needed", lambda sizes, _: len(sizes) - 1),
    (disruption_bound, "_violations_min", lambda violations, _: sum(violations)),
    (disruption_bound, "_latest_start", lambda units, *_: min(units.started_ns)),
    (disruption_bound, "split_by_budget", lambda pods, _: (list(pods), [])),
    (disruption_bound, "_size", lambda pod, resource: pod.requests.get(resource, 0)),
    (
        best_candidate_search,
        "select_victims_on_nodes",
        lambda dry_run, potential, *more: searching.select_victims_on_nodes(
            dry_run, {node: pods[:1] for node, pods in potential.items()}, *more
        ),
    ),
]


@pytest.mark.parametrize(("owner", "part", "planted"), TOO_HIGH, ids=[part for _, part, _ in TOO_HIGH])
def test_planted_lower_bound_that_is_too_high_is_detected(
    owner: object, part: str, planted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, part, planted)

    @given(scene=scenes(placed_max=14), room=st.integers(-1, 1))
    @HUNT
    def search(scene: Scene, room: int) -> None:
        check_best_candidate(OF_NODES, scene, [1, 2, None, 3, 0, 2, 1] * 2, room)

    with pytest.raises(AssertionError):
        search()


@pytest.mark.parametrize(
    ("part", "planted", "check"),
    [
        ("_remove_pods", lambda *_: None, check_all_candidates_found),
        ("sorted_by_importance", lambda pods, *_: list(pods)[:1], check_all_candidates_found),
        ("Candidate", lambda node, pods, *more: Candidate(node, pods[1:], *more), check_pod_fits),
    ],
    ids=["no pod is removed", "only one pod is removed", "one pod is forgotten"],
)
def test_planted_bug_in_the_candidate_search_is_detected(
    part: str, planted: Any, check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, part, planted)

    @given(scene=scenes(placed_max=10))
    @HUNT
    def hunt(scene: Scene) -> None:
        search = search_of(DEFAULT, scene)
        if search is not None:
            check(search)

    with pytest.raises(AssertionError):
        hunt()


def candidate(name: str, *priorities: int, violations: int = 0, started_ns: int = 0) -> Candidate:
    victims = tuple(pod(f"{name}-{place}", priority=priority) for place, priority in enumerate(priorities))
    return Candidate(NodeName(name), victims, violations, started_ns)


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (candidate("b", 90, 90, 90), candidate("a", 1, violations=1)),
        (candidate("b", 5, 5, 5), candidate("a", 6)),
        (candidate("b", 5, 1), candidate("a", 5, 2)),
        (candidate("b", 5), candidate("a", 5, -(2**31))),
        (candidate("b", 5, started_ns=20), candidate("a", 5, started_ns=10)),
        (candidate("a", 5), candidate("b", 5)),
    ],
    ids=["budgets", "highest priority", "sum of priorities", "number", "started later", "first"],
)
def test_the_six_steps_of_choosing_a_node(better: Candidate, worse: Candidate) -> None:
    in_order = sorted([better, worse], key=lambda candidate: candidate.node)

    assert least_disruptive(in_order) is better


def test_ignoring_the_order_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    right = searching.reprieve_order
    monkeypatch.setattr(
        searching, "reprieve_order", lambda pods, gang_of, budgets, _: right(pods, gang_of, budgets)
    )

    @given(scene=scenes(placed_max=10))
    @HUNT
    def hunt(scene: Scene) -> None:
        search = search_of(ORDERED, scene)
        if search is not None:
            check_order(search)

    with pytest.raises(AssertionError):
        hunt()


@pytest.mark.parametrize("count", [0, 1, 7, 8, 21])
def test_each_attempt_begins_elsewhere_however_many_there_are(count: int) -> None:
    """With a multiple of the step each attempt began with the first one."""
    everything = range(count)
    begun = [begun_elsewhere(everything, attempts, 7) for attempts in range(count)]

    assert {each[0] for each in begun} == set(everything)
    assert all(sorted(each) == [*everything] for each in begun)
