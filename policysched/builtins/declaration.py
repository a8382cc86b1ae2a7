"""What a built-in declares of itself: the third of it that the language, lint, the queue and the docs need.

A built-in is three modules of one name: its declaration in `builtins.registry`, its kernel in `builtins.kernels` and its
plain meaning in `tests.reference.builtins`. A house test holds the three sets equal.
"""

from dataclasses import dataclass
from typing import Literal

from policysched.lang.ir.rules import BuiltinParamValue
from policysched.model.cluster_events import ClusterEvent


@dataclass(frozen=True, slots=True)
class BuiltinParameter:
    """`{ strategy = most_allocated }`: a choice of words, an int in a range, a map from string to int, points
    (`shape = {"0" = 0, "100" = 10}`, utilisation percent to score), or constraints: one of the words, or a map from
    topology key to maxSkew. `requeue_events`: events that can turn a no into a yes where the parameter is not its default."""

    name: str
    kind: Literal["choice", "int", "weights", "shape", "constraints", "names"]
    default: BuiltinParamValue
    choices: tuple[str, ...] = ()
    low: int = 0
    high: int = 100
    doc: str = ""
    requeue_events: frozenset[ClusterEvent] = frozenset()


@dataclass(frozen=True, slots=True)
class BuiltinDeclaration:
    """`name` is the plugin's name in snake case, `plugin` as kube-scheduler spells it.

    `pod_reads` and `node_reads` name fields of `model.pods.Pod` and `model.nodes.Node` (or `node.usage`, the running totals,
    `cluster`, facts over all nodes such as how many have an image, or `volumes`, what there is of volumes and claims): pods that agree on the former share an
    evaluation, and only changes of the latter can change it. `selected_labels` among the former are those of the pod's
    labels that placed pods' terms ask about, `siblings` the pods that its Services and its controller select.
    `parameters` are those of the score, `filter_parameters` those of the filter. `filter_requeue_events` are the events that can turn its no into a yes. `reasons`
    are its words; `{resource}` stands for a resource name. `scaleup` False: a new, empty node of the same kind would
    not help. `cost_per_node` is roughly how many things its plain meaning looks at on a node, as `show` counts.
    `default_weight` None: it does not score.
    """

    name: str
    plugin: str
    summary: str
    filters: bool
    scores: bool
    parameters: tuple[BuiltinParameter, ...]
    pod_reads: tuple[str, ...]
    node_reads: tuple[str, ...]
    filter_requeue_events: frozenset[ClusterEvent]
    reasons: tuple[str, ...]
    default_weight: int | None
    scaleup: bool
    cost_per_node: int
    source: str  # where the semantics come from, for the docs
    filter_parameters: tuple[BuiltinParameter, ...] = ()
