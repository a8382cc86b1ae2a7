"""Selectors and affinities from JSON."""

from collections.abc import Mapping
from typing import Any

from policysched.cluster import objects as o

Json = Mapping[str, Any]

_OPERATORS: frozenset[str] = frozenset({"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"})


def node_affinity(obj: Json | None) -> o.NodeAffinity | None:
    """`spec.affinity.nodeAffinity`, or None where it asks for nothing."""
    if not obj:
        return None
    required = obj.get("requiredDuringSchedulingIgnoredDuringExecution")
    preferred = obj.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
    return o.NodeAffinity(
        required=None
        if required is None
        else tuple(_term(term) for term in required.get("nodeSelectorTerms") or ()),
        preferred=tuple(o.PreferredTerm(int(one["weight"]), _term(one["preference"])) for one in preferred),
    )


def label_selector(obj: Json | None) -> o.LabelSelector | None:
    """A metav1.LabelSelector; None (select nothing) where there is none."""
    if obj is None:
        return None
    labels = tuple(
        o.Requirement(key, "In", (value,)) for key, value in (obj.get("matchLabels") or {}).items()
    )
    return o.LabelSelector(labels + tuple(_requirement(one) for one in obj.get("matchExpressions") or ()))


def anti_affinity_terms(obj: Json | None, namespace: str) -> tuple[o.AntiAffinityTerm, ...]:
    """The required terms of `spec.affinity.podAntiAffinity`; one that selects nothing is left out."""
    found = []
    for term in (obj or {}).get("requiredDuringSchedulingIgnoredDuringExecution") or ():
        selector = label_selector(term.get("labelSelector"))
        if selector is None:
            continue
        spaces = (
            None
            if term.get("namespaceSelector") is not None
            else tuple(term.get("namespaces") or (namespace,))
        )
        found.append(o.AntiAffinityTerm(spaces, selector, str(term["topologyKey"])))
    return tuple(found)


def _term(obj: Json) -> o.NodeSelectorTerm:
    return o.NodeSelectorTerm(
        expressions=tuple(_requirement(one) for one in obj.get("matchExpressions") or ()),
        fields=tuple(_requirement(one) for one in obj.get("matchFields") or ()),
    )


def _requirement(obj: Json) -> o.Requirement:
    operator = obj["operator"]
    if operator not in _OPERATORS:
        raise ValueError(f"unknown selector operator `{operator}`")
    return o.Requirement(str(obj["key"]), operator, tuple(str(value) for value in obj.get("values") or ()))
