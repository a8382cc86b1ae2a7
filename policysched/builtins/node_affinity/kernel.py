"""nodeSelector and node affinity over label codes.

A requirement compares small integers; only `Gt` and `Lt` parse label values, each distinct value
once. Source of the semantics: kubernetes v1.37 `pkg/scheduler/framework/plugins/nodeaffinity` and
`k8s.io/component-helpers/scheduling/corev1/nodeaffinity`.
"""

from collections.abc import Sequence

import numpy as np

from policysched.evaluate.columns.column_kinds import NODE_NAME, ColumnKind, NodeMapEntryColumn
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.interner import ABSENT
from policysched.evaluate.columns.view import View
from policysched.evaluate.kernel import (
    ClusterContext,
    DefaultNormalizer,
    FilterKernel,
    FilterKernelBase,
    KernelParams,
    Normalizer,
    ScoreKernel,
    ScoreKernelBase,
)
from policysched.model.affinity import PreferredSchedulingTerm
from policysched.model.pods import Pod
from policysched.model.selectors import NodeSelectorTerm, SelectorRequirement, parse_int64

COLUMNS = (NODE_NAME,)
_PREFILTER_RESULT_REASON = "node(s) didn't satisfy plugin(s) [NodeAffinity]"


def specialize_filter(pod: Pod, params: KernelParams, cluster_context: ClusterContext) -> FilterKernel | None:
    required = None if pod.affinity is None else pod.affinity.required
    if not pod.node_selector and required is None:
        return None
    return _Filter(pod, required)


def specialize_score(pod: Pod, params: KernelParams, cluster_context: ClusterContext) -> ScoreKernel | None:
    return _Score(pod.affinity.preferred) if pod.affinity and pod.affinity.preferred else None


class _Filter(FilterKernelBase):
    reason = "node(s) didn't match Pod's node affinity/selector"

    def __init__(self, pod: Pod, required: tuple[NodeSelectorTerm, ...] | None) -> None:
        self._selector = pod.node_selector
        self._required = required
        self._named_nodes = named_nodes(required or ())

    def rejected(self, view: View) -> Array:
        early = self.early_reject(view)
        unmatched = self._unmatched(view)
        return unmatched if early is None else unmatched | early

    def reasons(self, view: View) -> Sequence[tuple[str, Array]]:
        early = self.early_reject(view)
        unmatched = self._unmatched(view)
        if early is None:
            return ((self.reason, unmatched),)
        return ((_PREFILTER_RESULT_REASON, early), (self.reason, unmatched & ~early))

    def early_reject(self, view: View) -> Array | None:
        """Where every term names nodes, kube-scheduler does not evaluate the other nodes."""
        if not self._named_nodes:
            return None
        names = view.column(NODE_NAME)  # first: reading a new column assigns the codes of its strings
        codes = [view.codes.strings.find(name) for name in self._named_nodes]
        return np.isin(names, codes, invert=True)

    def repeated_on_new_node(self, view: View) -> Array:
        return self.rejected(view)

    def _unmatched(self, view: View) -> Array:
        matched = np.ones(view.count, np.bool_)
        for key, value in self._selector.items():
            matched &= view.column(NodeMapEntryColumn("labels", key)) == view.codes.strings.find(value)
        if self._required is not None:
            any_term = np.zeros(view.count, np.bool_)
            for term in self._required:
                any_term |= term_matches(term, view)
            matched &= any_term
        return ~matched


class _Score(ScoreKernelBase):
    """Raw: the sum of the weights of the terms that match."""

    normalizer: Normalizer = DefaultNormalizer(reverse=False)

    def __init__(self, preferred: tuple[PreferredSchedulingTerm, ...]) -> None:
        self._preferred = preferred

    def raw(self, view: View) -> Array:
        total = np.zeros(view.count, np.int64)
        for preferred in self._preferred:
            total += term_matches(preferred.term, view) * preferred.weight
        return total


def named_nodes(terms: Sequence[NodeSelectorTerm]) -> frozenset[str]:
    """The nodes that the terms name, where every term names some; otherwise empty, also where the
    names in each term exclude each other.
    """
    names: set[str] = set()
    for term in terms:
        lists = [
            set(requirement.values)
            for requirement in term.fields
            if requirement.key == "metadata.name" and requirement.operator == "In"
        ]
        if not lists:
            return frozenset()
        names |= set.intersection(*lists)
    return frozenset(names)


def term_matches(term: NodeSelectorTerm, view: View) -> Array:
    """bool[view.count]; a term without requirements matches nothing."""
    matched = np.full(view.count, bool(term.expressions or term.fields))
    for requirement in term.expressions:
        matched &= requirement_matches(requirement, NodeMapEntryColumn("labels", requirement.key), view)
    for requirement in term.fields:
        if requirement.key == "metadata.name":
            matched &= requirement_matches(requirement, NODE_NAME, view)
        else:
            matched &= requirement.operator in ("NotIn", "DoesNotExist")
    return matched


def requirement_matches(requirement: SelectorRequirement, kind: ColumnKind, view: View) -> Array:
    """bool[view.count], for a label or another column of strings."""
    codes = view.column(kind)
    match requirement.operator:
        case "In":
            return _in_values(codes, requirement.values, view)
        case "NotIn":
            return ~_in_values(codes, requirement.values, view)
        case "Exists":
            return np.asarray(codes != ABSENT)
        case "DoesNotExist":
            return np.asarray(codes == ABSENT)
        case "Gt" | "Lt":
            return _compare_number(codes, requirement, view)


def _in_values(codes: Array, values: Sequence[str], view: View) -> Array:
    codes_of_values = [view.codes.strings.find(value) for value in values]
    if len(codes_of_values) == 1:
        return np.asarray(codes == codes_of_values[0])
    return np.isin(codes, codes_of_values)


def _compare_number(codes: Array, requirement: SelectorRequirement, view: View) -> Array:
    bound = parse_int64(requirement.values[0]) if len(requirement.values) == 1 else None
    if bound is None:
        return np.zeros(view.count, np.bool_)
    texts = view.codes.strings.values
    fitting = []
    for code in set(codes.tolist()):
        if 0 <= code < len(texts):
            number = parse_int64(texts[code])
            if number is not None and (number > bound if requirement.operator == "Gt" else number < bound):
                fitting.append(code)
    return np.isin(codes, fitting)
