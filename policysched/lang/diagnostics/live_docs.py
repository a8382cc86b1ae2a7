"""Diagnostics that need the operator's settings, a metrics server or a running scheduler (`PS9xx`).

No policy triggers them by itself, so they have no examples.
"""

from policysched.lang.diagnostics.diagnostic_doc import DiagnosticDoc
from policysched.text import Severity

LIVE_DOCS = (
    DiagnosticDoc(
        "PS901",
        "check-did-not-finish",
        Severity.ERROR,
        "the check of a ConfigMap's policies exceeded its limits",
        "The scheduler checks policies in a separate process with limits on time and memory, so "
        "that no edit can stop it. The process died, or did not answer. The offending key is "
        "unknown, so no key is accepted and the previous policies stay active. "
        "The key that was edited last is the likely cause: make it smaller or remove it. "
        "`policysched lint` checks the same texts without limits. "
        "With `internal error`: this text raised an exception when it took effect or was checked, "
        "which is a bug; another text is tried at once.",
        bad_example="",
        good_example="",
    ),
    DiagnosticDoc(
        "PS902",
        "metric-without-source",
        Severity.WARNING,
        "no configured source provides a metric",
        "Metric sources are part of the operator's settings, so this check needs them: "
        "`policysched lint --config settings.yaml my.policy`. The metric names an unknown "
        "source, names none although there are several and no default, or requests something "
        "that its source does not have. The scheduler runs such a policy with the metric "
        "missing on every node and emits the event MetricWithoutSource.",
        bad_example="",
        good_example="",
    ),
    DiagnosticDoc(
        "PS903",
        "metric-without-series",
        Severity.WARNING,
        "the server has no series for a metric's query, or none with the join label",
        "`policysched lint --config settings.yaml --live my.policy` queries the servers. "
        "Usually a metric or label name is spelled differently on the server. A series that an "
        "exporter reports only at times is missing in between. The policy still runs, with the "
        "metric missing.",
        bad_example="",
        good_example="",
    ),
    DiagnosticDoc(
        "PS904",
        "query-refused",
        Severity.WARNING,
        "the server rejects a metric's query, or the result is not an instant vector",
        "`policysched lint --config settings.yaml --live my.policy` queries the servers and "
        "repeats their answer. A query must return an instant vector, not a scalar, and not a "
        "range vector such as `up[5m]` without a function around it.",
        bad_example="",
        good_example="",
    ),
    DiagnosticDoc(
        "PS905",
        "duplicate-series",
        Severity.WARNING,
        "several series of a metric match one node",
        "`policysched lint --config settings.yaml --live my.policy` queries the servers. The "
        "series are ambiguous, so the node has no sample. Aggregate them, for example with `sum "
        "by (instance) (...)`.",
        bad_example="",
        good_example="",
    ),
    DiagnosticDoc(
        "PS906",
        "extender-not-configured",
        Severity.ERROR,
        "an extender is not configured, or lacks a required verb",
        "Extenders are part of the operator's settings, under `extenders`, so this check needs "
        "them: `policysched lint --config settings.yaml my.policy`. The scheduler does not "
        "activate such a policy, because its pods could be placed on nodes that the extender "
        "would reject; the previous version stays active. Configure the extender and restart, "
        "or remove the statement.",
        bad_example="",
        good_example="",
    ),
    DiagnosticDoc(
        "PS907",
        "not-unicode",
        Severity.ERROR,
        "a key of the policies' ConfigMap is not UTF-8",
        "`kubectl create configmap --from-file` silently stores a file that is not UTF-8 under "
        "`binaryData`. Such files come from editors and shells that use another encoding, such "
        "as Latin-1, or UTF-16 for `>` in PowerShell. The key is rejected and the previous "
        "version of its policy stays active. Save the file as UTF-8 and apply it again.",
        bad_example="",
        good_example="",
    ),
    DiagnosticDoc(
        "PS908",
        "policy-name-not-allowed",
        Severity.ERROR,
        "the settings do not allow a policy of this name",
        "Pods select a policy by its name, so the name decides which pods it schedules. The operator's "
        "settings list the allowed names (`policy_permissions.policies_allowed`), and this check needs them: "
        "`policysched lint --config settings.yaml my.policy`. Without a list every name is allowed "
        "except `default-scheduler`, which pods get that name no scheduler. Only an entry with exactly "
        "this name allows it, no pattern does. The scheduler does not activate such a policy; the "
        "policy that its key held before stays active.",
        bad_example="",
        good_example="",
    ),
    DiagnosticDoc(
        "PS909",
        "text-exceeds-limits",
        Severity.ERROR,
        "the check of one text takes too much time or memory",
        "The scheduler gives the check of each text `policy_check_timeout_s` of CPU time, and that "
        "of all texts of a ConfigMap `check_timeout_s`. This text took longer, so the previous "
        "version of its policy stays active; other texts take effect. Texts that exceeded a limit "
        "are checked last the next time. `policysched lint` checks the same text without limits.",
        bad_example="",
        good_example="",
    ),
)
