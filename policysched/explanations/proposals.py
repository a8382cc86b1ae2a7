"""What would make a pending pod fit: changes of the pod, of another pod or of the nodes.

Each proposal is evaluated before it is returned: with the change, and nothing else changed, the policy selects a node. A
request is lowered only as far as needed: one step more and no node fits. Extenders and quotas are not part of it.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from policysched.builtins.tolerations import TolerationIndex
from policysched.cluster.cache import ClusterCache
from policysched.cluster.metric_samples import Samples
from policysched.evaluate import Evaluator, Overlay, Plan
from policysched.evaluate.plan.lowering import rule_expressions
from policysched.lang.ir import expr as e
from policysched.lang.ir.attributes import resource_type
from policysched.lang.ir.expr_analysis import stage_of
from policysched.lang.ir.program import Program, rules_for
from policysched.lang.ir.rules import BuiltinFilter, RuleSet
from policysched.lang.ir.verdict import NodeRejection, PlacementExplanation
from policysched.lang.types.units import format_value
from policysched.model.identifiers import NodeName
from policysched.model.nodes import Node
from policysched.model.pods import Pod, QueuedPodInfo, Toleration
from policysched.scheduler.policy_permissions import MIRROR_POD_ANNOTATION

Search = Iterator["Proposal | None"]
"""Yields None before each evaluation, in a pause, and at last the proposal, if there is one."""
ProposalKind = Literal["minimum", "request", "toleration", "uncordon", "node selector", "move", "node"]

_NODES_TRIED_MAX = 8
_PODS_TRIED_MAX = 8
_NODE_SELECTORS_TRIED_MAX = 16
"""A pod can have thousands, and each is an evaluation."""
_STEPS = {"memory": 2**20, "ephemeral-storage": 2**20}
"""Requests are lowered in steps that people write: 1Mi, and 1 (of cpu: 1m) of everything else."""
UNSCHEDULABLE_TAINT = "node.kubernetes.io/unschedulable"
_NODE_KIND_LABELS = ("node.kubernetes.io/instance-type", "kubernetes.io/arch", "kubernetes.io/os")
_NODE_OWN_LABELS = frozenset({"kubernetes.io/hostname", "topology.kubernetes.io/zone"})


@dataclass(frozen=True, slots=True)
class Proposal:
    """One change and the node that the pod would then go to; None where its gang then starts without it. `pod` is the
    changed pod, or None where the pod stays as it is: then `moved` is the pod that has to leave its node and the node that
    takes it, `like` the node of which `count` more are needed, or `uncordoned` a node (of a gang alone)."""

    kind: ProposalKind
    text: str
    node: NodeName | None
    pod: Pod | None = None
    moved: tuple[Pod, NodeName] | None = None
    like: NodeName | None = None
    count: int = 1
    uncordoned: NodeName | None = None

    def record(self) -> dict[str, str | None]:
        return {"kind": self.kind, "text": self.text, "node": self.node}


@dataclass(frozen=True, slots=True)
class Situation:
    """One pod that fits nowhere, and what its evaluation reads. `base` has the hypothetical removals that apply to every
    evaluation (None: none), such as that of the pod itself where it is placed. `plan_of` gives the plan of another pod's
    policy, None if it is not known here."""

    cache: ClusterCache
    evaluator: Evaluator
    plan: Plan
    pod: Pod
    facts: QueuedPodInfo
    samples: Samples
    now_ns: int
    explanation: PlacementExplanation
    plan_of: Callable[[Pod], tuple[Plan, Samples] | None]
    base: Callable[[], Overlay] | None = None

    def selected(self, pod: Pod, overlay: Overlay | None = None) -> NodeName | None:
        """The node that the policy selects for the pod on the (hypothetical) cluster."""
        if overlay is None and self.base is not None:
            overlay = self.base()
        verdict = self.evaluator.evaluate(
            self.plan, pod, now_ns=self.now_ns, facts=self.facts, samples=self.samples, overlay=overlay
        )
        return verdict.selected

    def fits_on(self, node: NodeName, overlay: Overlay) -> bool:
        verdict = self.evaluator.evaluate_nodes(
            self.plan,
            self.pod,
            [node],
            now_ns=self.now_ns,
            facts=self.facts,
            samples=self.samples,
            overlay=overlay,
        )
        return node in verdict.totals

    def new_overlay(self) -> Overlay:
        return self.evaluator.overlay() if self.base is None else self.base()


def proposals(situation: Situation) -> Iterator[Proposal | None]:
    """At most one of each kind, those that change the pod first. Yields None between steps of an evaluation or two, so that a
    caller that must not take long can pause there; the cluster may change in a pause."""
    if situation.explanation.pod_rejection is not None:
        return
    for find in (_lower_request, _tolerate, _drop_node_selector, move_a_pod, _add_a_node):
        yield from find(situation)


def _builtins(program: Program) -> Mapping[str, str]:
    """The built-in behind each filter, by the filter's name."""
    names = {rule.name: rule.builtin for rule in program.rules.filters if isinstance(rule, BuiltinFilter)}
    for rules in _layered_rules(program):
        names |= {rule.name: rule.builtin for rule in rules.filters if isinstance(rule, BuiltinFilter)}
    return names


def _rejected_only_by(
    situation: Situation, builtins: frozenset[str]
) -> list[tuple[NodeName, tuple[NodeRejection, ...]]]:
    """The nodes that only filters of these built-ins reject."""
    behind = _builtins(situation.plan.program)
    return [
        (NodeName(node), rejections)
        for node, rejections in sorted(situation.explanation.rejections.items())
        if node in situation.cache.nodes and all(behind.get(each.rule) in builtins for each in rejections)
    ]


# ── changes of the pod ─────────────────────────────────────────────────────────────────────────────────────────────


def _lower_request(situation: Situation) -> Search:
    """Requests that are as high as they can be: the policy finds a node for them, and none with a step more of any."""
    pod, best = situation.pod, None
    for _, rejections in _rejected_only_by(situation, frozenset({"node_resources_fit"})):
        gap = rejections[0].gap
        if len(rejections) > 1 or gap is None or "pods" in gap.shortfalls:
            continue
        lowered = {
            resource: _round_down(resource, pod.requests[resource] - short)
            for resource, short in gap.shortfalls.items()
        }
        if all(amount > 0 for amount in lowered.values()) and (best is None or gap.ratio < best[0]):
            best = gap.ratio, lowered
    if best is None:
        return
    lowered = best[1]
    while (higher := (yield from _higher_request(situation, lowered))) is not None:
        lowered = higher
    changed = with_requests(pod, lowered)
    yield None
    node = situation.selected(changed)
    if node is None:
        return
    parts = [
        f"{format_value(amount, resource_type(resource))} {_resource_name(resource)} instead of "
        f"{format_value(pod.requests[resource], resource_type(resource))}"
        for resource, amount in lowered.items()
    ]
    yield Proposal("request", f"request {' and '.join(parts)}", node, pod=changed)


def _higher_request(
    situation: Situation, lowered: Mapping[str, int]
) -> Generator[None, None, dict[str, int] | None]:
    """The same with a step more of one resource, where that still fits; as many steps as that node allows."""
    for resource, amount in lowered.items():
        requested = situation.pod.requests[resource]
        larger = min(amount + _STEPS.get(resource, 1), requested)
        if larger == amount:
            continue
        raised = {**lowered, resource: larger}
        yield
        node = situation.selected(with_requests(situation.pod, raised))
        if node is not None:
            largest = yield from _largest_that_fits(situation, lowered, resource, larger, requested)
            return {**lowered, resource: largest}
    return None


def _largest_that_fits(
    situation: Situation, lowered: Mapping[str, int], resource: str, fits: int, requested: int
) -> Generator[None, None, int]:
    """By bisection: a node that fits more of a resource fits less of it."""
    step = _STEPS.get(resource, 1)
    low, high = fits // step, requested // step
    while low < high:
        middle = (low + high + 1) // 2
        tried = {**lowered, resource: middle * step}
        yield
        if situation.selected(with_requests(situation.pod, tried)) is None:
            high = middle - 1
        else:
            low = middle
    return max(low * step, fits)


def with_requests(pod: Pod, lowered: Mapping[str, int]) -> Pod:
    """The pod with these amounts; what scores count of it is lowered by as much."""
    cpu_less = pod.requests.get("cpu", 0) - lowered.get("cpu", pod.requests.get("cpu", 0))
    memory_less = pod.requests.get("memory", 0) - lowered.get("memory", pod.requests.get("memory", 0))

    def less(amounts: tuple[int, int]) -> tuple[int, int]:
        return max(amounts[0] - cpu_less, 0), max(amounts[1] - memory_less, 0)

    return replace(
        pod,
        requests={**pod.requests, **lowered},
        scoring_requests=less(pod.scoring_requests),
        scoring_requests_placed=less(pod.scoring_requests_placed),
    )


def request_step(resource: str) -> int:
    """By how much a request is raised and lowered."""
    return _STEPS.get(resource, 1)


def _round_down(resource: str, amount: int) -> int:
    step = _STEPS.get(resource, 1)
    return amount // step * step


def _resource_name(resource: str) -> str:
    return "of memory" if resource == "memory" else resource


def _tolerate(situation: Situation) -> Search:
    """Tolerations for the taints of the node with the fewest, or the end of a cordon."""
    tolerated = TolerationIndex(situation.pod.tolerations)
    candidates = []
    for name, _ in _rejected_only_by(situation, frozenset({"taint_toleration", "node_unschedulable"})):
        node = situation.cache.nodes[name]
        taints = [
            taint
            for taint in node.taints
            if taint.effect != "PreferNoSchedule" and not tolerated.tolerates(taint)
        ]
        is_cordoned = node.unschedulable or any(taint.key == UNSCHEDULABLE_TAINT for taint in taints)
        own_taints = [taint for taint in taints if taint.key != UNSCHEDULABLE_TAINT]
        if not (is_cordoned and own_taints):  # one kind of change at a time
            candidates.append((len(own_taints), name, own_taints))
    for _, _, taints in sorted(candidates, key=lambda candidate: candidate[:2])[:_NODES_TRIED_MAX]:
        added = [Toleration(taint.key, "Equal", taint.value, taint.effect) for taint in taints]
        if not taints:
            added = [Toleration(UNSCHEDULABLE_TAINT, "Exists", "", "NoSchedule")]
        changed = replace(situation.pod, tolerations=(*situation.pod.tolerations, *added))
        yield None
        selected = situation.selected(changed)
        if selected is None:
            continue
        if not taints:
            yield Proposal("uncordon", f"uncordon {selected}", selected, pod=changed)
            return
        texts = [
            f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"
            for taint in taints
        ]
        yield Proposal("toleration", f"tolerate the taint {' and '.join(texts)}", selected, pod=changed)
        return


def _drop_node_selector(situation: Situation) -> Search:
    pod = situation.pod
    for key, value in sorted(pod.node_selector.items())[:_NODE_SELECTORS_TRIED_MAX]:
        node_selector = {name: text for name, text in pod.node_selector.items() if name != key}
        changed = replace(pod, node_selector=node_selector)
        yield None
        node = situation.selected(changed)
        if node is not None:
            yield Proposal("node selector", f"remove the node selector {key}={value}", node, pod=changed)
            return


# ── changes of the cluster ─────────────────────────────────────────────────────────────────────────────────────────


def move_a_pod(situation: Situation) -> Search:
    """One pod of a policy that runs here leaves the node for another one that its own policy selects."""
    nodes = [
        (max((rejection.gap.ratio if rejection.gap else 1.0) for rejection in rejections), node)
        for node, rejections in situation.explanation.rejections.items()
        if node in situation.cache.nodes and all(rejection.resolvable for rejection in rejections)
    ]
    for _, name in sorted(nodes)[:_NODES_TRIED_MAX]:
        node = NodeName(name)
        yield None
        if node not in situation.cache.nodes:
            continue
        movable = [
            pod
            for pod in situation.cache.ledger.usage(node).pods.values()
            if _may_move(pod) and pod.uid != situation.pod.uid and _frees_enough(situation, name, pod)
        ]
        movable.sort(key=lambda pod: (_size(pod), pod.full_name))
        for moved in movable[:_PODS_TRIED_MAX]:
            yield None
            if not _is_on(situation, moved, node):
                continue
            plan = situation.plan_of(moved)
            target = None if plan is None else _target_of_move(situation, moved, node, *plan)
            if (
                target is not None
                and (selected := _selected_after_move(situation, moved, target)) is not None
            ):
                text = f"move {moved.full_name} from {node} to {target}"
                yield Proposal("move", text, selected, moved=(moved, target))
                return


def _is_on(situation: Situation, pod: Pod, node: NodeName) -> bool:
    return node in situation.cache.nodes and pod.uid in situation.cache.ledger.usage(node).pods


def _selected_after_move(situation: Situation, moved: Pod, target: NodeName) -> NodeName | None:
    overlay = situation.new_overlay()
    overlay.remove_pod(moved.uid)
    overlay.add_pod(moved, target)
    return situation.selected(situation.pod, overlay)


def _target_of_move(
    situation: Situation, moved: Pod, node: NodeName, plan: Plan, samples: Samples
) -> NodeName | None:
    """Where the pod would go once ours has its place; None if ours does not fit there, or it fits nowhere else."""
    overlay = situation.new_overlay()
    overlay.remove_pod(moved.uid)
    if not situation.fits_on(node, overlay):
        return None
    overlay.add_pod(situation.pod, node)
    verdict = situation.evaluator.evaluate(
        plan,
        moved,
        now_ns=situation.now_ns,
        facts=QueuedPodInfo(situation.now_ns, 0),
        samples=samples,
        overlay=overlay,
    )
    return verdict.selected if verdict.selected != node else None


def _may_move(pod: Pod) -> bool:
    """Not a pod that belongs to its node, nor one whose volumes or devices tie it there, nor one that is not known whole."""
    tied = pod.claims or pod.device_claims or pod.terminating or pod.too_large
    return pod.owner_kind != "DaemonSet" and MIRROR_POD_ANNOTATION not in pod.annotations and not tied


def _frees_enough(situation: Situation, node: str, pod: Pod) -> bool:
    """Whether the pod requests what is short there, as far as that is known."""
    gaps = [rejection.gap for rejection in situation.explanation.rejections[node] if rejection.gap]
    return all(
        resource == "pods" or pod.requests.get(resource, 0) >= short
        for gap in gaps
        for resource, short in gap.shortfalls.items()
    )


def _size(pod: Pod) -> tuple[int, int]:
    return pod.requests.get("cpu", 0), pod.requests.get("memory", 0)


def _add_a_node(situation: Situation) -> Search:
    """A node like one of those that exist, without pods except those of DaemonSets; the smallest that helps.

    Such a node is evaluated as the existing one without its pods. That is the same only where rules look at one node at
    a time; otherwise (topology spread, pod affinity, counts over the cluster) nothing is proposed.
    """
    yield None
    if not _looks_at_one_node(situation):
        return
    for node in node_kinds(situation.cache.nodes.values())[:_NODES_TRIED_MAX]:
        yield None
        if node.name not in situation.cache.nodes:
            continue
        overlay = situation.new_overlay()
        for pod in list(situation.cache.ledger.usage(node.name).pods.values()):
            if pod.owner_kind != "DaemonSet" and pod.uid != situation.pod.uid:
                overlay.remove_pod(pod.uid)
        if situation.fits_on(node.name, overlay):
            yield Proposal(
                "node", f"add a node like {node.name} ({describe_node(node)})", node.name, like=node.name
            )
            return


def node_kinds(nodes: Iterable[Node]) -> list[Node]:
    """A node of each kind that is ready and not cordoned, the smallest first."""
    kinds: dict[object, Node] = {}
    for node in sorted(nodes, key=lambda node: node.name):
        if not node.unschedulable and node.ready:
            kinds.setdefault(_kind_of(node), node)
    return sorted(kinds.values(), key=lambda node: (_node_size(node), node.name))


def _looks_at_one_node(situation: Situation) -> bool:
    stages = e.Stage.CONSTANT
    for rules in (situation.plan.program.rules, *_layered_rules(situation.plan.program)):
        for rule in rules.filters:
            for expr in rule_expressions(rule):
                stages |= stage_of(expr) if expr is not None else e.Stage.CONSTANT
    if stages & (e.Stage.CLUSTER_PODS | e.Stage.NAMESPACE_SHARES):
        return False
    dry_run = situation.evaluator.dry_run(
        situation.plan,
        situation.pod,
        now_ns=situation.now_ns,
        facts=situation.facts,
        samples=situation.samples,
        overlay=situation.new_overlay(),
    )
    return dry_run.node_local


def _layered_rules(program: Program) -> Iterator[RuleSet]:
    return (rules_for(program, (index,)) for index in range(len(program.layers)))


def _kind_of(node: Node) -> object:
    labels = {key: value for key, value in node.labels.items() if key not in _NODE_OWN_LABELS}
    return frozenset(labels.items()), frozenset(node.allocatable.items()), node.taints


def _node_size(node: Node) -> tuple[int, int]:
    return node.allocatable.get("cpu", 0), node.allocatable.get("memory", 0)


def describe_node(node: Node) -> str:
    amounts = [
        f"{format_value(node.allocatable[resource], resource_type(resource))} {_resource_name(resource)}"
        for resource in ("cpu", "memory", *sorted(name for name in node.allocatable if "/" in name))
        if node.allocatable.get(resource)
    ]
    kind = node.labels.get(_NODE_KIND_LABELS[0])
    return ", ".join([*([kind] if kind else []), *amounts])
