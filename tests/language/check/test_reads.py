"""What a policy reads, what would wake a pod that it refused, and what it costs."""

from policysched.lang.ir.cost import RuleCost, rule_cost
from policysched.lang.ir.expr import Stage
from policysched.lang.ir.reads import program_reads, rule_reads, stage_text
from policysched.model.cluster_events import ClusterEvent
from tests.language.check.checking import program

METRIC = 'metric m: ratio { query = "q" unit = "1" join = instance every = 15s stale = 90s }\n'


def test_a_policy_reads_just_the_labels_that_it_names() -> None:
    reads = program_reads(
        program(
            'input app: string = pod.labels["app"] default "none"',
            'input unread: string = pod.labels["other"] default "none"',
            'filter f when app == "web" require has node.labels["disk"] and node.free.cpu > pod.requests.cpu',
            'layer l when namespace.labels["tier"] else "" == "gold" { drop image_locality }'.replace(
                'namespace.labels["tier"] else ""', '(namespace.labels["tier"] else "")'
            ),
            head="policy test version 1\nscore image_locality weight 1\n",
        )
    )

    assert reads.pod == {("labels", "app"), ("requests", "cpu")}
    assert reads.node == {("labels", "disk"), ("free", "cpu")}
    assert reads.namespace == {("labels", "tier")}
    assert reads.pod_fields == {"images", "image_volumes"}
    assert not reads.time and not reads.placed_pods


def test_an_input_that_may_refuse_is_read_even_if_no_rule_uses_it() -> None:
    reads = program_reads(
        program('input size: int = pod.labels["size"] required "how large?" invalid default')
    )

    assert ("labels", "size") in reads.pod


def test_reads_of_a_message_are_included_without_requeue_events() -> None:
    checked = program('filter f require node.ready says "for {pod.name}"')
    rule = checked.rules.filters[-1]

    assert ("name",) in program_reads(checked).pod
    assert rule_reads(rule, checked.inputs).pod == frozenset()


def test_the_requeue_events_of_a_rejection_follow_from_the_reads_of_the_rule() -> None:
    checked = program(
        METRIC
        + "filter f require m < 1 and count(pods on node) < 3 and now - node.created > 5m missing reject"
    )

    reads = rule_reads(checked.rules.filters[-1], checked.inputs)

    assert reads.metrics == {"m"} and reads.placed_pods and reads.time
    assert reads.requeue_events == {
        ClusterEvent.SAMPLES,
        ClusterEvent.TIME,
        ClusterEvent.NODE_ADD,
        ClusterEvent.ASSIGNED_POD_ADD,
        ClusterEvent.ASSIGNED_POD_UPDATE,
        ClusterEvent.ASSIGNED_POD_DELETE,
    }


def test_reads_of_an_amended_rule_are_included() -> None:
    checked = program(
        "filter f require node.ready",
        "layer l when pod.priority > 1 { amend f require node.pods < pod.attempts }",
    )

    assert {("priority",), ("attempts",)} <= program_reads(checked).pod
    assert ("pods",) in program_reads(checked).node


def test_a_rule_that_reads_only_the_pod_costs_once_per_pod() -> None:
    checked = program(
        "filter f when pod.priority > 1 and pod.requests.cpu > 1 require node.free.cpu > pod.requests.cpu * 2"
    )

    assert rule_cost(checked.rules.filters[-1]) == RuleCost(per_pod=4, per_node=1)


def test_stages_have_names() -> None:
    assert stage_text(Stage.POD | Stage.NODE | Stage.TIME) == "pod and node, time"
    assert stage_text(Stage.TIME) == "time"
    assert stage_text(Stage.CONSTANT) == "constant"
