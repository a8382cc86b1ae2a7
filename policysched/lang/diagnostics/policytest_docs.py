"""Diagnostics about policy tests (`PS7xx`).

Test files trigger them, not policies, so they have no examples here; see `docs/testing-policies.md`.
"""

from policysched.lang.diagnostics.diagnostic_doc import DiagnosticDoc
from policysched.text import Severity

POLICYTEST_DOCS = (
    DiagnosticDoc(
        "PS701",
        "rule-without-test",
        Severity.HINT,
        "a test suite does not cover an outcome of a rule",
        "`policysched test` records for every filter whether a node passed and whether one was "
        "rejected, for every score whether it was computed, and for every `when` and layer "
        "whether it was true and whether it was false. An outcome that no test covers can be "
        "wrong without notice. Add a test with a node or pod that produces it. `--threshold` "
        "makes the command fail if coverage is too low.",
        bad_example="",
        good_example="",
    ),
    DiagnosticDoc(
        "PS702",
        "unknown-name-in-test",
        Severity.ERROR,
        "a test refers to a rule, node, pod or metric that does not exist",
        "An expectation about something that does not exist would always pass. Every name in a "
        "test file is therefore resolved before any test runs: rules and metrics in the policy, "
        "nodes and pods in the test's own cluster. No test of the file runs until all names "
        "resolve. The rule may have been renamed.",
        bad_example="",
        good_example="",
    ),
    DiagnosticDoc(
        "PS703",
        "unusable-test-file",
        Severity.ERROR,
        "a test file cannot be read",
        "The file is not valid YAML, does not match the schema "
        "(`policysched/schemas/policy-test.json`), refers to a policy or cluster file that "
        "cannot be read, or contains an object that Kubernetes would reject. The message gives "
        "the reason and the location. No test of the file runs.",
        bad_example="",
        good_example="",
    ),
)
