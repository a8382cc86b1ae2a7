"""`addedAffinity` of NodeAffinity: translates node selectors to expressions on a node's labels.

A term matches if all its requirements match, a selector if one of its terms matches; an empty term
never matches (v1.36.2 `component-helpers/scheduling/corev1/nodeaffinity`). `Gt` and `Lt` read the
label as an integer, through an input of the policy, and do not match other labels.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from policysched.lang.format.expression_text import string_text
from policysched.migrate.located_document import Path
from policysched.migrate.report import ImportReport

FALSE_EXPRESSION = "false"

_OPERANDS_MAX = 60
"""The limit of requirements in one selector: the size of an expression is limited (PS126)."""


@dataclass(slots=True)
class NodeSelectorTranslator:
    """Translates selectors to expressions and collects the inputs that they read."""

    report: ImportReport
    inputs: dict[str, str] = field(default_factory=dict)  # label key -> input's name

    def required_condition(self, path: Path, selector: Mapping[str, Any]) -> str | None:
        """The condition on a node. None, with an entry in the report, if it is too long for an expression."""
        terms = selector.get("nodeSelectorTerms") or []
        return self._any(path, [(*path, "nodeSelectorTerms", index) for index in range(len(terms))], terms)

    def term_condition(self, path: Path, term: Mapping[str, Any]) -> str | None:
        return self._any(path, [path], [term])

    def input_statements(self) -> list[str]:
        return [
            f"input {name}: int = node.labels[{string_text(key)}] optional invalid default"
            for key, name in self.inputs.items()
        ]

    def _any(self, path: Path, paths: list[Path], terms: list[Mapping[str, Any]]) -> str | None:
        size = sum(
            len(term.get(part) or ()) for term in terms for part in ("matchExpressions", "matchFields")
        )
        if size > _OPERANDS_MAX:
            self.report.add_not_imported(
                path, f"a selector of {size} requirements", f"the limit for an expression is {_OPERANDS_MAX}"
            )
            return None
        conditions = [
            condition
            for at, term in zip(paths, terms, strict=True)
            if (condition := self._all(at, term)) != FALSE_EXPRESSION
        ]
        if not conditions:
            return FALSE_EXPRESSION
        return conditions[0] if len(conditions) == 1 else " or ".join(f"({term})" for term in conditions)

    def _all(self, path: Path, term: Mapping[str, Any]) -> str:
        parts = [
            self._expression((*path, "matchExpressions", index), expression)
            for index, expression in enumerate(term.get("matchExpressions") or ())
        ]
        parts += [
            self._field((*path, "matchFields", index), requirement)
            for index, requirement in enumerate(term.get("matchFields") or ())
        ]
        return " and ".join(parts) if parts else FALSE_EXPRESSION

    def _expression(self, path: Path, expression: Mapping[str, Any]) -> str:
        label, values = f"node.labels[{string_text(expression['key'])}]", expression.get("values") or []
        listed = f"[{', '.join(string_text(value) for value in values)}]"
        match expression["operator"]:
            case "In" if values:
                return f"has {label} and {label} in {listed}"
            case "NotIn" if values:
                return f"(not has {label} or {label} not in {listed})"
            case "Exists" if not values:
                return f"has {label}"
            case "DoesNotExist" if not values:
                return f"not has {label}"
            case "Gt" | "Lt" as operator if len(values) == 1 and _is_integer(values[0]):
                name = self.inputs.setdefault(expression["key"], f"added_label_{len(self.inputs) + 1}")
                return f"has {name} and {name} {'>' if operator == 'Gt' else '<'} {int(values[0])}"
            case operator:
                raise self.report.document.unusable_file(
                    path, f"operator {operator} does not accept the values {values}"
                )

    def _field(self, path: Path, requirement: Mapping[str, Any]) -> str:
        values = requirement.get("values") or []
        if (
            requirement["key"] != "metadata.name"
            or requirement["operator"] not in ("In", "NotIn")
            or len(values) != 1
        ):
            raise self.report.document.unusable_file(
                path, "a field selector must have key `metadata.name`, operator In or NotIn, and one value"
            )
        return f"node.name {'==' if requirement['operator'] == 'In' else '!='} {string_text(values[0])}"


def _is_integer(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdecimal() and -(2**63) <= int(text) < 2**63
