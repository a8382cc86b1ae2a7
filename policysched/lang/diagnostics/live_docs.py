"""The catalogue's entries for what can be said only of a running scheduler or with its settings at hand. No text draws them, so they have no examples."""

from policysched.lang.diagnostics.diagnostic_doc import DiagnosticDoc
from policysched.text import Severity

LIVE_DOCS = (
    DiagnosticDoc(
        "PS901",
        "check-did-not-finish",
        Severity.ERROR,
        "a ConfigMap's policies could not be checked in the time and memory that a check has",
        "The running scheduler checks policies in a process of its own, with a limit on time and memory, so that no edit "
        "can stop it. The check of this ConfigMap's texts ended by that limit, or its process died. Nobody can say "
        "which text is to blame, so none of them is accepted and the policies from before run on. The key that was "
        "edited last is the likely cause: make it smaller, or take it out. `policysched lint` checks the same texts "
        "without the limit.",
        bad_example="",
        good_example="",
    ),
    DiagnosticDoc(
        "PS902",
        "metric-without-source",
        Severity.WARNING,
        "no source of the settings brings samples of a metric",
        "Where samples come from stands in the operator's settings, so only with these at hand can it be said: "
        "`policysched lint --config settings.yaml my.policy`. The metric names a source that is not there, names none where there are "
        "several and no default, or asks one for what it does not have. The scheduler runs such a policy with the metric "
        "missing for every node, and says so in an event MetricWithoutSource.",
        bad_example="",
        good_example="",
    ),
    DiagnosticDoc(
        "PS903",
        "metric-without-series",
        Severity.WARNING,
        "the server has no series for a metric's query now, or none with the label that joins",
        "`policysched lint --config settings.yaml --live my.policy` asks the servers. A metric that never existed is mostly a "
        "name or a label that is spelt in another way there; one that an exporter brings only at times is missing for as long. "
        "The policy runs all the same, with the metric missing.",
        bad_example="",
        good_example="",
    ),
    DiagnosticDoc(
        "PS904",
        "query-refused",
        Severity.WARNING,
        "the server cannot make sense of a metric's query, or answers with another type than one value for each series",
        "`policysched lint --config settings.yaml --live my.policy` asks the servers and repeats what they say. A query must "
        "give an instant vector: no scalar, and no range such as `up[5m]` without a function around it.",
        bad_example="",
        good_example="",
    ),
    DiagnosticDoc(
        "PS905",
        "doubled-series",
        Severity.WARNING,
        "several series of a metric are for one node",
        "`policysched lint --config settings.yaml --live my.policy` asks the servers. Nobody knows which of the series counts, "
        "so the node is left without a sample. `sum by (instance) (...)` makes one of the devices' series.",
        bad_example="",
        good_example="",
    ),
    DiagnosticDoc(
        "PS906",
        "extender-not-set-up",
        Severity.ERROR,
        "the settings do not have an extender that a policy asks, or not the verb that it is asked for",
        "Where an extender is and what it can be asked stands in the operator's settings, under `extenders`, so only with these at hand "
        "can it be said: `policysched lint --config settings.yaml my.policy`. The scheduler does not run such a policy, for its pods would "
        "go where the extender might have refused them; the text from before runs on. Name the extender in the settings and "
        "restart, or take the statement out.",
        bad_example="",
        good_example="",
    ),
    DiagnosticDoc(
        "PS907",
        "not-text",
        Severity.ERROR,
        "a key of the policies' ConfigMap is not UTF-8 text",
        "`kubectl create configmap --from-file` puts a file that is not UTF-8 under `binaryData`, without a word. Such files come from editors and "
        "shells that write another encoding: Latin-1, or UTF-16 as the `>` of PowerShell. The key is refused, and its policy runs on with the "
        "text from before. Save the file as UTF-8 and apply it again.",
        bad_example="",
        good_example="",
    ),
)
