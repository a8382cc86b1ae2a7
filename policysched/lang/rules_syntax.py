"""Diagnostics about the lint run itself (`PS0xx`) and about syntax (`PS1xx`)."""

from policysched.lang.rule_doc import RuleDoc
from policysched.text import Severity

_HEAD = "policy example version 1\ninclude kube_default\n"


def _rule(
    code: str,
    name: str,
    summary: str,
    explanation: str,
    *,
    bad: str,
    good: str,
    severity: Severity = Severity.ERROR,
    head: str = _HEAD,
) -> RuleDoc:
    return RuleDoc(code, name, severity, summary, explanation, f"{head}{bad}\n", f"{head}{good}\n")


_CONFIG_MAP = """apiVersion: v1
kind: ConfigMap
metadata: {name: policies, namespace: kube-system}
data:
"""

SYNTAX_RULES: tuple[RuleDoc, ...] = (
    # ── meta ────────────────────────────────────────────────────────────────────────────────────────────────────────
    _rule(
        "PS001",
        "unused-ignore",
        "a comment ignores a diagnostic that is not there",
        "A comment `# policysched: ignore[CODE] why` silences a diagnostic on its own line or on the line below. "
        "When the cause is gone the comment should go as well, or it will hide the next one. Errors cannot be ignored: the "
        "scheduler would refuse the policy all the same.",
        bad="policy example version 1  # policysched: ignore[PS412] we are alone here\ninclude kube_default",
        good="policy default-scheduler version 1  # policysched: ignore[PS412] we are alone here\ninclude kube_default",
        head="",
        severity=Severity.WARNING,
    ),
    _rule(
        "PS002",
        "ignore-without-reason",
        "a comment ignores a diagnostic and does not say why",
        "Whoever reads the policy next needs the reason, to know when the comment can go. It stands behind the bracket.",
        bad="policy default-scheduler version 1  # policysched: ignore[PS412]\ninclude kube_default",
        good="policy default-scheduler version 1  # policysched: ignore[PS412] we are alone here\ninclude kube_default",
        head="",
        severity=Severity.WARNING,
    ),
    _rule(
        "PS003",
        "unsupported-version",
        "the policy is written in a version of the language that this program does not know",
        "The header says which version of the language the text is in, so that its meaning never changes under it.",
        bad="policy example version 2\ninclude kube_default",
        good="policy example version 1\ninclude kube_default",
        head="",
    ),
    _rule(
        "PS005",
        "policy-too-large",
        "the text is larger than 256 KiB",
        "A ConfigMap holds at most 1 MiB in all, and a policy of this size is no longer read by people. "
        "Shared rules can stand in a library, which other policies `include`.",
        bad="# " + "x" * (256 * 1024),
        good="# a short comment",
    ),
    # ── syntax ──────────────────────────────────────────────────────────────────────────────────────────────────────
    _rule(
        "PS101",
        "unexpected-text",
        "something stands where it cannot",
        "The reader had understood the statement up to this point. The help says what could follow.",
        bad="let small_cpu = 100m",
        good="let small_cpu: cpu = 100m",
    ),
    _rule(
        "PS102",
        "unclosed-bracket",
        "a brace, parenthesis or bracket is never closed",
        "The diagnostic points at the one that was opened, and at where its end was noticed to be missing.",
        bad="gang by pod.owner.name {\n  min = 2\n\nfilter ready require node.ready",
        good="gang by pod.owner.name {\n  min = 2\n}\n\nfilter ready require node.ready",
    ),
    _rule(
        "PS103",
        "unterminated-string",
        'a text has no closing `"`',
        "A text begins and ends on one line. A line break in it is written `\\n`.",
        bad='filter rack reject node.labels["rack"] == "r17',
        good='filter rack reject node.labels["rack"] == "r17"',
    ),
    _rule(
        "PS104",
        "bad-number",
        "a number is not written as one",
        "Numbers are digits with at most one decimal point and a unit without a space: `10%`, `5m`, `1.5Gi`. "
        "There are no decimal commas, exponents or digit groups.",
        bad="filter roomy require node.free.memory > 1,5Gi",
        good="filter roomy require node.free.memory > 1.5Gi",
    ),
    _rule(
        "PS105",
        "not-a-block-scalar",
        "the policy is a quoted text in the YAML file",
        "In a quoted text the policy has no lines of its own, so diagnostics can only point at its key, and people cannot "
        "read it. Write it as a block: `key: |` and the policy indented below. (`kubectl get -o yaml` prints a quoted text when "
        "a line has a tab, a trailing space or a carriage return; `policysched fmt` removes these.)",
        bad=_CONFIG_MAP + '  example.policy: "policy example version 1\\ninclude kube_default\\n"',
        good=_CONFIG_MAP + "  example.policy: |\n    policy example version 1\n    include kube_default",
        severity=Severity.HINT,
        head="",
    ),
    _rule(
        "PS106",
        "misspelt-word",
        "a word of the language is misspelt",
        "The word is close to one that can stand here. Words of the language are written in lower case.",
        bad="filter roomy requires node.free.memory > 1Gi",
        good="filter roomy require node.free.memory > 1Gi",
    ),
    _rule(
        "PS107",
        "unknown-statement",
        "a line begins with a word that begins no statement",
        "Every statement begins with its keyword at the beginning of a line.",
        bad="rule roomy { memory: 1Gi }",
        good="filter roomy require node.free.memory > 1Gi",
    ),
    _rule(
        "PS108",
        "unopened-bracket",
        "a closing brace, parenthesis or bracket closes nothing",
        "Either it is one too many, or the opening one was lost.",
        bad="filter roomy require node.free.memory > 1Gi }",
        good="filter roomy require node.free.memory > 1Gi",
    ),
    _rule(
        "PS109",
        "missing-value",
        "a value or condition is missing",
        "The word or operator before needs something behind it.",
        bad="filter roomy require missing pass",
        good="filter roomy require node.free.memory > 1Gi",
    ),
    _rule(
        "PS110",
        "equals-sign",
        "`=` and `==` are mixed up",
        "`==` compares two values in a condition; `=` gives a value to a name.",
        bad='filter pool require node.labels["pool"] = "general"',
        good='filter pool reject node.labels["pool"] == "general"',
    ),
    _rule(
        "PS111",
        "symbol-operator",
        "`&&`, `||` or `!` stands for a word",
        "Conditions are joined with the words `and`, `or` and `not`.",
        bad="filter roomy require node.ready && node.free.memory > 1Gi",
        good="filter roomy require node.ready and node.free.memory > 1Gi",
    ),
    _rule(
        "PS112",
        "unquoted-key",
        "the key of a label, annotation or resource is not quoted",
        "Keys hold dots, slashes and dashes, so they always stand in quotes.",
        bad='filter zone reject node.labels[topology.kubernetes.io/zone] == "z1"',
        good='filter zone reject node.labels["topology.kubernetes.io/zone"] == "z1"',
    ),
    _rule(
        "PS113",
        "wrong-quotes",
        'a text is quoted with something else than `"`',
        'Single quotes and the curly quotes of word processors quote nothing here. Inside a text in `"` they may stand.',
        bad="filter batch reject pod.namespace == 'batch'",
        good='filter batch reject pod.namespace == "batch"',
    ),
    _rule(
        "PS114",
        "bad-weight",
        "a weight is not a whole number",
        "Weights count relative to each other: a rule of weight 4 counts twice as much as one of weight 2.",
        bad="score roomy weight 50% prefer node.free.memory > 1Gi",
        good="score roomy weight 50 prefer node.free.memory > 1Gi",
    ),
    _rule(
        "PS115",
        "trailing-comma",
        "a comma has nothing behind it",
        "Commas stand between things; the last thing of a list has none behind it.",
        bad='filter batch reject pod.namespace in ["batch", "ml",]',
        good='filter batch reject pod.namespace in ["batch", "ml"]',
    ),
    _rule(
        "PS116",
        "order-before-key",
        "`asc` or `desc` stands before what it orders",
        "Each key of the queue is followed by its direction.",
        bad="queue by desc pod.priority, pod.created",
        good="queue by pod.priority desc, pod.created",
    ),
    _rule(
        "PS117",
        "wrong-comment",
        "a comment begins with `//` or `/*`",
        "Comments begin with `#` and go to the end of the line.",
        bad="filter ready require node.ready // only ready nodes",
        good="filter ready require node.ready  # only ready nodes",
    ),
    _rule(
        "PS118",
        "tab",
        "a tab stands in the text",
        "YAML cannot hold a tab in a readable block: `kubectl get -o yaml` would show the whole policy as one quoted line.",
        bad="filter ready\n\trequire node.ready",
        good="filter ready\n  require node.ready",
    ),
    _rule(
        "PS119",
        "clause-order",
        "the clauses of a rule stand in another order",
        "Rules are easier to compare when all are written alike: a filter says `when`, `require` or `reject`, `missing`, `scaleup` "
        'and `else "text"`; a score says `weight`, `when`, `lower`, `higher` or `prefer`, `normalize` and `missing`.',
        bad='filter rack scaleup no reject node.labels["rack"] == "r17"',
        good='filter rack reject node.labels["rack"] == "r17" scaleup no',
    ),
    _rule(
        "PS120",
        "repeated-clause",
        "a clause stands twice in one rule",
        "It would not be clear which of the two counts. Conditions are joined with `and`.",
        bad="filter roomy require node.ready require node.free.memory > 1Gi",
        good="filter roomy require node.ready and node.free.memory > 1Gi",
    ),
    _rule(
        "PS121",
        "misplaced-clause",
        "a clause stands in a rule of another kind",
        "Filters decide where a pod can run, scores order what is left; their clauses differ.",
        bad="filter roomy weight 3 require node.free.memory > 1Gi",
        good="filter roomy require node.free.memory > 1Gi",
    ),
    _rule(
        "PS122",
        "reserved-word",
        "a word is reserved and cannot be used so",
        "Words of the language, and some that later versions will need, cannot be names, or a policy could no longer be read.",
        bad='input queue: string = pod.labels["queue"] optional',
        good='input queue_name: string = pod.labels["queue"] optional',
    ),
    _rule(
        "PS123",
        "template-syntax",
        "`{{`, `${` or `$(` stands in the text",
        "Policies are shipped in ConfigMaps, often through Helm, kustomize or a CI system, which would replace it.",
        bad='filter rack reject node.labels["rack"] == "{{ .Values.rack }}"',
        good='filter rack reject node.labels["rack"] == "r17"',
    ),
    _rule(
        "PS124",
        "bad-escape",
        "an unknown escape stands in a text",
        'The escapes are `\\"`, `\\\\` and `\\n`. The backslash of a regular expression is written twice.',
        bad='filter rack reject node.labels["rack"] == "r\\d"',
        good='filter rack reject node.labels["rack"] == "r\\\\d"',
    ),
    _rule(
        "PS125",
        "nesting-too-deep",
        "brackets or operators are nested more than 64 deep",
        "No person reads that; a generated policy is better made of many rules.",
        bad="filter ready require " + "not " * 70 + "node.ready",
        good="filter ready require node.ready",
    ),
    _rule(
        "PS126",
        "expression-too-large",
        "an expression has more than 500 parts",
        'Many comparisons of one value are written `x in ["a", "b"]`; other conditions can be split into several rules.',
        bad="filter roomy require " + " and ".join(["node.free.memory > 1Gi"] * 150),
        good="filter roomy require node.free.memory > 1Gi",
    ),
    _rule(
        "PS127",
        "misplaced-statement",
        "a statement stands where it cannot",
        "A statement begins on a line of its own. Layers hold rules and changes of rules, nothing else.",
        bad="filter ready require node.ready filter roomy require node.free.memory > 1Gi",
        good="filter ready require node.ready\nfilter roomy require node.free.memory > 1Gi",
    ),
    _rule(
        "PS128",
        "chained-comparison",
        "comparisons follow each other",
        "`a < b < c` means different things in different languages; here it is written `a < b and b < c`.",
        bad="filter roomy require 1Gi < node.free.memory < 64Gi",
        good="filter roomy require 1Gi < node.free.memory and node.free.memory < 64Gi",
    ),
    _rule(
        "PS129",
        "bad-policy-name",
        "the name of a policy is not a DNS label",
        "The name is what pods write as `schedulerName`: lower-case letters, digits and dashes, at most 63 characters.",
        bad="policy Network_Aware version 1\ninclude kube_default",
        good="policy network-aware version 1\ninclude kube_default",
        head="",
    ),
    _rule(
        "PS130",
        "stray-character",
        "a character means nothing in the language",
        "Often it came along with a copy from a web page or a chat, such as a space that does not break.",
        bad="filter ready require node.ready;",
        good="filter ready require node.ready",
    ),
    _rule(
        "PS131",
        "missing-block",
        "the `{` of a statement is missing",
        "Parameters stand in braces, also where there is only one.",
        bad="outage\n  above = 50%\n  then = disable\n}",
        good="outage {\n  above = 50%\n  then = disable\n}",
    ),
    _rule(
        "PS132",
        "incomplete-if",
        "an `if` lacks its `then` or `else`, or stands in the middle of an expression without parentheses",
        "`if CONDITION then VALUE else VALUE` always has a value of its own. What follows `else` goes on to the end, so beside "
        "an operator the whole stands in parentheses.",
        bad="score calm weight 1 higher if node.pods > 50 then 0 normalize range(0, 10)",
        good="score calm weight 1 higher if node.pods > 50 then 0 else 10 normalize range(0, 10)",
    ),
)
