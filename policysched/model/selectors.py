"""Label selectors and node selector terms, matched as kube-scheduler matches them."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from policysched.model.quantity import INT64_MAX, INT64_MIN

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+\Z")
_INT64_DIGITS = 19


SelectorOperator = Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]


@dataclass(frozen=True, slots=True)
class SelectorRequirement:
    """One entry of `matchExpressions` or `matchFields`."""

    key: str
    operator: SelectorOperator
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """Matches where all requirements hold; without requirements it matches everything. `matchLabels` entries are In
    requirements with one value. The API allows no Gt and Lt here."""

    requirements: tuple[SelectorRequirement, ...]

    def selects(self, labels: Mapping[str, str]) -> bool:
        """An absent label satisfies NotIn. Source: `labels.Requirement.Matches` in k8s.io/apimachinery."""
        for requirement in self.requirements:
            value = labels.get(requirement.key)
            match requirement.operator:
                case "In":
                    holds = value in requirement.values
                case "NotIn":
                    holds = value not in requirement.values
                case "Exists":
                    holds = value is not None
                case "DoesNotExist":
                    holds = value is None
                case "Gt" | "Lt":
                    raise AssertionError(f"a label selector has no operator {requirement.operator}")
            if not holds:
                return False
        return True


class SelectorByKey:
    """A LabelSelector for many comparisons: the time of each grows with the number of labels or keys, and not with that of
    requirements and values."""

    def __init__(self, selector: LabelSelector) -> None:
        self.present: set[str] = set()
        self.absent: set[str] = set()
        self.allowed: dict[str, set[str]] = {}
        self.forbidden: dict[str, set[str]] = {}
        for requirement in selector.requirements:
            key, values = requirement.key, requirement.values
            match requirement.operator:
                case "In":
                    self.present.add(key)
                    self.allowed[key] = self.allowed.get(key, set(values)).intersection(values)
                case "NotIn":
                    self.forbidden.setdefault(key, set()).update(values)
                case "Exists":
                    self.present.add(key)
                case "DoesNotExist":
                    self.absent.add(key)
                case "Gt" | "Lt":
                    raise AssertionError(f"a label selector has no operator {requirement.operator}")

    def all_keys(self) -> set[str]:
        """The keys that have a requirement."""
        return self.present.union(self.absent, self.forbidden)

    def selects(self, labels: Mapping[str, str]) -> bool:
        if len(self.present) > len(labels) or not labels.keys() >= self.present:
            return False
        return (
            labels.keys().isdisjoint(self.absent)
            and all(labels[key] in self.allowed[key] for key in _common(self.allowed, labels))
            and all(labels[key] not in self.forbidden[key] for key in _common(self.forbidden, labels))
        )


def _common(by_key: Mapping[str, object], labels: Mapping[str, str]) -> Iterable[str]:
    fewer, more = sorted((by_key, labels), key=len)
    return (key for key in fewer if key in more)


@dataclass(frozen=True, slots=True)
class NodeSelectorTerm:
    """Matches where all entries of both lists hold; without entries it matches nothing."""

    expressions: tuple[SelectorRequirement, ...]
    fields: tuple[SelectorRequirement, ...]


def volume_fits_labels(terms: Iterable[NodeSelectorTerm] | None, labels: Mapping[str, str]) -> bool:
    """Whether a volume with this required node affinity (None: without one) can be used on a node with these labels.

    kube-scheduler passes only the labels, so matchFields are ignored. A term without requirements matches nothing.
    Source: `CheckNodeAffinity` in k8s.io/component-helpers/storage/volume.
    """
    return terms is None or any(
        bool(term.expressions or term.fields)
        and all(requirement_holds(requirement, labels) for requirement in term.expressions)
        for term in terms
    )


def requirement_holds(requirement: SelectorRequirement, labels: Mapping[str, str]) -> bool:
    """Source: `labels.Requirement.Matches` in k8s.io/apimachinery; an absent label satisfies NotIn."""
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value in requirement.values
        case "NotIn":
            return value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            number = None if value is None else parse_int64(value)
            bound = parse_int64(requirement.values[0]) if len(requirement.values) == 1 else None
            if number is None or bound is None:
                return False
            return number > bound if requirement.operator == "Gt" else number < bound


def parse_int64(text: str) -> int | None:
    """Like Go's `strconv.ParseInt(text, 10, 64)`; None where that returns an error. Python refuses to convert thousands of
    digits, which the API server takes as the value of a preferred term."""
    if not _WHOLE_NUMBER.match(text):
        return None
    digits = text.lstrip("+-0") or "0"
    if len(digits) > _INT64_DIGITS:
        return None
    number = -int(digits) if text.startswith("-") else int(digits)
    return number if INT64_MIN <= number <= INT64_MAX else None
