"""Node selector terms held against labels, as kube-scheduler holds them."""

import re
from collections.abc import Iterable, Mapping

from policysched.model.objects import Node, NodeSelectorTerm, SelectorRequirement
from policysched.model.quantity import INT64_MAX, INT64_MIN

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+\Z")


def volume_fits_labels(terms: Iterable[NodeSelectorTerm] | None, labels: Mapping[str, str]) -> bool:
    """Whether a volume with this required node affinity (None: it has none) can be used on a node with these labels.

    kube-scheduler asks about the labels alone, so matchFields are not looked at. A term without any requirement
    matches nothing. Source: `CheckNodeAffinity` in k8s.io/component-helpers/storage/volume.
    """
    return terms is None or any(
        bool(term.expressions or term.fields)
        and all(requirement_holds(one, labels) for one in term.expressions)
        for term in terms
    )


def node_matches(terms: Iterable[NodeSelectorTerm], node: Node) -> bool:
    """Whether a node selector with these terms selects the node, by its labels and its name. A term without any requirement
    selects nothing. Source: `NodeSelector.Match` in k8s.io/component-helpers/scheduling/corev1/nodeaffinity."""
    fields = {"metadata.name": str(node.name)}
    return any(
        bool(term.expressions or term.fields)
        and all(requirement_holds(one, node.labels) for one in term.expressions)
        and all(one.key in fields and requirement_holds(one, fields) for one in term.fields)
        for term in terms
    )


def requirement_holds(requirement: SelectorRequirement, labels: Mapping[str, str]) -> bool:
    """Source: `labels.Requirement.Matches` in k8s.io/apimachinery; an absent label satisfies NotIn."""
    found = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return found in requirement.values
        case "NotIn":
            return found not in requirement.values
        case "Exists":
            return found is not None
        case "DoesNotExist":
            return found is None
        case "Gt" | "Lt":
            ours = None if found is None else _whole_number(found)
            theirs = _whole_number(requirement.values[0]) if len(requirement.values) == 1 else None
            if ours is None or theirs is None:
                return False
            return ours > theirs if requirement.operator == "Gt" else ours < theirs


def _whole_number(text: str) -> int | None:
    """As Go's `strconv.ParseInt(text, 10, 64)`: None where it would give an error."""
    if not _WHOLE_NUMBER.match(text):
        return None
    number = int(text)
    return number if INT64_MIN <= number <= INT64_MAX else None
