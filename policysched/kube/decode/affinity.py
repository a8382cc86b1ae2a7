"""Decodes node affinity, node selectors and label selectors."""

from collections.abc import Mapping
from typing import Any

from policysched.kube.decode.errors import OverLimit
from policysched.kube.decode.rests import in_pieces
from policysched.model.affinity import NodeAffinity, PreferredSchedulingTerm
from policysched.model.selectors import LabelSelector, NodeSelectorTerm, SelectorRequirement

Json = Mapping[str, Any]

SELECTOR_PARTS_MAX = 1_000

_OPERATORS: frozenset[str] = frozenset({"In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"})


def decode_node_affinity(obj: Json | None) -> NodeAffinity | None:
    """`spec.affinity.nodeAffinity`, or None if it is empty."""
    if not obj:
        return None
    required = obj.get("requiredDuringSchedulingIgnoredDuringExecution")
    preferred = obj.get("preferredDuringSchedulingIgnoredDuringExecution")
    return NodeAffinity(
        required=decode_node_selector(required),
        preferred=tuple(
            PreferredSchedulingTerm(int(term["weight"]), _term(term["preference"]))
            for term in in_pieces(preferred)
        ),
    )


def decode_node_selector(obj: Json | None) -> tuple[NodeSelectorTerm, ...] | None:
    """A v1.NodeSelector; None if absent."""
    return None if obj is None else tuple(_term(term) for term in in_pieces(obj.get("nodeSelectorTerms")))


def decode_label_selector(obj: Json | None) -> LabelSelector | None:
    """A metav1.LabelSelector; None (selects nothing) if absent. Raises ValueError for an operator that it cannot have."""
    if obj is None:
        return None
    labels = tuple(
        SelectorRequirement(key, "In", (value,)) for key, value in (obj.get("matchLabels") or {}).items()
    )
    requirements = labels + tuple(_requirement(item) for item in obj.get("matchExpressions") or ())
    for requirement in requirements:
        if requirement.operator in ("Gt", "Lt"):
            raise ValueError(f"a label selector has no operator `{requirement.operator}`")
    return LabelSelector(requirements)


def decode_short_selector(obj: Json | None) -> LabelSelector | None:
    """`spec.selector` of an object that is decoded in one piece and whose selector is hashed and compared often: 20,000
    requirements take 80 ms. Raises OverLimit above SELECTOR_PARTS_MAX requirements and values."""
    if obj is not None:
        values = sum(1 + len(item.get("values") or ()) for item in obj.get("matchExpressions") or ())
        if len(obj.get("matchLabels") or ()) + values > SELECTOR_PARTS_MAX:
            raise OverLimit("spec.selector", f"has more than {SELECTOR_PARTS_MAX} requirements and values")
    return decode_label_selector(obj)


def _term(obj: Json) -> NodeSelectorTerm:
    return NodeSelectorTerm(
        expressions=tuple(_requirement(item) for item in obj.get("matchExpressions") or ()),
        fields=tuple(_requirement(item) for item in obj.get("matchFields") or ()),
    )


def _requirement(obj: Json) -> SelectorRequirement:
    operator = obj["operator"]
    if operator not in _OPERATORS:
        raise ValueError(f"unknown selector operator `{operator}`")
    return SelectorRequirement(
        str(obj["key"]), operator, tuple(str(value) for value in obj.get("values") or ())
    )
