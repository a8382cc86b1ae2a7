"""Diagnostics of the checker: names, types and units (`PS2xx`), logic (`PS3xx`) and operations (`PS4xx`)."""

from policysched.lang.diagnostics.name_rules import NAME_RULES
from policysched.lang.diagnostics.parameter_rules import GIVEN_RULES
from policysched.lang.diagnostics.rule_doc import RuleDoc
from policysched.lang.diagnostics.warning_rules import DOUBT_RULES

CHECK_RULES: tuple[RuleDoc, ...] = (*NAME_RULES, *GIVEN_RULES, *DOUBT_RULES)
