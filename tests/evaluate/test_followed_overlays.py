"""An overlay that follows the cluster equals one that is made anew, with pods removed from it and added to it."""

from collections.abc import Callable, Iterator

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from policysched.cluster.cache import ClusterCache
from policysched.evaluate import Evaluator, Overlay
from policysched.evaluate import compile as compile_program
from policysched.evaluate.columns.placed_pods import HypotheticalPlacedPods
from policysched.evaluate.columns.pod_changes import PodChanges
from policysched.evaluate.columns.pod_classes import PodMatcher
from policysched.lang.ir.program import Program
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.pods import Pod, QueuedPodInfo
from policysched.model.selectors import LabelSelector, SelectorRequirement
from tests import builders
from tests.evaluate.clusters import Scene, scenes
from tests.evaluate.evaluation import evaluated, later
from tests.evaluate.histories import play, seeds, twin
from tests.evaluate.policies import CORNERS, corner
from tests.evaluate.test_hostile import cluster
from tests.hostile import EVERYBODY, anti_affinity
from tests.reference.checked import program
from tests.scheduler.calls import count_calls

SEARCH = settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
HUNT = settings(
    max_examples=2000,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
    derandomize=True,  # a planted bug is found by the same example each time
    database=None,
)
Added = list[tuple[Pod, NodeName]]


def overlay_with(evaluator: Evaluator, removed: list[PodUid], added: Added) -> Overlay:
    overlay = evaluator.overlay()
    for uid in removed:
        overlay.remove_pod(uid)
    for pod, name in added:
        overlay.add_pod(pod, name)
    return overlay


def following_equals_making_anew(program: Program, scene: Scene, seed: int) -> Iterator[bool]:
    """Yields whether the overlay followed, for each change of the cluster."""
    plan, cache = compile_program(program), scene.cache
    evaluator, first, others = Evaluator(cache), scene.pods[0], scene.pods[1:]
    removed: list[PodUid] = []
    added: Added = []
    overlay = evaluator.overlay()
    for number, _ in enumerate(play(cache, seed, changes=8)):
        now, names = later(scene, number * 7), sorted(cache.nodes)
        evaluator.version  # noqa: B018 - refreshes the columns
        removed = [uid for uid in removed if cache.ledger.placement(uid) is not None]
        added = [(pod, name) for pod, name in added if name in names]
        followed = overlay.follow()
        yield followed
        if not followed:
            overlay = overlay_with(evaluator, removed, added)
        for uid, tried in ((uid, index) for index, uid in enumerate(sorted(cache.pods))):
            if cache.ledger.placement(uid) is not None and uid not in removed and seed >> number + tried & 1:
                overlay.remove_pod(uid)
                if tried % 2:
                    overlay.restore_pod(uid)  # as in a dry run
                else:
                    removed.append(uid)
        if number < len(others) and names:
            added.append((others[number], names[seed % len(names)]))
            overlay.add_pod(*added[-1])
        fresh = Evaluator(twin(cache))
        anew = overlay_with(fresh, removed, added)
        assert evaluated(evaluator, plan, first, now, overlay) == evaluated(fresh, plan, first, now, anew)
        assert +overlay.claim_use_deltas == +anew.claim_use_deltas
        assert [pod.uid for pod in overlay.removed_pods] == [pod.uid for pod in anew.removed_pods]
        for pod in (first, *others):
            assert overlay.shares.share_of(pod.namespace, "cpu") == anew.shares.share_of(pod.namespace, "cpu")


@pytest.mark.parametrize("name", CORNERS)
def test_an_overlay_that_follows_equals_a_new_one(name: str) -> None:
    program = corner(name)

    @SEARCH
    @given(scene=scenes(pods=4, placed_max=8), seed=seeds)
    def search(scene: Scene, seed: int) -> None:
        for _ in following_equals_making_anew(program, scene, seed):
            pass

    search()


# ── what ends an overlay ───────────────────────────────────────────────────────────────────────────────────────────


def changed_cluster(change: str) -> bool:
    """Whether an overlay follows on which a pod of one node was removed, and a member added to the other."""
    cache = builders.world(nodes=[builders.node(name, cpu="4") for name in "ab"])
    victim = builders.pod("victim", cpu="3")
    cache.put_pod(builders.placed(victim, "a"))
    evaluator = Evaluator(cache)
    overlay = overlay_with(evaluator, [victim.uid], [(builders.pod("member", cpu="2"), NodeName("a"))])
    match change:
        case "the victim ends":
            cache.drop_pod(victim.uid)
        case "the victim changes":
            cache.put_pod(builders.placed(builders.pod("victim", cpu="3", labels={"a": "b"}), "a"))
        case "the node changes":
            cache.put_node(builders.node("a", cpu="5"))
        case "the node goes":
            cache.drop_node(NodeName("a"))
        case "the nodes come back in another order":
            for name in "ab":
                cache.drop_node(NodeName(name))
            evaluator.version  # noqa: B018 - refreshes the columns
            for name in "ba":
                cache.put_node(builders.node(name, cpu="4"))
        case "a pod comes":
            cache.put_pod(builders.placed(builders.pod("other", cpu="1"), "a"))
    evaluator.version  # noqa: B018 - refreshes the columns
    followed = overlay.follow()
    if followed:
        used = [usage.requested["cpu"] for usage in overlay.usages.values()]
        assert used == [3000 if change == "a pod comes" else 2000]
    return followed


def test_an_overlay_follows_unless_what_it_is_made_of_changed() -> None:
    assert changed_cluster("the victim ends")
    assert changed_cluster("a pod comes")
    assert not changed_cluster("the victim changes")
    assert changed_cluster("the node changes"), (
        "to make it anew takes long, and a label may change every second"
    )
    assert not changed_cluster("the node goes")
    assert not changed_cluster("the nodes come back in another order")


def test_other_counts_of_an_overlay_that_follows_have_another_version() -> None:
    """Two changes of the overlay that cancel out are forgotten, and two pods come: it is by the version that rules notice."""
    cache = builders.world(nodes=[builders.node(name, cpu="4") for name in "ab"])
    counted = [builders.pod(f"p{index}", labels={"app": "a"}) for index in range(3)]
    cache.put_pod(builders.placed(counted[0], "a"))
    evaluator = Evaluator(cache)
    overlay = evaluator.overlay()
    selector = LabelSelector((SelectorRequirement("app", "In", frozenset({"a"})),))
    tally = evaluator._columns.placed_pods.tally(PodMatcher(((frozenset({"default"}), selector),)))
    overlay.remove_pod(counted[0].uid)
    overlay.pods.row_counts(tally)
    overlay.restore_pod(counted[0].uid)
    before = overlay.pods.row_counts(tally)
    rows_before, version_before = before.array(2).tolist(), before.version

    for pod in counted[1:]:
        cache.put_pod(builders.placed(pod, "b"))
    evaluator.version  # noqa: B018 - refreshes the columns
    assert overlay.follow()

    after = overlay.pods.row_counts(tally)
    assert after.array(2).tolist() != rows_before
    assert after.version != version_before


def test_an_overlay_with_thousands_of_removed_pods_looks_at_those_of_nodes_that_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It follows in each pause of a gang that evicts them."""
    nodes = [builders.node(f"n{index}", cpu="100", pods="1000") for index in range(20)]
    pods = [builders.pod(f"p{index}", cpu="1") for index in range(400)]
    cache = builders.world(nodes=nodes)
    for index, each in enumerate(pods):
        cache.put_pod(builders.placed(each, f"n{index % 20}"))
    evaluator, asked = Evaluator(cache), list[PodUid]()
    overlay = overlay_with(evaluator, [each.uid for each in pods], [])
    placement_of = overlay._placement_of
    monkeypatch.setattr(overlay, "_placement_of", lambda uid: asked.append(uid) or placement_of(uid))
    counted = count_calls(
        monkeypatch, HypotheticalPlacedPods, "adjust", lambda: _follow_label(cache, evaluator, overlay)
    )

    assert len(asked) == 20
    assert counted == 0, "nobody asks for counts"


def _follow_label(cache: ClusterCache, evaluator: Evaluator, overlay: Overlay) -> None:
    cache.put_node(builders.node("n3", cpu="100", pods="1000", labels={"new": "label"}))
    evaluator.version  # noqa: B018 - refreshes the columns
    assert overlay.follow()


def test_an_explanation_evicts_nothing_that_an_overlay_in_use_counts() -> None:
    """It applies changes before, of which there are none: the overlay does not follow. A gang lost the terms of its members."""
    cache = cluster(2)
    evaluator, plan = Evaluator(cache), compile_program(program("filter inter_pod_affinity"))
    apart = anti_affinity([{**EVERYBODY, "topologyKey": "kubernetes.io/hostname"}])
    overlay = evaluator.overlay()
    for number in range(300):  # more classes of pods than are kept without any
        member = builders.pod(f"member-{number}", labels={"index": str(number)}, spec=apart)
        overlay.add_pod(member, NodeName("n0"))

    def feasible_nodes(pod: Pod) -> int:
        facts = QueuedPodInfo(0, 0)
        return evaluator.evaluate(
            plan, pod, now_ns=0, facts=facts, samples={}, overlay=overlay
        ).feasible_count

    before = feasible_nodes(builders.pod("before"))
    evaluator.refresh_slice(50)

    assert before == 1
    assert feasible_nodes(builders.pod("after", labels={"other": "labels"})) == 1


# ── planted bugs ───────────────────────────────────────────────────────────────────────────────────────────────────


def caught() -> bool:
    @HUNT
    @given(name=st.sampled_from(sorted(CORNERS)), scene=scenes(pods=4, placed_max=8), seed=seeds)
    def hunt(name: str, scene: Scene, seed: int) -> None:
        for _ in following_equals_making_anew(corner(name), scene, seed):
            pass

    try:
        hunt()
    except (AssertionError, KeyError):
        return True
    return False


def _forgets_removed(self: Overlay, changed: set[int]) -> None:
    self._removed, removed = {}, self._removed
    original_read_again(self, changed)
    self._removed = removed


def _keeps_restored(self: HypotheticalPlacedPods) -> None:
    if not self._is_outdated:
        return
    self._is_outdated = False
    self._class_changes, self._term_changes = PodChanges(), PodChanges()
    self._counts.clear()
    self._sums.clear()
    self._pending_changes = {(row, pod.uid): (pod, delta) for row, pod, delta in self._all_changes}


original_read_again = Overlay._read_again


@pytest.mark.parametrize(
    ("holder", "part", "planted"),
    [
        (Overlay, "_read_again", _forgets_removed),
        (HypotheticalPlacedPods, "_catch_up", _keeps_restored),
    ],
    ids=["removed pods return", "restored pods count twice"],
)
def test_a_planted_mistake_is_found(
    holder: object, part: str, planted: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(holder, part, planted)
    assert caught()
