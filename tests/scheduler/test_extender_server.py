"""The extender server: policies evaluated for another scheduler."""

from collections.abc import Iterable
from unittest.mock import patch

import pytest

from policysched.cluster.devices.cel_selectors import DeviceSelectors
from policysched.cluster.metric_samples import MetricSamples, Sample
from policysched.evaluate import Evaluator
from policysched.model.identifiers import NodeName
from policysched.model.namespaces import Namespace
from policysched.model.nodes import Node
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod
from policysched.scheduler import events as e
from policysched.scheduler.commands import Bind
from policysched.scheduler.extenders.extender_server import UNKNOWN_NODE, ExtenderServer
from policysched.scheduler.extenders.queries import ExtenderQuery, ExtenderServerError, NodeVictims
from policysched.scheduler.policy_permissions import AllowedPolicy, NamespaceSelection, PolicyPermissions
from tests.builders import node, pending, placed, pod, service
from tests.devices import asking, claim, claiming
from tests.hostile import hostile_pod
from tests.scheduler.rig import START_NS, bundle

RACKS = """\
policy racks version 1
input rack: string = node.labels["rack"] default "none"
filter rack reject rack == "r17" says "rack r17 is being repaired"
filter node_resources_fit
"""

SCORES = """\
policy scores version 1
input speed: int = node.labels["speed"] default 0 invalid default
score speed weight 3 higher speed normalize range(0, 100)
score here weight 1 prefer node.name == "a"
"""


class Asked:
    """`ExtenderServer` with what it has seen."""

    def __init__(
        self,
        policy: str,
        *objects: Node | ObservedPod,
        synced: bool = True,
        permissions: PolicyPermissions | None = None,
    ) -> None:
        self.answering = ExtenderServer(bindable_scheduler_names=["test"], permissions=permissions)
        self.handle(e.PoliciesUpdated(bundle({"main.policy": policy}), "1"))
        self.handle(e.NamespaceUpdated(Namespace("default", {}, {})))
        for obj in objects:
            self.handle(e.NodeUpdated(obj) if isinstance(obj, Node) else e.PodUpdated(obj))
        if synced:
            self.handle(e.Synced())

    def handle(self, event: e.Event) -> None:
        self.answering.handle(event, START_NS)
        assert self.answering.check() == []

    def filtered(
        self, policy: str, pod: Pod, *names: str, nodes: Iterable[Node] | None = None
    ) -> tuple[list[str], dict[str, str], dict[str, str]]:
        result = self.answering.filter(question(policy, pod, *names, nodes=nodes), START_NS)
        return list(result.passed), dict(result.failed), dict(result.unresolvable)

    def scores(self, pod: Pod, *names: str, scale: str = "policy") -> dict[str, int]:
        return self.answering.scores(question("scores", pod, *names), scale, START_NS)  # type: ignore[arg-type,return-value]

    def bind(self, pod: Pod, on: str) -> Bind:
        return self.answering.assume("racks", pod.uid, pod.namespace, pod.name, NodeName(on), START_NS)


def question(policy: str, pod: Pod, *names: str, nodes: Iterable[Node] | None = None) -> ExtenderQuery:
    sent = None if nodes is None else tuple(nodes)
    candidates = tuple(map(NodeName, names)) if sent is None else tuple(each.name for each in sent)
    return ExtenderQuery(policy, pod, candidates, sent)


def test_no_selector_of_devices_is_evaluated_for_a_request() -> None:
    """kube-scheduler allocates the devices of the pods that it asks about."""
    server = Asked("policy devices version 1\ninclude kube_default\n", node("a"), node("b"))
    claims = pod("web", spec=claiming("c"))

    with patch.object(DeviceSelectors, "matches", side_effect=AssertionError("a selector is evaluated")):
        assert server.filtered("devices", claims, "a", "b")[0] == ["a", "b"]
        assert set(server.answering.scores(question("devices", claims, "a", "b"), "policy", START_NS)) == {
            "a",
            "b",
        }
    with pytest.raises(AssertionError, match="unexpected event"):  # so none can be, as no devices are known
        server.handle(e.DeviceObjectUpdated(claim("c", asking("r"))))


def test_each_node_passes_or_fails_with_its_reason_and_eviction_helps_only_for_capacity() -> None:
    nodes = [node("a"), node("b", labels={"rack": "r17"}), node("full"), node("other")]
    server = Asked(RACKS, *nodes, placed(pod("holder", cpu="3"), "full"))

    result = server.filtered("racks", pod(cpu="2"), "full", "a", "b", "new")

    assert result == (
        ["a"],
        {"full": "Insufficient cpu", "new": UNKNOWN_NODE},
        {"b": "rack r17 is being repaired"},
    )


def test_a_namespace_that_the_policy_does_not_serve_is_refused_by_every_verb() -> None:
    allowed = PolicyPermissions((AllowedPolicy("racks", NamespaceSelection(("ml",))),))
    web, victim = pod("web"), pod("low", cpu="4", priority=-1)
    server = Asked(
        RACKS + "preemption { victims = any }\n",
        node("a"),
        placed(victim, "a"),
        pending(web),
        permissions=allowed,
    )

    passed, failed, unresolvable = server.filtered("racks", web, "a")
    preempted = server.answering.preempt(
        "racks", web, {NodeName("a"): NodeVictims((victim.uid,), {})}, START_NS
    )

    assert (passed, failed, preempted) == ([], {}, ())
    assert unresolvable["a"].startswith("policy racks does not serve namespace default")
    with pytest.raises(ExtenderServerError, match="does not serve namespace default"):
        server.bind(web, "a")


@pytest.mark.parametrize(("owner", "nodes"), [("DaemonSet", ()), ("ReplicaSet", ("a",))])
def test_the_policy_accepts_no_victim_that_the_settings_protect(owner: str, nodes: tuple[str, ...]) -> None:
    victim = pod("low", cpu="4", priority=-1, owner=("apps/v1", owner, "agent"))
    server = Asked(RACKS + "preemption { victims = any }\n", node("a"), placed(victim, "a"))

    accepted = server.answering.preempt(
        "racks", pod("web", cpu="4"), {NodeName("a"): NodeVictims((victim.uid,), {})}, START_NS
    )

    assert accepted == nodes


def test_full_node_objects_count_for_one_query_only() -> None:
    server = Asked(RACKS, node("a"), node("b", labels={"rack": "r17"}))
    newer = [node("a", labels={"rack": "r17"}), node("b"), node("unseen")]

    sent = server.filtered("racks", pod(), nodes=newer)

    assert sent == (["b", "unseen"], {}, {"a": "rack r17 is being repaired"})
    assert server.filtered("racks", pod(), "a", "b", "unseen") == (
        ["a"],
        {"unseen": UNKNOWN_NODE},
        {"b": "rack r17 is being repaired"},
    )


def test_pods_placed_on_a_node_sent_as_full_object_still_count() -> None:
    server = Asked(RACKS, node("a", cpu="2"), placed(pod("holder", cpu="1500m"), "a"))

    _, failed, _ = server.filtered("racks", pod(cpu="1"), nodes=[node("a", cpu="2", labels={"new": "yes"})])

    assert failed == {"a": "Insufficient cpu"}


def test_scores_are_rounded_once_from_whole_totals() -> None:
    server = Asked(SCORES, *(node(name, labels={"speed": str(speed)}) for name, speed in SPEEDS.items()))

    scores = server.scores(pod(), *SPEEDS, "new")

    # (3 * speed + 100 on a) of 400, in tenths, halves up.
    assert scores == {"a": 10, "b": 8, "c": 4, "d": 0, "new": 0}


SPEEDS = {"a": 100, "b": 100, "c": 50, "d": 6}


def test_scores_can_span_the_candidates_instead() -> None:
    server = Asked(SCORES, *(node(name, labels={"speed": str(speed)}) for name, speed in SPEEDS.items()))

    scores = server.scores(pod(), "c", "d", scale="candidates")

    assert scores == {"c": 10, "d": 0}
    assert server.scores(pod(), "d", scale="candidates") == {"d": 0}


def test_a_halfway_score_is_rounded_up() -> None:
    server = Asked(SCORES, node("b", labels={"speed": "60"}), node("c", labels={"speed": "59"}))

    # 180 of 400 is 4.5 tenths; 177 is less.
    assert server.scores(pod(), "b", "c") == {"b": 5, "c": 4}


def test_a_bound_pod_in_a_repeated_query_does_not_block_itself() -> None:
    own = pod("web", cpu="1500m")
    server = Asked(RACKS, node("a", cpu="2"), placed(own, "a"))

    assert server.filtered("racks", own, "a")[0] == ["a"]


def test_features_of_kube_scheduler_plugins_are_not_rejected() -> None:
    claims = pod(spec={"volumes": [{"name": "v", "ephemeral": {"volumeClaimTemplate": {}}}]})
    server = Asked(RACKS, node("a"))

    assert server.filtered("racks", claims, "a")[0] == ["a"]


def test_queries_fail_before_the_first_lists_and_for_an_unknown_policy() -> None:
    early, later = Asked(RACKS, node("a"), synced=False), Asked(RACKS, node("a"))

    with pytest.raises(ExtenderServerError, match="first lists") as too_early:
        early.filtered("racks", pod(), "a")
    with pytest.raises(ExtenderServerError, match=r"unknown policy `rucks` \(active: racks\)") as unknown:
        later.filtered("rucks", pod(), "a")

    assert (too_early.value.ready, unknown.value.ready) == (False, True)


def test_a_broken_edit_leaves_the_active_policy_and_a_valid_one_replaces_it() -> None:
    server = Asked(RACKS, node("a", labels={"rack": "r18"}))
    assert server.filtered("racks", pod(), "a")[0] == ["a"]

    server.handle(e.PoliciesUpdated(bundle({"main.policy": "policy racks version 1\nnonsense\n"}), "2"))
    still = server.filtered("racks", pod(), "a")[0]
    server.handle(e.PoliciesUpdated(bundle({"main.policy": RACKS.replace("r17", "r18")}), "3"))
    while server.answering.busy:
        server.answering.advance(START_NS)

    assert still == ["a"]
    assert server.filtered("racks", pod(), "a")[2] == {"a": "rack r18 is being repaired"}


def test_pods_of_a_service_are_spread_by_default_in_extender_queries() -> None:
    spread = "policy spread version 1\nscore pod_topology_spread weight 1\n"
    nodes = [node(name, zone=name) for name in ("a", "b")]
    server = Asked(spread, *nodes, placed(pod("one", labels={"app": "web"}), "a"))
    other = pod("two", labels={"app": "web"})

    def scores() -> dict[str, int]:
        by_node = server.answering.scores(question("spread", other, "a", "b"), "policy", START_NS)
        return {str(name): score for name, score in by_node.items()}

    before = scores()
    server.handle(e.SelectorOwnerUpdated(service("web", app="web")))

    assert before["a"] == before["b"]
    assert scores()["a"] < scores()["b"]


# ── preemption ─────────────────────────────────────────────────────────────────────────────────────────────────────


def victims(*pods: Pod, whole: bool = True) -> NodeVictims:
    return NodeVictims(tuple(pod.uid for pod in pods), {pod.uid: pod for pod in pods} if whole else {})


def test_a_node_is_kept_where_all_victims_may_go_and_the_pod_then_fits() -> None:
    low, kept = pod("low", cpu="3"), pod("kept", cpu="3", scheduler="other")
    small = pod("small", cpu="1")
    server = Asked(
        RACKS,
        *(node(name, cpu="4") for name in ("a", "b", "c")),
        node("d", cpu="4", labels={"rack": "r17"}),
        placed(low, "a"),
        placed(kept, "b"),
        placed(small, "c"),
        placed(pod("big", cpu="3", priority=9), "c"),
    )
    urgent = pod("urgent", cpu="3", priority=5)

    nodes = server.answering.preempt(
        "racks",
        urgent,
        {
            NodeName("a"): victims(low, whole=False),
            NodeName("b"): victims(kept),  # another scheduler's: the clause is `own`
            NodeName("c"): victims(small),  # not enough
            NodeName("d"): victims(pod("elsewhere")),  # the rack
            NodeName("e"): victims(pod("nowhere")),
        },
        START_NS,
    )

    assert nodes == ("a",)


def test_a_node_with_an_unknown_victim_is_left_out() -> None:
    server = Asked(RACKS, node("a"), placed(pod("low", cpu="3"), "a"))

    kept = server.answering.preempt(
        "racks", pod("urgent", priority=5), {NodeName("a"): victims(pod("ghost"), whole=False)}, START_NS
    )

    assert kept == ()


def test_a_pod_over_the_budget_preempts_nothing_and_is_not_evaluated() -> None:
    """kube-scheduler asks about any pod that it finds no node for. Meanwhile nobody else is answered."""
    server = Asked("policy all version 1\ninclude kube_default\n", node("a"), placed(pod("low"), "a"))
    hostile = hostile_pod("anti-affinity on its own topology keys", count=3_000, priority=5)

    with patch.object(Evaluator, "dry_run", side_effect=AssertionError("the pod is evaluated")):
        kept = server.answering.preempt("all", hostile, {NodeName("a"): victims(pod("low"))}, START_NS)

    assert kept == ()


# ── binding ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_pod_bound_through_the_extender_counts_at_once_until_its_bind_fails() -> None:
    own, other = pod("web", cpu="3"), pod("other", cpu="3")
    server = Asked(RACKS, node("a", cpu="4"))
    server.handle(e.PodUpdated(ObservedPod(own, None, "Pending", False, None)))

    command = server.bind(own, "a")
    while_it_is_under_way = server.filtered("racks", other, "a")[1]
    with pytest.raises(ExtenderServerError, match="an earlier bind to a is still in flight"):
        server.bind(own, "b")
    server.handle(e.BindRefused(own.uid, "gated"))

    assert (command.uid, command.node, command.policy) == (own.uid, "a", "racks")
    assert while_it_is_under_way == {"a": "Insufficient cpu"}
    assert server.filtered("racks", other, "a")[0] == ["a"]
    assert server.answering.binds_in_flight == 0


def test_a_confirmed_bind_stays_and_so_does_one_that_the_watch_shows_first() -> None:
    own, second = pod("web", cpu="1"), pod("second", cpu="1")
    server = Asked(RACKS, node("a", cpu="3"))
    for bind in (own, second):
        server.handle(e.PodUpdated(ObservedPod(bind, None, "Pending", False, None)))
        server.bind(bind, "a")

    server.handle(e.BindConfirmed(own.uid, NodeName("a")))
    server.handle(e.PodUpdated(placed(second, "a")))
    server.handle(e.BindLost(second.uid, "bound already"))

    assert server.filtered("racks", pod("third", cpu="2"), "a")[1] == {"a": "Insufficient cpu"}
    assert server.filtered("racks", pod("third", cpu="1"), "a")[0] == ["a"]


@pytest.mark.parametrize(
    ("served", "name", "message"),
    [
        (None, "web", "no pod default/web with uid"),
        (pod("web", labels={"team": "a"}), "other", "no pod default/other with uid"),
        (pod("web", labels={"team": "a"}, scheduler="another"), "web", "schedulerName is `another`"),
        (pod("web"), "web", "the policy rejects the pod: no team"),
    ],
)
def test_only_pods_that_the_policy_serves_are_bound(served: Pod | None, name: str, message: str) -> None:
    team = 'input team: string = pod.labels["team"] required "no team"\nfilter team_open require team != "closed"\n'
    server = Asked(RACKS.replace("filter rack", f"{team}filter rack"), node("a"))
    if served is not None:
        server.handle(e.PodUpdated(ObservedPod(served, None, "Pending", False, None)))
    uid = (served or pod("web")).uid

    with pytest.raises(ExtenderServerError, match=message):
        server.answering.assume("racks", uid, "default", name, NodeName("a"), START_NS)

    assert server.answering.binds_in_flight == 0


# ── a metric that is out ───────────────────────────────────────────────────────────────────────────────────────────

WAITING = """\
policy waiting version 1
metric load: ratio {
  query = "load"
  unit = "1"
  join = node
  every = 15s
  stale = 90s
}
outage { above = 0%, then = wait }
filter node_resources_fit
filter cool require load < 80% missing pass
preemption { victims = any }
"""
WAITS = "waits for metric load: 1 of 1 candidate nodes have no sample"


def test_a_pod_that_waits_for_a_metric_passes_no_node_and_preempts_no_pod() -> None:
    holder = pod("holder", cpu="4")
    server = Asked(WAITING, node("full"), node("roomy"), placed(holder, "full"))
    high = pod("high", cpu="2", priority=9)
    victims = {NodeName("full"): NodeVictims((holder.uid,), {})}

    filtered = server.filtered("waiting", high, "full", "roomy")
    evicted = server.answering.preempt("waiting", high, victims, START_NS)
    samples = {NodeName("roomy"): Sample(0.5, START_NS), NodeName("full"): Sample(0.5, START_NS)}
    server.handle(e.SamplesArrived("waiting", "load", MetricSamples(samples, START_NS)))

    assert filtered == ([], {}, {"full": WAITS, "roomy": WAITS})
    assert evicted == ()
    assert server.filtered("waiting", high, "full", "roomy")[0] == ["roomy"]
    assert server.answering.preempt("waiting", high, victims, START_NS) == ("full",)
