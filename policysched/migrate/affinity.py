"""`addedAffinity` of NodeAffinity: node selectors of the scheduler's own, as expressions on a node's labels.

A term holds where all of its requirements do, a selector where one of its terms does; an empty term never holds
(v1.36.2 `component-helpers/scheduling/corev1/nodeaffinity`). `Gt` and `Lt` read the label as a whole number, through
an input of the policy, and never hold where it is none.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from policysched.lang.format.expression_text import string_text
from policysched.migrate.located_document import Path
from policysched.migrate.report import ImportReport

FALSE_EXPRESSION = "false"

_OPERANDS_MAX = 60
"""Requirements in one selector: an expression is limited (PS126)."""


@dataclass(slots=True)
class NodeSelectorTranslator:
    """Turns selectors into expressions, and collects the inputs that these read."""

    report: ImportReport
    inputs: dict[str, str] = field(default_factory=dict)  # label key -> input's name

    def required_condition(self, path: Path, selector: Mapping[str, Any]) -> str | None:
        """The condition that a node must meet; None, and a report, where it is too long for one expression."""
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
                path, f"a selector of {size} requirements", f"an expression has room for {_OPERANDS_MAX}"
            )
            return None
        held = [
            one
            for at, term in zip(paths, terms, strict=True)
            if (one := self._all(at, term)) != FALSE_EXPRESSION
        ]
        if not held:
            return FALSE_EXPRESSION
        return held[0] if len(held) == 1 else " or ".join(f"({one})" for one in held)

    def _all(self, path: Path, term: Mapping[str, Any]) -> str:
        parts = [
            self._expression((*path, "matchExpressions", index), one)
            for index, one in enumerate(term.get("matchExpressions") or ())
        ]
        parts += [
            self._field((*path, "matchFields", index), one)
            for index, one in enumerate(term.get("matchFields") or ())
        ]
        return " and ".join(parts) if parts else FALSE_EXPRESSION

    def _expression(self, path: Path, one: Mapping[str, Any]) -> str:
        label, values = f"node.labels[{string_text(one['key'])}]", one.get("values") or []
        listed = f"[{', '.join(string_text(value) for value in values)}]"
        match one["operator"]:
            case "In" if values:
                return f"has {label} and {label} in {listed}"
            case "NotIn" if values:
                return f"(not has {label} or {label} not in {listed})"
            case "Exists" if not values:
                return f"has {label}"
            case "DoesNotExist" if not values:
                return f"not has {label}"
            case "Gt" | "Lt" as operator if len(values) == 1 and _is_integer(values[0]):
                name = self.inputs.setdefault(one["key"], f"added_label_{len(self.inputs) + 1}")
                return f"has {name} and {name} {'>' if operator == 'Gt' else '<'} {int(values[0])}"
            case operator:
                raise self.report.document.unusable_file(
                    path, f"{operator} does not go with the values {values}"
                )

    def _field(self, path: Path, one: Mapping[str, Any]) -> str:
        values = one.get("values") or []
        if one["key"] != "metadata.name" or one["operator"] not in ("In", "NotIn") or len(values) != 1:
            raise self.report.document.unusable_file(
                path, "a field is matched by `metadata.name`, In or NotIn, and one value"
            )
        return f"node.name {'==' if one['operator'] == 'In' else '!='} {string_text(values[0])}"


def _is_integer(text: str) -> bool:
    digits = text.removeprefix("-")
    return digits.isascii() and digits.isdecimal() and -(2**63) <= int(text) < 2**63
