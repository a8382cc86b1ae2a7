"""Node selector terms held against labels, as kube-scheduler holds them."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from policysched.model.quantity import INT64_MAX, INT64_MIN

_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]+\Z")


SelectorOperator = Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]


@dataclass(frozen=True, slots=True)
class SelectorRequirement:
    """One `matchExpressions` (or `matchFields`) entry."""

    key: str
    operator: SelectorOperator
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """All requirements hold; an empty one matches everything. `matchLabels` are In requirements of one value. The API
    has no Gt and Lt here."""

    requirements: tuple[SelectorRequirement, ...]

    def selects(self, labels: Mapping[str, str]) -> bool:
        """An absent label satisfies NotIn. Source: `labels.Requirement.Matches` in k8s.io/apimachinery."""
        for one in self.requirements:
            found = labels.get(one.key)
            match one.operator:
                case "In":
                    holds = found in one.values
                case "NotIn":
                    holds = found not in one.values
                case "Exists":
                    holds = found is not None
                case "DoesNotExist":
                    holds = found is None
                case "Gt" | "Lt":
                    raise AssertionError(f"a label selector has no operator {one.operator}")
            if not holds:
                return False
        return True


@dataclass(frozen=True, slots=True)
class NodeSelectorTerm:
    """Both lists hold; a term with neither matches nothing."""

    expressions: tuple[SelectorRequirement, ...]
    fields: tuple[SelectorRequirement, ...]


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
