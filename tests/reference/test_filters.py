"""Rejections of nodes, which of several decides, and their messages."""

from policysched.cluster.cache import ClusterCache
from policysched.cluster.metric_samples import MetricSamples, Sample, Samples
from policysched.lang.ir.program import Program
from policysched.lang.ir.verdict import PlacementExplanation
from policysched.model.identifiers import NodeName
from policysched.model.pods import Pod, QueuedPodInfo
from tests.builders import node, placed, pod, world
from tests.reference import evaluate
from tests.reference.checked import metric, program

NOW_NS = 1_000 * 10**9
RX = metric("rx", "bandwidth", "bit/s")


def decide(
    policy: Program, candidate: Pod, cache: ClusterCache, samples: Samples | None = None
) -> PlacementExplanation:
    return evaluate(policy, candidate, cache, now_ns=NOW_NS, facts=QueuedPodInfo(0, 0), samples=samples or {})


def rx(values: dict[str, float], *, polled_s_ago: int = 0, true_s_ago: int = 0) -> Samples:
    at_ns = NOW_NS - true_s_ago * 10**9
    samples = {NodeName(name): Sample(value, at_ns) for name, value in values.items()}
    return {"rx": MetricSamples(samples, NOW_NS - polled_s_ago * 10**9)}


def reasons(explanation: PlacementExplanation, name: str) -> list[tuple[str, ...]]:
    return [rejection.reasons for rejection in explanation.rejections.get(name, ())]


def test_every_rejection_is_listed_and_the_first_in_the_policy_decides() -> None:
    policy = program(
        'filter no_red   reject node.labels["color"] == "red" says "red is out"',
        "filter only_big require node.allocatable.cpu >= 8",
    )
    cache = world([node("a", labels={"color": "red"}), node("b"), node("c", cpu="8")])

    explanation = decide(policy, pod("p"), cache)

    assert explanation.feasible == ("c",)
    assert reasons(explanation, "a") == [("red is out",), ("node(s) didn't satisfy rule only_big",)]
    assert reasons(explanation, "b") == [("node(s) didn't satisfy rule only_big",)]


def test_an_absent_node_label_does_not_reject() -> None:
    policy = program('filter rack_out reject node.labels["rack"] == "r17"')

    explanation = decide(policy, pod("p"), world([node("a", labels={"rack": "r17"}), node("b")]))

    assert explanation.feasible == ("b",)


def test_a_filter_applies_only_if_its_when_is_true() -> None:
    policy = program(
        "filter big when pod.requests.cpu > 1 require node.allocatable.cpu >= 8",
    )
    cache = world([node("a", cpu="4")])

    assert decide(policy, pod("small", cpu="1"), cache).feasible == ("a",)
    assert decide(policy, pod("large", cpu="2"), cache).feasible == ()


def test_a_node_without_a_fresh_sample_is_rejected_or_passes_by_the_missing_clause() -> None:
    strict = program(RX, "filter cool require rx < 800Mbps missing reject")
    lenient = program(RX, "filter cool require rx < 800Mbps missing pass")
    cache = world([node("a"), node("b")])
    one_known = rx({"a": 1e6})

    assert decide(strict, pod("p"), cache, one_known).feasible == ("a",)
    assert reasons(decide(strict, pod("p"), cache, one_known), "b") == [("node(s) had no sample of rx",)]
    assert decide(lenient, pod("p"), cache, one_known).feasible == ("a", "b")


def test_the_age_of_a_sample_counts_from_the_earlier_of_timestamp_and_poll() -> None:
    policy = program(RX, "filter cool require rx < 800Mbps missing reject")
    cache = world([node("a")])

    assert decide(policy, pod("p"), cache, rx({"a": 1.0}, true_s_ago=90)).feasible == ("a",)
    assert decide(policy, pod("p"), cache, rx({"a": 1.0}, true_s_ago=91)).feasible == ()
    assert decide(policy, pod("p"), cache, rx({"a": 1.0}, polled_s_ago=91)).feasible == ()


def test_messages_contain_values_and_groups_have_placeholders_for_node_values() -> None:
    policy = program(
        RX,
        "let hot: bandwidth = 800Mbps",
        'filter cool require rx < hot missing reject says "receiving {rx}, over {hot}"',
    )

    explanation = decide(policy, pod("p"), world([node("a")]), rx({"a": 812e6}))

    (rejection,) = explanation.rejections["a"]
    assert rejection.reasons == ("receiving 812Mbps, over 800Mbps",)
    assert rejection.event_reasons == ("receiving …, over 800Mbps",)


def test_metric_rules_are_disabled_while_too_many_candidates_lack_the_metric() -> None:
    policy = program(
        RX,
        "outage {\n above = 50%\n then = disable\n}",
        "filter cool require rx < 800Mbps missing reject",
        "score idle weight 1 lower rx normalize range(0Mbps, 1Gbps) missing worst",
    )
    cache = world([node("a"), node("b"), node("c"), node("d", taints=["x:NoSchedule"])])

    half = decide(policy, pod("p"), world([node("a"), node("b")]), rx({"a": 0.0}))
    most = decide(policy, pod("p"), cache, rx({"a": 0.0}))

    assert half.feasible == ("a",)
    assert most.feasible == ("a", "b", "c", "d")
    assert most.scores == {}


def test_a_pod_waits_for_a_metric_that_too_many_candidates_lack_and_that_a_rule_reads_for_it() -> None:
    policy = program(
        RX,
        "outage {\n above = 50%\n then = wait\n}",
        "filter cool when pod.priority > 5 require rx < 800Mbps missing pass",
    )
    cache = world([node("a"), node("b"), node("c"), node("d", taints=["x:NoSchedule"])])

    important = decide(policy, pod("p", priority=9), cache, rx({"a": 0.0}))
    other = decide(policy, pod("p", priority=1), cache, rx({"a": 0.0}))
    enough = decide(policy, pod("p", priority=9), cache, rx({"a": 0.0, "b": 0.0, "c": 0.0}))

    assert important.pod_rejection == "waits for metric rx: 3 of 4 candidate nodes have no sample"
    assert (important.feasible, important.selected, important.pod_rejected_by) == ((), None, "outage")
    assert other.feasible == enough.feasible == ("a", "b", "c", "d")


def test_a_node_input_rejects_the_node_before_all_filters() -> None:
    policy = program(
        'input gen: int = node.labels["gen"] required "has no gen" invalid reject "has an odd gen"',
        "filter young require gen >= 3",
    )
    cache = world([node("a", labels={"gen": "x"}), node("b"), node("c", labels={"gen": "3"})])

    explanation = decide(policy, pod("p"), cache)

    assert explanation.feasible == ("c",)
    assert reasons(explanation, "a")[0] == ("has an odd gen",)
    assert reasons(explanation, "b")[0] == ("has no gen",)
    assert explanation.rejections["a"][0].rule == "gen"
    assert not explanation.rejections["a"][0].resolvable


def test_a_pod_input_rejects_the_pod() -> None:
    policy = program(
        'input least: int = pod.labels["least"] default 1 invalid reject "least must be a number"',
        "queue by least",
    )

    explanation = decide(policy, pod("p", labels={"least": "eight"}), world([node("a")]))

    assert explanation.pod_rejection == "least must be a number"
    assert explanation.feasible == ()


def test_a_pod_with_an_unsupported_feature_is_rejected_with_a_reason() -> None:
    claims = {"resourceClaims": [{"name": "gpu"}]}

    explanation = decide(program("include kube_default"), pod("p", spec=claims), world([node("a")]))

    assert explanation.pod_rejection == (
        "the pod uses spec.resourceClaims of an unknown kind, which this version of policysched does not support"
    )


def test_anti_affinity_of_a_placed_pod_rejects_its_domain() -> None:
    term = {"labelSelector": {"matchLabels": {"app": "web"}}, "topologyKey": "kubernetes.io/hostname"}
    guard = pod(
        "guard",
        spec={"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}},
    )
    cache = world([node("a"), node("b")], [placed(guard, "a")])
    policy = program("include kube_default")

    rejected = decide(policy, pod("web", labels={"app": "web"}), cache)
    assert rejected.feasible == ("b",)
    assert reasons(rejected, "a") == [("node(s) didn't satisfy existing pods anti-affinity rules",)]
    assert decide(policy, pod("db", labels={"app": "db"}), cache).feasible == ("a", "b")
    assert decide(policy, pod("web", labels={"app": "web"}, namespace="other"), cache).feasible == ("a", "b")


def test_without_the_built_in_pod_affinity_is_ignored() -> None:
    term = {"labelSelector": {}, "topologyKey": "kubernetes.io/hostname"}
    guard = pod(
        "guard",
        spec={"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}},
    )
    cache = world([node("a")], [placed(guard, "a")])

    assert decide(program("filter node_resources_fit"), pod("p"), cache).feasible == ("a",)
    assert decide(program("filter inter_pod_affinity"), pod("p"), cache).feasible == ()


def test_a_rejection_is_resolvable_only_if_the_rule_reads_usage() -> None:
    policy = program(
        "filter room  require node.free.cpu >= 8",
        "filter quiet require count(pods on node where other.priority < 5) == 0",
        'filter rack  reject node.labels["rack"] == "r1"',
    )
    cache = world([node("a", labels={"rack": "r1"})], [placed(pod("x"), "a")])

    explanation = decide(policy, pod("p"), cache)

    assert {rejection.rule: rejection.resolvable for rejection in explanation.rejections["a"]} == {
        "room": True,
        "quiet": True,
        "rack": False,
    }


def test_nodes_that_the_pod_does_not_name_are_rejected_first() -> None:
    named = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}]
    terms = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": named}}
    cache = world([node("a", taints=["x:NoSchedule"]), node("b")])

    affine = pod("p", spec={"affinity": {"nodeAffinity": terms}})
    explanation = decide(program("include kube_default"), affine, cache)

    assert explanation.feasible == ("b",)
    assert reasons(explanation, "a") == [
        ("node(s) didn't satisfy plugin(s) [NodeAffinity]",),
        ("node(s) had untolerated taint(s)",),
    ]


def test_layers_with_a_true_condition_apply_from_top_to_bottom() -> None:
    policy = program(
        "filter big require node.allocatable.cpu >= 8",
        'layer lax when pod.namespace == "lax" {\n amend big require node.allocatable.cpu >= 4\n}',
        "layer tight when pod.priority > 5 {\n amend big require node.allocatable.cpu >= 16\n}",
        'layer free when pod.service_account == "free" {\n drop big\n}',
    )
    cache = world([node("a", cpu="4"), node("b", cpu="8"), node("c", cpu="16")])
    free = pod("p", priority=6, spec={"serviceAccountName": "free"})

    assert decide(policy, pod("p"), cache).feasible == ("b", "c")
    assert decide(policy, pod("p", namespace="lax"), cache).feasible == ("a", "b", "c")
    assert decide(policy, pod("p", priority=6), cache).feasible == ("c",)
    assert decide(policy, pod("p", namespace="lax", priority=6), cache).feasible == ("c",)
    assert decide(policy, free, cache).feasible == ("a", "b", "c")
