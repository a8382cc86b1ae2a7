"""The catalogue of diagnostics: every code with its name, severity, prose and examples.

`PS0xx` (about the lint run itself) and `PS1xx` (syntax) stand in `rules_syntax`, `PS2xx` and up in `rules_check`,
`PS7xx` (what `policysched test` says of test files and of rules that no test tries) in `rules_tests`, `PS9xx` (what
only a running scheduler can say) in `rules_live`.
"""

from collections.abc import Mapping
from types import MappingProxyType

from policysched.lang.diagnostics.check_rules import CHECK_RULES
from policysched.lang.diagnostics.live_rules import LIVE_RULES
from policysched.lang.diagnostics.policytest_rules import TEST_RULES
from policysched.lang.diagnostics.rule_doc import RuleDoc
from policysched.lang.diagnostics.syntax_rules import SYNTAX_RULES
from policysched.text import Diagnostic, Label, Span

__all__ = ["RULES", "RuleDoc", "diagnostic", "find_rule"]


def _by_code(*tables: tuple[RuleDoc, ...]) -> Mapping[str, RuleDoc]:
    rules: dict[str, RuleDoc] = {}
    names: set[str] = set()
    for rule in sorted((rule for table in tables for rule in table), key=lambda rule: rule.code):
        assert rule.code not in rules, f"two rules have the code {rule.code}"
        assert rule.name not in names, f"two rules are called {rule.name}"
        rules[rule.code] = rule
        names.add(rule.name)
    return MappingProxyType(rules)


RULES: Mapping[str, RuleDoc] = _by_code(SYNTAX_RULES, CHECK_RULES, TEST_RULES, LIVE_RULES)
"""Every rule by its code, in the order of the codes."""

_CODE_OF_NAME = {rule.name: code for code, rule in RULES.items()}


def find_rule(code_or_name: str) -> RuleDoc | None:
    """The rule by its code (`PS210`, in any case) or its name (`unknown-name`)."""
    return RULES.get(_CODE_OF_NAME.get(code_or_name.lower(), code_or_name.upper()))


def diagnostic(
    code: str,
    message: str,
    span: Span | None,
    *,
    label: str = "",
    help: str = "",  # noqa: A002 (the word that is printed)
    notes: tuple[str, ...] = (),
    related: tuple[Label, ...] = (),
) -> Diagnostic:
    """A finding, with the name and severity that the catalogue gives to its code."""
    rule = RULES[code]
    return Diagnostic(code, rule.name, rule.severity, message, span, label, help, notes, related)
