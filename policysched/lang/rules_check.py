"""Diagnostics of the checker: names, types and units (`PS2xx`), logic (`PS3xx`) and operations (`PS4xx`)."""

from policysched.lang.rule_doc import RuleDoc
from policysched.lang.rules_doubts import DOUBT_RULES
from policysched.lang.rules_given import GIVEN_RULES
from policysched.lang.rules_names import NAME_RULES

CHECK_RULES: tuple[RuleDoc, ...] = (*NAME_RULES, *GIVEN_RULES, *DOUBT_RULES)
