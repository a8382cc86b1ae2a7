"""The declaration of a built-in, read by the checker, lint, the queue and the docs.

A built-in has a declaration and a kernel in its folder, and a reference implementation in
`tests/reference/builtins`. `tests/house/test_builtins.py` checks that all three exist.
"""

from dataclasses import dataclass
from typing import Literal

from policysched.lang.ir.rules import BuiltinParamValue
from policysched.model.cluster_events import ClusterEvent


@dataclass(frozen=True, slots=True)
class BuiltinParameter:
    """One parameter (`{ strategy = most_allocated }`), by `kind`: a choice, an int in a range,
    weights (a map from string to int), a shape (points of utilization percent and score, `{"0" =
    0, "100" = 10}`), constraints (a choice, or a map from topology key to maxSkew), or names.
    `requeue_events`: further events that can make the pod schedulable where the value is not the
    default.
    """

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
    """`name` is the plugin's name in snake case, `plugin` its name in kube-scheduler.

    `pod_reads` and `node_reads` name fields of `model.pods.Pod` and `model.nodes.Node`; pods
    that agree on the former share an evaluation, and only changes of the latter can change it.
    Further values of `node_reads`: `usage`, the totals of the node's pods; `cluster`, facts over
    all nodes; `volumes`, volumes and claims. Further values of `pod_reads`: `selected_labels`, the
    labels that terms of placed pods select by; `siblings`, the pods selected by the pod's Services
    and controller.

    `parameters` belong to the score, `filter_parameters` to the filter. `filter_requeue_events` are
    the events that can end a rejection. `reasons` are the messages, with placeholders such as
    `{resource}`. `scaleup` False: a new, empty node of the same kind would not help.
    `cost_per_node` is the approximate number of objects inspected per node, for `show`.
    `default_weight` None: not a score.
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
    source: str  # of the semantics, for the docs
    filter_parameters: tuple[BuiltinParameter, ...] = ()
