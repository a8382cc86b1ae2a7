"""Every diagnostic has an explanation, an example that triggers it and a corrected example."""

import re

import pytest

from policysched.lang.diagnostics.catalogue import DIAGNOSTIC_DOCS
from policysched.lang.diagnostics.diagnostic_doc import DiagnosticDoc
from policysched.lint.linter import lint
from policysched.policy_files.source_set import SourceSet
from policysched.policy_files.sources import parse_sources
from policysched.text import Source


def lint_example(rule: DiagnosticDoc, text: str) -> set[str]:
    """The codes that lint reports on an example, which may be a ConfigMap."""
    if text.startswith("apiVersion"):
        return {
            diagnostic.code for diagnostic in lint(parse_sources(text, "example.yaml"), select={rule.code})
        }
    texts = {**dict(rule.other_files), "example.policy": text}
    sources = {key: Source(key, text) for key, text in texts.items()}
    return {
        diagnostic.code
        for diagnostic in lint(
            [SourceSet("example", sources, frozenset({"example.policy"}), {})], select={rule.code}
        )
    }


DRAWN_BY_TEXTS = {code: rule for code, rule in DIAGNOSTIC_DOCS.items() if not code.startswith(("PS7", "PS9"))}
"""The remaining codes are reported by test files and by a running scheduler."""


@pytest.mark.parametrize("rule", DRAWN_BY_TEXTS.values(), ids=DRAWN_BY_TEXTS.keys())
def test_the_bad_example_gets_the_code(rule: DiagnosticDoc) -> None:
    assert rule.code in lint_example(rule, rule.bad_example)


@pytest.mark.parametrize("rule", DRAWN_BY_TEXTS.values(), ids=DRAWN_BY_TEXTS.keys())
def test_the_good_example_does_not_get_the_code(rule: DiagnosticDoc) -> None:
    assert rule.code not in lint_example(rule, rule.good_example)


@pytest.mark.parametrize("rule", DIAGNOSTIC_DOCS.values(), ids=DIAGNOSTIC_DOCS.keys())
def test_a_code_has_a_name_and_prose(rule: DiagnosticDoc) -> None:
    assert re.fullmatch(r"PS\d{3}", rule.code)
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", rule.name)
    assert rule.summary and not rule.summary.endswith(".")
    assert rule.explanation.endswith((".", ")")) and len(rule.explanation) > 30
