"""Diagnostics about the lint run itself (`PS0xx`) and about syntax (`PS1xx`)."""

from policysched.lang.diagnostics.diagnostic_doc import DiagnosticDoc, diagnostic_doc
from policysched.text import Severity

_CONFIG_MAP_EXAMPLE = """apiVersion: v1
kind: ConfigMap
metadata: {name: policies, namespace: kube-system}
data:
"""

SYNTAX_DOCS: tuple[DiagnosticDoc, ...] = (
    # ── meta ─────────────────────────────────────────────────────────────────────────────────────────────────────────
    diagnostic_doc(
        "PS001",
        "unused-ignore",
        "an ignore comment matches no diagnostic",
        "`# policysched: ignore[CODE] reason` silences a diagnostic on its own line, or on the "
        "next line if the comment stands alone. Remove the comment once its cause is gone; "
        "otherwise it hides the next diagnostic of that code. Errors cannot be ignored, because "
        "the scheduler rejects the policy anyway.",
        bad="policy example version 1  # policysched: ignore[PS412] we are alone here\ninclude kube_default",
        good="policy default-scheduler version 1  # policysched: ignore[PS412] we are alone here\ninclude kube_default",
        head="",
        severity=Severity.WARNING,
    ),
    diagnostic_doc(
        "PS002",
        "ignore-without-reason",
        "an ignore comment gives no reason",
        "The reason tells the next reader when the comment can be removed. Write it after the "
        "closing bracket.",
        bad="policy default-scheduler version 1  # policysched: ignore[PS412]\ninclude kube_default",
        good="policy default-scheduler version 1  # policysched: ignore[PS412] we are alone here\ninclude kube_default",
        head="",
        severity=Severity.WARNING,
    ),
    diagnostic_doc(
        "PS003",
        "unsupported-version",
        "the policy uses an unsupported version of the language",
        "The header states the version of the language, so that the meaning of a policy never "
        "changes with an upgrade.",
        bad="policy example version 2\ninclude kube_default",
        good="policy example version 1\ninclude kube_default",
        head="",
    ),
    diagnostic_doc(
        "PS005",
        "policy-too-large",
        "the policy is larger than 256 KiB",
        "A ConfigMap holds at most 1 MiB in total. Move shared rules to a library and `include` it.",
        bad="# " + "x" * (256 * 1024),
        good="# a short comment",
    ),
    diagnostic_doc(
        "PS006",
        "too-many-diagnostics",
        "a text has more than 500 diagnostics",
        "The first 500 are reported, errors before warnings; the others are counted. The severity "
        "is the highest of those that are left out.",
        bad="\n".join(f"drop filter f{index}" for index in range(501)),
        good="drop filter node_name",
    ),
    # ── syntax ───────────────────────────────────────────────────────────────────────────────────────────────────────
    diagnostic_doc(
        "PS101",
        "unexpected-text",
        "a token is not expected here",
        "The statement is valid up to this point. The help lists what can follow.",
        bad="let small_cpu = 100m",
        good="let small_cpu: cpu = 100m",
    ),
    diagnostic_doc(
        "PS102",
        "unclosed-bracket",
        "a brace, parenthesis or bracket is never closed",
        "The diagnostic points at the opening bracket and at the place where the closing one is missing.",
        bad="gang by pod.owner.name {\n  min = 2\n\nfilter ready require node.ready",
        good="gang by pod.owner.name {\n  min = 2\n}\n\nfilter ready require node.ready",
    ),
    diagnostic_doc(
        "PS103",
        "unterminated-string",
        'a string has no closing `"`',
        "A string begins and ends on one line. Write a line break in a string as `\\n`.",
        bad='filter rack reject node.labels["rack"] == "r17',
        good='filter rack reject node.labels["rack"] == "r17"',
    ),
    diagnostic_doc(
        "PS104",
        "bad-number",
        "a number is malformed",
        "A number has digits, at most one decimal point and an optional unit without a space: "
        "`10%`, `5m`, `1.5Gi`. Decimal commas, exponents and digit grouping are not supported.",
        bad="filter roomy require node.free.memory > 1,5Gi",
        good="filter roomy require node.free.memory > 1.5Gi",
    ),
    diagnostic_doc(
        "PS105",
        "not-a-block-scalar",
        "the policy is a quoted YAML string",
        "A quoted YAML string has no lines of its own, so diagnostics can only point at its "
        "key. Write a block scalar: `key: |`, with the policy indented below. (`kubectl get -o "
        "yaml` prints a quoted string if a line contains a tab, a trailing space or a carriage "
        "return; `policysched fmt` removes them.)",
        bad=_CONFIG_MAP_EXAMPLE + '  example.policy: "policy example version 1\\ninclude kube_default\\n"',
        good=_CONFIG_MAP_EXAMPLE
        + "  example.policy: |\n    policy example version 1\n    include kube_default",
        severity=Severity.HINT,
        head="",
    ),
    diagnostic_doc(
        "PS106",
        "misspelled-keyword",
        "a keyword is misspelled",
        "The word is close to a keyword that is valid here. Keywords are lower case.",
        bad="filter roomy requires node.free.memory > 1Gi",
        good="filter roomy require node.free.memory > 1Gi",
    ),
    diagnostic_doc(
        "PS107",
        "unknown-statement",
        "a line does not begin with a statement keyword",
        "Every statement begins with its keyword at the start of a line.",
        bad="rule roomy { memory: 1Gi }",
        good="filter roomy require node.free.memory > 1Gi",
    ),
    diagnostic_doc(
        "PS108",
        "unopened-bracket",
        "a closing brace, parenthesis or bracket has no opening one",
        "Remove it, or add the missing opening bracket.",
        bad="filter roomy require node.free.memory > 1Gi }",
        good="filter roomy require node.free.memory > 1Gi",
    ),
    diagnostic_doc(
        "PS109",
        "missing-value",
        "a value or condition is missing",
        "The preceding keyword or operator needs an operand.",
        bad="filter roomy require missing pass",
        good="filter roomy require node.free.memory > 1Gi",
    ),
    diagnostic_doc(
        "PS110",
        "equals-sign",
        "`=` is used for `==`, or the reverse",
        "`==` compares two values in a condition; `=` assigns a value to a name.",
        bad='filter pool require node.labels["pool"] = "general"',
        good='filter pool reject node.labels["pool"] == "general"',
    ),
    diagnostic_doc(
        "PS111",
        "symbol-operator",
        "`&&`, `||` or `!` is used as an operator",
        "The logical operators are the keywords `and`, `or` and `not`.",
        bad="filter roomy require node.ready && node.free.memory > 1Gi",
        good="filter roomy require node.ready and node.free.memory > 1Gi",
    ),
    diagnostic_doc(
        "PS112",
        "unquoted-key",
        "the key of a label, annotation or resource is not quoted",
        "Keys contain dots, slashes and dashes, so they are always quoted.",
        bad='filter zone reject node.labels[topology.kubernetes.io/zone] == "z1"',
        good='filter zone reject node.labels["topology.kubernetes.io/zone"] == "z1"',
    ),
    diagnostic_doc(
        "PS113",
        "wrong-quotes",
        'a string is not quoted with `"`',
        'Only `"` delimits a string. Single quotes and typographic quotes are allowed inside one.',
        bad="filter batch reject pod.namespace == 'batch'",
        good='filter batch reject pod.namespace == "batch"',
    ),
    diagnostic_doc(
        "PS114",
        "bad-weight",
        "a weight is not a whole number",
        "Weights are relative to each other: a rule of weight 4 counts twice as much as a rule of weight 2.",
        bad="score roomy weight 50% prefer node.free.memory > 1Gi",
        good="score roomy weight 50 prefer node.free.memory > 1Gi",
    ),
    diagnostic_doc(
        "PS115",
        "trailing-comma",
        "a list ends with a comma",
        "Commas separate items; there is none after the last item.",
        bad='filter batch reject pod.namespace in ["batch", "ml",]',
        good='filter batch reject pod.namespace in ["batch", "ml"]',
    ),
    diagnostic_doc(
        "PS116",
        "order-before-key",
        "`asc` or `desc` precedes its key",
        "In `queue by`, each key is followed by its direction.",
        bad="queue by desc pod.priority, pod.created",
        good="queue by pod.priority desc, pod.created",
    ),
    diagnostic_doc(
        "PS117",
        "wrong-comment",
        "a comment begins with `//` or `/*`",
        "A comment begins with `#` and ends with the line.",
        bad="filter ready require node.ready // only ready nodes",
        good="filter ready require node.ready  # only ready nodes",
    ),
    diagnostic_doc(
        "PS118",
        "tab",
        "the policy contains a tab",
        "YAML cannot represent a tab in a block scalar: `kubectl get -o yaml` would print the "
        "whole policy as one quoted line.",
        bad="filter ready\n\trequire node.ready",
        good="filter ready\n  require node.ready",
    ),
    diagnostic_doc(
        "PS119",
        "clause-order",
        "the clauses of a rule are out of order",
        "Rules are easier to compare if all are written alike. The order in a filter is `when`, "
        '`require` or `reject`, `missing`, `scaleup`, `says "message"`; in a score it is '
        "`weight`, `when`, `lower`, `higher` or `prefer`, `normalize`, `missing`.",
        bad='filter rack scaleup no reject node.labels["rack"] == "r17"',
        good='filter rack reject node.labels["rack"] == "r17" scaleup no',
    ),
    diagnostic_doc(
        "PS120",
        "repeated-clause",
        "a rule repeats a clause",
        "Each clause may occur once. Join conditions with `and`.",
        bad="filter roomy require node.ready require node.free.memory > 1Gi",
        good="filter roomy require node.ready and node.free.memory > 1Gi",
    ),
    diagnostic_doc(
        "PS121",
        "misplaced-clause",
        "a clause does not apply to this kind of rule",
        "Filters decide where a pod can run and scores rank the remaining nodes, so their clauses differ.",
        bad="filter roomy weight 3 require node.free.memory > 1Gi",
        good="filter roomy require node.free.memory > 1Gi",
    ),
    diagnostic_doc(
        "PS122",
        "reserved-word",
        "a keyword is used as a name",
        "Keywords, and some words reserved for later versions, cannot be names.",
        bad='input queue: string = pod.labels["queue"] optional',
        good='input queue_name: string = pod.labels["queue"] optional',
    ),
    diagnostic_doc(
        "PS123",
        "template-syntax",
        "the policy contains `{{`, `${` or `$(`",
        "Policies are shipped in ConfigMaps, often through Helm, kustomize or a CI system, "
        "which would substitute it.",
        bad='filter rack reject node.labels["rack"] == "{{ .Values.rack }}"',
        good='filter rack reject node.labels["rack"] == "r17"',
    ),
    diagnostic_doc(
        "PS124",
        "bad-escape",
        "a string contains an unknown escape sequence",
        'The escape sequences are `\\"`, `\\\\` and `\\n`. Write the backslash of a regular '
        "expression twice.",
        bad='filter rack reject node.labels["rack"] == "r\\d"',
        good='filter rack reject node.labels["rack"] == "r\\\\d"',
    ),
    diagnostic_doc(
        "PS125",
        "nesting-too-deep",
        "an expression is nested more than 64 levels deep",
        "Name the inner part with `let`, or split the rule. If the policy is generated, "
        "generate several rules.",
        bad="filter ready require " + "not " * 70 + "node.ready",
        good="filter ready require node.ready",
    ),
    diagnostic_doc(
        "PS126",
        "expression-too-large",
        "an expression has more than 500 nodes",
        'Write comparisons of one value with several constants as `x in ["a", "b"]`; split '
        "other conditions into several rules.",
        bad="filter roomy require " + " and ".join(["node.free.memory > 1Gi"] * 150),
        good="filter roomy require node.free.memory > 1Gi",
    ),
    diagnostic_doc(
        "PS127",
        "misplaced-statement",
        "a statement is not allowed here",
        "Each statement begins on its own line. A layer contains only rules and changes to rules.",
        bad="filter ready require node.ready filter roomy require node.free.memory > 1Gi",
        good="filter ready require node.ready\nfilter roomy require node.free.memory > 1Gi",
    ),
    diagnostic_doc(
        "PS128",
        "chained-comparison",
        "comparisons are chained",
        "`a < b < c` means different things in different languages. Write `a < b and b < c`.",
        bad="filter roomy require 1Gi < node.free.memory < 64Gi",
        good="filter roomy require 1Gi < node.free.memory and node.free.memory < 64Gi",
    ),
    diagnostic_doc(
        "PS129",
        "bad-policy-name",
        "the name of a policy is not a DNS label",
        "Pods select a policy with `schedulerName`, so its name has lower-case letters, digits "
        "and dashes, and at most 63 characters.",
        bad="policy Network_Aware version 1\ninclude kube_default",
        good="policy network-aware version 1\ninclude kube_default",
        head="",
    ),
    diagnostic_doc(
        "PS130",
        "stray-character",
        "a character is not part of the language",
        "Such a character, for example a non-breaking space, is often copied from a web page or a chat. The message "
        "names a letter of another alphabet that looks like a Latin one, such as a Cyrillic `о`.",
        bad="filter ready require node.ready;",
        good="filter ready require node.ready",
    ),
    diagnostic_doc(
        "PS131",
        "missing-block",
        "a statement has no `{`",
        "Parameters are enclosed in braces, even if there is only one.",
        bad="outage\n  above = 50%\n  then = disable\n}",
        good="outage {\n  above = 50%\n  then = disable\n}",
    ),
    diagnostic_doc(
        "PS132",
        "incomplete-if",
        "an `if` has no `then` or `else`, or needs parentheses",
        "`if CONDITION then VALUE else VALUE` always has a value. The part after `else` extends "
        "to the end of the expression, so an `if` that is an operand needs parentheses.",
        bad="score calm weight 1 higher if node.pods > 50 then 0 normalize range(0, 10)",
        good="score calm weight 1 higher if node.pods > 50 then 0 else 10 normalize range(0, 10)",
    ),
    diagnostic_doc(
        "PS133",
        "hidden-character",
        "a string or comment has an invisible character",
        "A character without a width, or one that changes the order of what is shown, hides what a policy compares. A "
        "reviewer does not see it.",
        bad='filter own when pod.namespace == "ml\u200b" require node.ready',
        good='filter own when pod.namespace == "ml" require node.ready',
        severity=Severity.WARNING,
    ),
    diagnostic_doc(
        "PS134",
        "name-too-long",
        "a name has more than 63 characters",
        "Names of rules, parameters and so on are in messages to pods, in labels of metrics and in the log, so they are as "
        "short as a DNS label. The name of a row or of a resource of a quota has at most 317 characters, as the key of a label.",
        bad=f"filter {'very_' * 13}roomy require node.free.memory > 1Gi",
        good="filter very_roomy require node.free.memory > 1Gi",
    ),
    diagnostic_doc(
        "PS135",
        "string-too-long",
        "a string has more than 4,096 characters",
        "Strings are compared for each pod and node, kept with each program, and sent with queries. A value of a parameter has the "
        "same limit, and messages one of 2,000 characters.",
        bad=f'filter own require pod.namespace == "{"x" * 4_097}"',
        good='filter own require pod.namespace == "x"',
    ),
)
