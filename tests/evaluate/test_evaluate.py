"""Single verdicts: messages, validity, requeue events, queue order and gangs."""

import pytest

from policysched.cluster.metric_samples import MetricSamples, Sample, Samples
from policysched.evaluate import Evaluator, Overlay, Plan, Verdict
from policysched.evaluate import compile as compile_program
from policysched.model.cluster_events import ClusterEvent
from policysched.model.identifiers import NodeName
from policysched.model.pods import Pod, QueuedPodInfo
from policysched.scheduler.unschedulable_message import unavailable_message
from tests.builders import namespace, node, placed, pod, world
from tests.evaluate.clusters import MONDAY_NS, SECOND_NS
from tests.reference.checked import metric, program

FACTS = QueuedPodInfo(queued_ns=MONDAY_NS, attempts=0)


def plan_of(*lines: str) -> Plan:
    return compile_program(program(*lines))


def ask(
    evaluator: Evaluator,
    plan: Plan,
    new_pod: Pod,
    *,
    now_ns: int = MONDAY_NS,
    facts: QueuedPodInfo = FACTS,
    samples: Samples | None = None,
    overlay: Overlay | None = None,
) -> Verdict:
    return evaluator.evaluate(
        plan, new_pod, now_ns=now_ns, facts=facts, samples=samples or {}, overlay=overlay
    )


def rx(at_ns: int, **values: float) -> Samples:
    samples = {NodeName(name): Sample(value, at_ns) for name, value in values.items()}
    return {"rx": MetricSamples(samples, polled_ns=at_ns)}


RX = metric("rx", "bandwidth", "bit/s")


# ── messages and counts ───────────────────────────────────────────────────────────────────────────────────────────────


def test_each_node_counts_under_the_first_rule_that_refuses_it_with_all_its_reasons() -> None:
    cache = world(
        [
            node("a", unschedulable=True, cpu="1"),
            node("b", cpu="1", memory="1Gi"),
            node("c", taints=["k=v:NoSchedule"], cpu="1"),
        ]
    )

    verdict = ask(Evaluator(cache), plan_of("include kube_default"), pod(cpu="2", memory="2Gi"))

    assert unavailable_message(verdict.node_count, verdict.reason_counts()) == (
        "0/3 nodes are available: 1 Insufficient cpu, 1 Insufficient memory, "
        "1 node(s) had untolerated taint(s), 1 node(s) were unschedulable."
    )


def test_reasons_of_a_verdict_without_a_node_stay_what_they_were() -> None:
    cache = world([node("a", cpu="1")])
    evaluator, plan = Evaluator(cache), plan_of("include kube_default")
    verdict = ask(evaluator, plan, pod(cpu="2"))

    cache.put_node(node("a", cpu="4"))
    again = ask(evaluator, plan, pod(cpu="2"))

    assert verdict.reason_counts() == {"Insufficient cpu": 1}
    assert again.selected == "a"


COOL = "filter cool require rx < 800Mbps missing pass scaleup no"


def test_scaleup_would_not_help_if_rules_with_scaleup_no_reject_each_kind_of_node() -> None:
    evaluator = Evaluator(world([node("a"), node("b", cpu="1")]))
    hot, one_hot = rx(MONDAY_NS, a=9e9, b=9e9), rx(MONDAY_NS, a=9e9, b=0)
    plan = plan_of(RX, "filter node_resources_fit", COOL)

    pending_by_policy = ask(evaluator, plan, pod(cpu="2"), samples=hot)
    one_kind_is_too_small = ask(evaluator, plan, pod(cpu="2"), samples=one_hot)
    no_nodes = ask(Evaluator(world()), plan, pod(), samples=hot)

    assert pending_by_policy.scaleup_would_not_help()
    assert one_kind_is_too_small.scaleup_would_not_help()
    assert not no_nodes.scaleup_would_not_help()


def test_a_full_node_is_of_a_kind_that_a_scaleup_could_add() -> None:
    full = world([node("a"), node("b", cpu="2")])
    full.assume(pod("other", cpu="1"), NodeName("b"))
    plan, samples = plan_of(RX, "filter node_resources_fit", COOL), rx(MONDAY_NS, a=9e9, b=0)

    fits_when_empty = ask(Evaluator(full), plan, pod(cpu="2"), samples=samples)
    too_large_for_each = ask(Evaluator(full), plan, pod(cpu="1000"), samples=samples)

    assert not fits_when_empty.scaleup_would_not_help()
    assert not too_large_for_each.scaleup_would_not_help()


@pytest.mark.parametrize(
    ("taint", "labels"),
    [("node-role.kubernetes.io/control-plane", {"pool": "a"}), (None, {"pool": "other"})],
)
def test_nodes_that_the_pod_can_never_use_do_not_ask_for_a_scaleup(
    taint: str | None, labels: dict[str, str]
) -> None:
    taints = [] if taint is None else [f"{taint}:NoSchedule"]
    nodes = [node("worker", labels={"pool": "a"}), node("control", labels=labels, taints=taints)]
    plan = plan_of(RX, "filter taint_toleration", "filter node_affinity", COOL)
    web = pod(node_selector={"pool": "a"})

    hot = ask(Evaluator(world(nodes)), plan, web, samples=rx(MONDAY_NS, worker=9e9, control=0))
    alone = ask(Evaluator(world(nodes[1:])), plan, web, samples=rx(MONDAY_NS, control=0))

    assert hot.scaleup_would_not_help()
    assert not alone.scaleup_would_not_help()


def test_a_node_that_is_not_ready_counts_as_a_kind_that_a_scaleup_could_add() -> None:
    taints = ["node.kubernetes.io/not-ready:NoSchedule"]
    evaluator = Evaluator(world([node("a"), node("b", taints=taints)]))
    plan = plan_of(RX, "filter taint_toleration", COOL)

    verdict = ask(evaluator, plan, pod(), samples=rx(MONDAY_NS, a=9e9, b=0))

    assert not verdict.scaleup_would_not_help()


def test_a_pod_on_a_node_that_is_gone_is_removed_from_an_overlay_and_restored() -> None:
    cache = world([node("a", cpu="2"), node("b", cpu="2")])
    for name in "ab":
        cache.assume(pod(f"on-{name}", cpu="2"), NodeName(name))
    cache.drop_node(NodeName("b"))
    evaluator, plan = Evaluator(cache), plan_of("filter node_resources_fit")
    overlay = evaluator.overlay()

    for name in "ab":
        overlay.remove_pod(pod(f"on-{name}").uid)
    without = ask(evaluator, plan, pod(cpu="2"), overlay=overlay).selected
    for name in "ab":
        overlay.restore_pod(pod(f"on-{name}").uid)
    restored = ask(evaluator, plan, pod(cpu="2"), overlay=overlay).selected

    assert (without, restored) == ("a", None)


# ── admission ────────────────────────────────────────────────────────────────────────────────────────────


def test_an_unsupported_feature_is_named_in_the_refusal() -> None:
    claim = {"resourceClaims": [{"name": "gpu"}]}

    verdict = ask(Evaluator(world([node("a")])), plan_of("include kube_default"), pod(spec=claim))

    assert verdict.pod_rejection is not None
    assert "spec.resourceClaims" in verdict.pod_rejection
    assert verdict.selected is None


def test_a_placed_pods_anti_affinity_holds_until_that_pod_is_deleted() -> None:
    term = {
        "labelSelector": {"matchLabels": {"app": "web"}},
        "topologyKey": "kubernetes.io/hostname",
    }
    spec = {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    holder = pod("holder", spec=spec)
    cache = world([node("a")], [placed(holder, "a")])
    evaluator, plan = Evaluator(cache), plan_of("include kube_default")

    while_there = ask(evaluator, plan, pod("web", labels={"app": "web"}))
    another = ask(evaluator, plan, pod("db", labels={"app": "db"}))
    cache.drop_pod(holder.uid)
    afterwards = ask(evaluator, plan, pod("web", labels={"app": "web"}))

    assert while_there.reason_counts() == {"node(s) didn't satisfy existing pods anti-affinity rules": 1}
    assert ClusterEvent.ASSIGNED_POD_DELETE in while_there.requeue_events()
    assert another.selected == "a"
    assert afterwards.selected == "a"


def test_an_input_refuses_or_warns_with_the_policys_message() -> None:
    plan = plan_of(
        'input size: int = pod.labels["size"] default 1 invalid reject "size must be a number"',
        'input rank_of: int = pod.labels["rank"] default 1 invalid default',
        "filter some require size + rank_of > 0",
    )
    space = namespace()

    assert plan.pre_enqueue_message(pod(labels={"size": "eight"}), space) == "size must be a number"
    assert plan.pre_enqueue_message(pod(labels={"size": "8", "rank": "first"}), space) is None
    assert plan.warnings(pod(labels={"rank": "first"}), space) == (
        "input rank_of: `first` is not a valid int; treated as absent",
    )
    assert plan.warnings(pod(labels={"rank": "1"}), space) == ()


# ── how long a verdict lasts ───────────────────────────────────────────────────────────────────────────────────────


def test_a_verdict_without_clock_and_samples_does_not_expire() -> None:
    verdict = ask(Evaluator(world([node("a")])), plan_of("include kube_default"), pod())

    assert verdict.valid_until_ns is None


def test_a_verdict_that_read_samples_lasts_until_the_first_goes_stale() -> None:
    evaluator, plan = (
        Evaluator(world([node("a")])),
        plan_of(RX, "filter cool require rx < 1Gbps missing reject"),
    )
    taken = rx(MONDAY_NS - 30 * SECOND_NS, a=0.0)

    verdict = ask(evaluator, plan, pod(), samples=taken)
    assert verdict.valid_until_ns is not None
    just_before = ask(evaluator, plan, pod(), samples=taken, now_ns=verdict.valid_until_ns - 1)
    then = ask(evaluator, plan, pod(), samples=taken, now_ns=verdict.valid_until_ns)

    assert (verdict.selected, just_before.selected, then.selected) == ("a", "a", None)
    assert then.reason_counts() == {"node(s) had no sample of rx": 1}


@pytest.mark.parametrize(
    "rule",
    [
        "filter patient when pod.waited <= 30m reject node.pods >= 0",
        "filter fresh require now - node.created > 120h",
        'filter hours require window("Mon-Fri 12:00-19:00", "UTC")',
    ],
)
def test_a_refusal_by_the_clock_ends_exactly_when_the_verdict_says(rule: str) -> None:
    evaluator, plan = Evaluator(world([node("a")])), plan_of(rule)
    now_ns = MONDAY_NS - 7 * SECOND_NS
    verdict = ask(evaluator, plan, pod(), now_ns=now_ns)
    assert verdict.selected is None

    while verdict.selected is None:
        assert verdict.valid_until_ns is not None and verdict.valid_until_ns > now_ns
        assert ask(evaluator, plan, pod(), now_ns=verdict.valid_until_ns - 1).selected is None
        now_ns = verdict.valid_until_ns
        verdict = ask(evaluator, plan, pod(), now_ns=now_ns)

    assert now_ns < MONDAY_NS + 24 * 3600 * SECOND_NS
    assert ask(evaluator, plan, pod(), now_ns=now_ns - 1).selected is None


# ── requeue events ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_only_rules_that_refused_a_node_contribute_requeue_events() -> None:
    evaluator = Evaluator(world([node("a", cpu="1", labels={"rack": "r1"})]))
    plan = plan_of("include kube_default", 'filter rack reject node.labels["rack"] == "r17"')

    verdict = ask(evaluator, plan, pod(cpu="2"))

    assert ClusterEvent.ASSIGNED_POD_DELETE in verdict.requeue_events()
    assert ClusterEvent.NODE_ADD in verdict.requeue_events()
    assert ClusterEvent.NODE_LABEL not in verdict.requeue_events()
    assert ClusterEvent.NODE_TAINT not in verdict.requeue_events()


# ── order and gangs ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_missing_key_comes_last_in_both_directions() -> None:
    space = namespace()
    for direction, expected in (("", ["a", "b", "none"]), (" desc", ["b", "a", "none"])):
        plan = plan_of(
            'input team: string = pod.labels["team"] optional',
            f"queue by team{direction}",
            "filter node_ports",
        )
        pods = [pod("none"), pod("b", labels={"team": "y"}), pod("a", labels={"team": "x"})]

        ordered = sorted(pods, key=lambda waiting: plan.order_key(waiting, space, FACTS, MONDAY_NS)[0])

        assert [waiting.name for waiting in ordered] == expected


def test_an_order_that_reads_the_clock_says_when_it_flips() -> None:
    plan = plan_of("queue by pod.waited > 30m desc, pod.queued", "filter node_ports")
    at_ns = MONDAY_NS + 60 * SECOND_NS

    before, flips_ns = plan.order_key(pod(), None, FACTS, at_ns)
    assert flips_ns is not None
    same, _ = plan.order_key(pod(), None, FACTS, flips_ns - 1)
    then, never = plan.order_key(pod(), None, FACTS, flips_ns + 1)

    assert before == same
    assert then < before
    assert never is None
    assert abs(flips_ns - (MONDAY_NS + 1800 * SECOND_NS)) <= 1


# ── the read set ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_pods_that_differ_only_in_fields_not_read_share_an_evaluation() -> None:
    plan, space = plan_of("include kube_default"), namespace()
    first, second = pod("one", cpu="1", labels={"x": "1"}), pod("other", cpu="1", labels={"x": "2"})

    assert plan.read_key(first, space) == plan.read_key(second, space)
    assert plan.read_key(first, space) != plan.read_key(pod("one", cpu="2"), space)


def test_a_gang_trial_leaves_the_cluster_as_it_was() -> None:
    cache = world([node("a", cpu="1"), node("b", cpu="1")])
    evaluator, plan = Evaluator(cache), plan_of("include kube_default")
    members = [pod(f"m{index}", cpu="600m") for index in range(3)]
    overlay = evaluator.overlay()

    chosen = []
    for member in members:
        verdict = evaluator.evaluate(plan, member, now_ns=MONDAY_NS, facts=FACTS, samples={}, overlay=overlay)
        chosen.append(verdict.selected)
        if verdict.selected is not None:
            overlay.add_pod(member, verdict.selected)

    assert sorted(name for name in chosen if name) == ["a", "b"]
    assert chosen[2] is None
    assert ask(evaluator, plan, members[2]).feasible_count == 2
