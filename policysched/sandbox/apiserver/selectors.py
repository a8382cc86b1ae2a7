"""Label and field selectors, parsed to predicates once per request.

Label selectors: `a=b`, `a==b`, `a!=b`, `a in (b, c)`, `a notin (b, c)`, `a`, `!a`, joined by commas that
mean "and". Field selectors support `=`, `==` and `!=` on the fields that the kind lists.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from policysched.sandbox.apiserver.errors import bad_request
from policysched.sandbox.apiserver.kinds import ResourceKind

Json = dict[str, Any]
Predicate = Callable[[Json], bool]

_KEY = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9.]*[A-Za-z0-9])?/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?"
_VALUE = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?)?"
_TERM = re.compile(
    rf"\s*(?:(?P<absent>!\s*{_KEY})"
    rf"|(?P<key>{_KEY})\s*(?:(?P<set>\s(?:in|notin))\s*\((?P<values>[^()]*)\)"
    rf"|(?P<sign>==|=|!=)\s*(?P<value>{_VALUE})"
    rf"|(?P<order>[<>])\s*(?P<number>-?\d+))?)\s*(?:,|$)"
)


@dataclass(frozen=True, slots=True)
class LabelRequirement:
    """A term of a label selector. `operator` is `in`, `notin`, `exists`, `absent`, `>` or `<`."""

    key: str
    operator: str
    values: frozenset[str]

    def matches(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        match self.operator:
            case "in":
                return value in self.values
            case "notin":
                return value is None or value not in self.values
            case "exists":
                return value is not None
            case "absent":
                return value is None
        if value is None or not re.fullmatch(r"-?\d+", value):
            return False
        (bound,) = self.values
        return int(value) > int(bound) if self.operator == ">" else int(value) < int(bound)


def parse_labels(text: str) -> tuple[LabelRequirement, ...]:
    """Parse a label selector. Raises a 400 `StatusError` that quotes an invalid selector."""
    requirements: list[LabelRequirement] = []
    at = 0
    while at < len(text.rstrip()):
        term = _TERM.match(text, at)
        if term is None or term.end() == at:
            raise bad_request(
                f"unable to parse requirement: found {text[at:].strip()!r} in selector {text!r}"
            )
        at = term.end()
        if term["absent"]:
            requirements.append(LabelRequirement(term["absent"][1:].strip(), "absent", frozenset()))
        elif term["set"]:
            values = frozenset(value.strip() for value in term["values"].split(","))
            requirements.append(LabelRequirement(term["key"], term["set"].strip(), values))
        elif term["sign"]:
            operator = "notin" if term["sign"] == "!=" else "in"
            requirements.append(LabelRequirement(term["key"], operator, frozenset({term["value"]})))
        elif term["order"]:
            requirements.append(LabelRequirement(term["key"], term["order"], frozenset({term["number"]})))
        else:
            requirements.append(LabelRequirement(term["key"], "exists", frozenset()))
    return tuple(requirements)


def selected_labels(spec: Mapping[str, Any]) -> Mapping[str, str]:
    """The `matchLabels` of a workload's selector; a ReplicationController's selector is the labels."""
    selector = spec.get("selector") or {}
    plain = all(isinstance(value, str) for value in selector.values())
    return selector if plain else selector.get("matchLabels") or {}


def label_requirements(selector: Json | None) -> tuple[LabelRequirement, ...]:
    """The requirements of a `LabelSelector` object of a Deployment or disruption budget."""
    selector = selector or {}
    requirements = [
        LabelRequirement(key, "in", frozenset({value}))
        for key, value in (selector.get("matchLabels") or {}).items()
    ]
    operators = {"In": "in", "NotIn": "notin", "Exists": "exists", "DoesNotExist": "absent"}
    for expression in selector.get("matchExpressions") or ():
        values = frozenset(expression.get("values") or ())
        requirements.append(LabelRequirement(expression["key"], operators[expression["operator"]], values))
    return tuple(requirements)


def labels_match(requirements: tuple[LabelRequirement, ...], labels: Mapping[str, str] | None) -> bool:
    return all(requirement.matches(labels or {}) for requirement in requirements)


def field_value(obj: Json, path: str) -> str:
    """A field as selectors compare it: absent is empty, a boolean is `true` or `false`."""
    value: Any = obj
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    if path == "source" or path in ("reportingComponent", "reportingController"):
        source = value if isinstance(value, dict) else obj.get("source") or {}
        return str(source.get("component") or obj.get("reportingComponent") or "")
    if path in ("spec.unschedulable", "spec.hostNetwork"):
        return "true" if value else "false"
    if path == "status.successful":
        return str((obj.get("status") or {}).get("succeeded") or 0)
    return "" if value is None else str(value)


def _field_predicate(kind: ResourceKind, text: str) -> list[Predicate]:
    predicates: list[Predicate] = []
    for term in text.split(","):
        if not term.strip():
            continue
        match = re.fullmatch(r"\s*([^=!\s]+)\s*(==|=|!=)\s*(.*?)\s*", term)
        if match is None:
            raise bad_request(f"invalid selector: {text!r}; can't understand {term!r}")
        path, sign, value = match.groups()
        if path not in ("metadata.name", *kind.selectable_fields) and not (
            path == "metadata.namespace" and kind.namespaced
        ):
            raise bad_request(f"field label not supported: {path}")
        # Both versions of events are stored as v1.
        stored_path = (
            "involvedObject" + path.removeprefix("regarding") if path.startswith("regarding.") else path
        )
        value = re.sub(r"\\(.)", r"\1", value)
        predicates.append(_compare(stored_path, value, equal=sign != "!="))
    return predicates


def _compare(path: str, value: str, *, equal: bool) -> Predicate:
    return lambda obj: (field_value(obj, path) == value) is equal


@dataclass(frozen=True, slots=True)
class ObjectFilter:
    """The filter of a list or watch: a namespace (`""` for all) and both selectors."""

    namespace: str
    requirements: tuple[LabelRequirement, ...]
    predicates: tuple[Predicate, ...]

    @property
    def matches_all(self) -> bool:
        """Whether there are no selectors."""
        return not self.requirements and not self.predicates

    def matches(self, obj: Json) -> bool:
        metadata = obj["metadata"]
        if self.namespace and metadata.get("namespace") != self.namespace:
            return False
        if self.requirements and not labels_match(self.requirements, metadata.get("labels")):
            return False
        return all(predicate(obj) for predicate in self.predicates)


def parse_filter(kind: ResourceKind, namespace: str, params: Mapping[str, str]) -> ObjectFilter:
    """The filter of a request's `labelSelector` and `fieldSelector`."""
    return ObjectFilter(
        namespace,
        parse_labels(params.get("labelSelector", "")),
        tuple(_field_predicate(kind, params.get("fieldSelector", ""))),
    )
