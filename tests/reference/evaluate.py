"""Evaluates a policy for one pod: rejections by node, scores of the candidates, and the selected
node."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b

from policysched.cluster.cache import ClusterCache
from policysched.cluster.devices.availability import AvailableDevices
from policysched.cluster.metric_samples import Samples
from policysched.cluster.volumes.availability import AvailableVolumes
from policysched.lang.ir.expr import Attr, Expr, Stage
from policysched.lang.ir.expr_analysis import stage_of, walk
from policysched.lang.ir.program import (
    Program,
    handles_extended_resources,
    handles_resource_claims,
    handles_volume_claims,
    rules_for,
)
from policysched.lang.ir.rules import BuiltinFilter, BuiltinScore, FilterRule, RuleSet, ScoreRule
from policysched.lang.ir.verdict import NodeRuleScore, PlacementExplanation
from policysched.model.identifiers import NodeName
from policysched.model.messages import (
    NO_DEVICE_FILTER_MESSAGE,
    NO_POD_GROUPS_MESSAGE,
    NO_VOLUME_FILTER_MESSAGE,
    OUTAGE_RULE,
    metric_outage_message,
    unsupported_message,
)
from policysched.model.pods import Pod, QueuedPodInfo
from tests.reference.builtin_interface import ClusterFacts, NodeInfo
from tests.reference.context import ExpressionContext, copy_of_usage, namespace_of, pod_context
from tests.reference.expressions import holds
from tests.reference.filters import attempt_error, prefilter_rejection, rejections
from tests.reference.inputs import InputRejection, read_input
from tests.reference.metrics import metric_is_missing, metrics_read
from tests.reference.scores import score_cells


def evaluate(
    program: Program,
    pod: Pod,
    cache: ClusterCache,
    *,
    now_ns: int,
    facts: QueuedPodInfo,
    samples: Samples | None = None,
    nominated_pods: Iterable[tuple[Pod, NodeName]] = (),
) -> PlacementExplanation:
    """Evaluate the pod on all nodes. `reserved`: pods nominated to nodes; a node must pass the
    filters with and without them."""
    return evaluate_among(
        program, pod, cache, None, now_ns=now_ns, facts=facts, samples=samples, nominated_pods=nominated_pods
    )


def evaluate_among(
    program: Program,
    pod: Pod,
    cache: ClusterCache,
    among: Collection[NodeName] | None,
    *,
    now_ns: int,
    facts: QueuedPodInfo,
    samples: Samples | None = None,
    nominated_pods: Iterable[tuple[Pod, NodeName]] = (),
) -> PlacementExplanation:
    """Evaluate the pod on a subset of the nodes (None: all). Pods on other nodes still count."""
    context = pod_context(
        program, pod, namespace_of(pod, cache), now_ns=now_ns, facts=facts, samples=samples or {}, cache=cache
    )
    rejection = pod_rejection(context)
    if rejection is not None:
        return PlacementExplanation(rejection, (), {}, {}, {}, None)

    facts_of_all = replace(
        cluster_facts(cache), allocates_devices=handles_extended_resources(program), now_ns=now_ns
    )
    active = rules_for(program, active_layers(context))
    rejection = prefilter_rejection(active, context._replace(cluster_facts=facts_of_all))
    if rejection is not None:
        rule_name, words = rejection
        return PlacementExplanation(words, (), {}, {}, {}, None, pod_rejected_by=rule_name)
    nodes = {
        name: context._replace(node=node, usage=cache.ledger.usage(name), cluster_facts=facts_of_all)
        for name, node in sorted(cache.nodes.items())
        if among is None or name in among
    }
    candidate_count, lacking = _metric_outages(program, active, nodes)
    if program.outage is not None and program.outage.action == "wait":
        lacking = _awaited_metrics(active, context, lacking)
        if lacking:
            words = metric_outage_message(lacking, candidate_count)
            return PlacementExplanation(words, (), {}, {}, {}, None, pod_rejected_by=OUTAGE_RULE)
    rules = _rules_without_metrics(active, lacking)
    with_them = {
        name: _with_reserved(nodes[name], pods)
        for name, pods in _pods_by_node(nominated_pods).items()
        if name in nodes
    }
    rejected_without_them = {name: rejections(rules.filters, at) for name, at in nodes.items()}
    rejected_with_them = {name: rejections(rules.filters, at) for name, at in with_them.items()}
    rejected = {
        name: node_rejections
        for name, without_them in rejected_without_them.items()
        if (node_rejections := rejected_with_them.get(name) or without_them)
    }
    errors = [
        error
        for name, at in nodes.items()
        if (error := attempt_error(rules.filters, at, rejected_without_them[name])) is not None
    ]
    if errors:
        rule_name, words = min(errors)
        return PlacementExplanation(
            words, (), {}, {}, {}, None, pod_rejected_by=rule_name, is_filter_error=True
        )
    candidates = {name: at for name, at in nodes.items() if name not in rejected}
    scores = _scores(rules, candidates, facts_of_all)
    totals = {name: sum(column[name].weighted for column in scores.values()) for name in candidates}
    return PlacementExplanation(
        pod_rejection=None,
        feasible=tuple(candidates),
        rejections=dict(rejected.items()),
        scores=scores,
        totals=dict(totals.items()),
        selected=select_node(totals, pod),
    )


def pod_rejection(context: ExpressionContext) -> str | None:
    """Why the pod is rejected on all nodes, by the first of: its inputs and those of its namespace,
    in the order of declaration; features that no built-in covers; claims that no rule of the policy
    handles."""
    for declared in context.program.inputs.values():
        if declared.owner != "node":
            outcome = read_input(declared, context)
            if isinstance(outcome, InputRejection):
                return outcome.text
    if context.pod.uncovered:
        return unsupported_message(context.pod.uncovered)
    if context.pod.group_references:
        gang = context.program.gang
        reads_groups = gang is not None and any(
            isinstance(part, Attr) and part.path[:1] == ("group",) for part in walk(gang.key)
        )
        if reads_groups and context.pod.group_problem is not None:
            return context.pod.group_problem
        if not reads_groups and context.pod.group_references[0].api == "scheduling.k8s.io":
            return NO_POD_GROUPS_MESSAGE
    if context.pod.claims and not handles_volume_claims(context.program):
        return NO_VOLUME_FILTER_MESSAGE
    if context.pod.device_claims and not handles_resource_claims(context.program):
        return NO_DEVICE_FILTER_MESSAGE
    return None


def _pods_by_node(reserved: Iterable[tuple[Pod, NodeName]]) -> dict[NodeName, list[Pod]]:
    by_node: dict[NodeName, list[Pod]] = {}
    for pod, node in reserved:
        by_node.setdefault(node, []).append(pod)
    return by_node


def _with_reserved(at: ExpressionContext, pods: Iterable[Pod]) -> ExpressionContext:
    """The context with these pods placed on its node."""
    node, cluster = at.node, at.cluster_facts
    assert node is not None and at.usage is not None and cluster is not None, "reserved pods need a node"
    usage = copy_of_usage(at.usage)
    for reserved_pod in pods:
        usage.add(reserved_pod)
    more = [(reserved_pod, node) for reserved_pod in pods if reserved_pod.pod_affinity]
    cluster_after = replace(
        cluster,
        nodes={**cluster.nodes, node.name: NodeInfo(node, usage)},
        pods_with_affinity=[*cluster.pods_with_affinity, *more],
        used_claims=cluster.used_claims | {use.claim for reserved_pod in pods for use in reserved_pod.claims},
    )
    return at._replace(usage=usage, cluster_facts=cluster_after)


def active_layers(context: ExpressionContext) -> tuple[int, ...]:
    """The layers, by index, whose condition is True for the pod."""
    layers = context.program.layers
    return tuple(index for index, layer in enumerate(layers) if holds(layer.condition, context))


def cluster_facts(cache: ClusterCache) -> ClusterFacts:
    nodes_with_image: dict[str, int] = {}
    for node in cache.nodes.values():
        for image in node.images:
            nodes_with_image[image] = nodes_with_image.get(image, 0) + 1
    nodes = {name: NodeInfo(node, cache.ledger.usage(name)) for name, node in cache.nodes.items()}
    with_affinity = [
        (pod, node_info.node)
        for node_info in nodes.values()
        for pod in node_info.usage.pods.values()
        if pod.pod_affinity
    ]
    return ClusterFacts(
        node_count=len(nodes),
        nodes_with_image=nodes_with_image,
        nodes=nodes,
        namespaces=cache.namespaces,
        pods_with_affinity=with_affinity,
        volumes=AvailableVolumes(cache.volumes),
        devices=AvailableDevices(cache.devices, uncached=True),
        used_claims=frozenset(
            use.claim
            for name in cache.ledger.nodes
            for pod in cache.ledger.usage(name).pods.values()
            for use in pod.claims
        ),
        selector_owners=cache.selector_owners.by_key.values(),
    )


def _metric_outages(
    program: Program, rules: RuleSet, nodes: Mapping[NodeName, ExpressionContext]
) -> tuple[int, dict[str, int]]:
    """The number of candidates, and for each metric in outage the number of candidates that lack
    it. Candidates are here the nodes that pass every filter without metrics."""
    if program.outage is None:
        return 0, {}
    steady = [rule for rule in rules.filters if not metrics_read(rule_expressions(rule))]
    candidates = [at for at in nodes.values() if not rejections(steady, at)]
    lacking = {
        name: sum(metric_is_missing(name, at) for at in candidates) for name in sorted(program.metrics)
    }
    above = program.outage.missing_ratio_max * len(candidates)
    return len(candidates), {name: count for name, count in lacking.items() if count > above}


def _awaited_metrics(
    rules: RuleSet, context: ExpressionContext, lacking: Mapping[str, int]
) -> dict[str, int]:
    """The metrics in outage that rules for this pod read. A rule whose `when` depends on the node
    counts."""
    applying = [
        rule
        for rule in (*rules.filters, *rules.scores)
        if rule.when is None or Stage.NODE in stage_of(rule.when) or holds(rule.when, context)
    ]
    read = {name for rule in applying for name in metrics_read(rule_expressions(rule))}
    return {name: count for name, count in lacking.items() if name in read}


def _rules_without_metrics(rules: RuleSet, out: Collection[str]) -> RuleSet:
    """The rules that read none of these metrics."""
    if not out:
        return rules
    out = set(out)
    return RuleSet(
        filters=tuple(
            rule for rule in rules.filters if not out.intersection(metrics_read(rule_expressions(rule)))
        ),
        scores=tuple(
            rule for rule in rules.scores if not out.intersection(metrics_read(rule_expressions(rule)))
        ),
    )


def rule_expressions(rule: FilterRule | BuiltinFilter | ScoreRule | BuiltinScore) -> Sequence[Expr | None]:
    """The expressions that decide the rule, without those of its message."""
    match rule:
        case FilterRule():
            return (rule.when, rule.condition)
        case ScoreRule():
            return (rule.when, rule.value)
        case BuiltinFilter() | BuiltinScore():
            return (rule.when,)


def _scores(
    rules: RuleSet, candidates: Mapping[NodeName, ExpressionContext], facts: ClusterFacts
) -> dict[str, Mapping[str, NodeRuleScore]]:
    columns = {rule.name: score_cells(rule, candidates, facts) for rule in rules.scores}
    return {name: dict(column.items()) for name, column in columns.items() if column is not None}


def select_node(totals: Mapping[NodeName, int], pod: Pod) -> NodeName | None:
    """The node with the highest total. Ties are broken by the highest `node_hash XOR pod_hash`,
    which spreads pods over equal nodes and is the same in every replay."""
    if not totals:
        return None
    return max(totals, key=lambda name: (totals[name], _hash(name) ^ _hash(pod.uid)))


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")
