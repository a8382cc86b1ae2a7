"""Decodes inter-pod affinity and topology spread constraints.

When a pod is created, the API server adds matchLabelKeys and mismatchLabelKeys to the selector, and it forbids a key in
both; so a key that the selector already has was added by the server. For manifests in files it is added here.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from policysched.kube.decode.affinity import decode_label_selector
from policysched.kube.decode.rests import in_pieces
from policysched.model.affinity import (
    PodAffinity,
    PodAffinityTerm,
    PodSelector,
    TopologySpreadConstraint,
    WeightedPodAffinityTerm,
)
from policysched.model.selectors import LabelSelector, SelectorOperator, SelectorRequirement

Json = Mapping[str, Any]
Labels = Mapping[str, str]

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def decode_pod_affinity(affinity: Json, namespace: str, labels: Labels) -> PodAffinity | None:
    """The pod affinity and anti-affinity of `spec.affinity`; None if there is none."""
    attract, repel = affinity.get("podAffinity") or {}, affinity.get("podAntiAffinity") or {}
    if not (attract or repel):
        return None

    def required(kind: Json) -> tuple[PodAffinityTerm, ...]:
        return tuple(_term(term, namespace, labels) for term in in_pieces(kind.get(REQUIRED)))

    def preferred(kind: Json, sign: int) -> tuple[WeightedPodAffinityTerm, ...]:
        return tuple(
            WeightedPodAffinityTerm(
                sign * int(term["weight"]), _term(term["podAffinityTerm"], namespace, labels)
            )
            for term in in_pieces(kind.get(PREFERRED))
        )

    terms, anti, weighted = required(attract), required(repel), preferred(attract, 1) + preferred(repel, -1)
    if not (terms or anti or weighted):
        return None
    return PodAffinity(terms, anti, weighted, selects_itself=_select_itself(terms, labels)).shared()


def affinity_of_labels(affinity: PodAffinity | None, labels: Labels) -> PodAffinity | None:
    """The affinity after a change of the pod's labels, if no term takes values from them (`matchLabelKeys`)."""
    if affinity is None:
        return None
    selects = _select_itself(affinity.required, labels)
    return affinity if selects == affinity.selects_itself else replace(affinity, selects_itself=selects)


def spread_of_labels(
    constraints: tuple[TopologySpreadConstraint, ...], labels: Labels
) -> tuple[TopologySpreadConstraint, ...]:
    """The constraints after a change of the pod's labels, if none takes values from them."""
    return tuple(
        constraint
        if (selects := _selects(constraint.label_selector, labels)) == constraint.selects_itself
        else replace(constraint, selects_itself=selects)
        for constraint in constraints
    )


def _select_itself(terms: Iterable[PodAffinityTerm], labels: Labels) -> bool:
    return all(_selects(term.pods.label_selector, labels) for term in terms)


def decode_spread_constraints(
    constraints: Sequence[Json] | None, labels: Labels
) -> tuple[TopologySpreadConstraint, ...]:
    """`spec.topologySpreadConstraints` in order."""
    return tuple(_constraint(item, labels) for item in in_pieces(constraints))


def _constraint(obj: Json, labels: Labels) -> TopologySpreadConstraint:
    selector = _with_label_keys(
        decode_label_selector(obj.get("labelSelector")), obj.get("matchLabelKeys"), "In", labels
    )
    match obj["whenUnsatisfiable"]:
        case "DoNotSchedule":
            hard = True
        case "ScheduleAnyway":
            hard = False
        case other:
            raise ValueError(f"unknown whenUnsatisfiable `{other}`")
    return TopologySpreadConstraint(
        topology_key=str(obj["topologyKey"]),
        max_skew=int(obj["maxSkew"]),
        min_domains=int(obj.get("minDomains") or 1),
        hard=hard,
        label_selector=selector,
        honors_affinity=_honored(obj.get("nodeAffinityPolicy") or "Honor"),
        honors_taints=_honored(obj.get("nodeTaintsPolicy") or "Ignore"),
        selects_itself=_selects(selector, labels),
    )


def _honored(policy: Any) -> bool:
    match policy:
        case "Honor":
            return True
        case "Ignore":
            return False
        case _:
            raise ValueError(f"unknown node inclusion policy `{policy}`")


def _term(obj: Json, namespace: str, labels: Labels) -> PodAffinityTerm:
    selector = decode_label_selector(obj.get("labelSelector"))
    selector = _with_label_keys(selector, obj.get("matchLabelKeys"), "In", labels)
    selector = _with_label_keys(selector, obj.get("mismatchLabelKeys"), "NotIn", labels)
    namespace_selector = decode_label_selector(obj.get("namespaceSelector"))
    named = tuple(str(name) for name in obj.get("namespaces") or ())
    if not named and namespace_selector is None:
        named = (namespace,)
    return PodAffinityTerm(PodSelector(named, namespace_selector, selector), str(obj["topologyKey"]))


def _with_label_keys(
    selector: LabelSelector | None, keys: Iterable[str] | None, operator: SelectorOperator, labels: Labels
) -> LabelSelector | None:
    """Add a requirement for each key that the pod's labels have: the label equals (In) or differs from (NotIn) the pod's."""
    if selector is None:
        return None
    present = {requirement.key for requirement in selector.requirements}
    label_requirements = tuple(
        SelectorRequirement(key, operator, (labels[key],))
        for key in keys or ()
        if key in labels and key not in present
    )
    return LabelSelector(selector.requirements + label_requirements) if label_requirements else selector


def _selects(selector: LabelSelector | None, labels: Labels) -> bool:
    return selector is not None and selector.selects(labels)
