"""The catalogue's entries for tests of policies. They are drawn by test files, not by a policy's text, so they have no
examples here; `docs/testing-policies.md` has some."""

from policysched.lang.diagnostics.diagnostic_doc import DiagnosticDoc
from policysched.text import Severity

POLICYTEST_DOCS = (
    DiagnosticDoc(
        "PS701",
        "rule-without-test",
        Severity.HINT,
        "no test brings about one of a rule's outcomes",
        "`policysched test` notes for every filter of the policy whether a node passed it and whether one was refused, for "
        "every score whether it was given, for every `when` and every layer whether it held and whether it did not. An outcome that "
        "no test brings about may be wrong without anybody noticing. Add a test with a node or a pod for which it "
        "comes about. `--threshold` makes the command fail when too many are left.",
        bad_example="",
        good_example="",
    ),
    DiagnosticDoc(
        "PS702",
        "unknown-name-in-test",
        Severity.ERROR,
        "a test names a rule, node, pod or metric that is not there",
        "An expectation about something that does not exist says nothing, and would pass for ever. So every name in a test "
        "file is looked up before anything is played: rules and metrics in the policy, nodes and pods in the test's "
        "own world. The file's tests are not run until all names are there. The rule may have been renamed.",
        bad_example="",
        good_example="",
    ),
    DiagnosticDoc(
        "PS703",
        "unusable-test-file",
        Severity.ERROR,
        "a test file cannot be read",
        "The file is no YAML, does not have the shape of a test file (its schema is `policysched/schemas/policy-test.json`), names a "
        "policy or a cluster file that cannot be read, or has an object that Kubernetes would not take. The message "
        "says which, with the place in the file. None of its tests is run.",
        bad_example="",
        good_example="",
    ),
)
