"""Diagnostics about names, types and units (`PS2xx`)."""

from policysched.lang.diagnostics.diagnostic_doc import DiagnosticDoc, diagnostic_doc
from policysched.text import Severity

_METRIC_EXAMPLE = """metric cpu_util: ratio {
  query = "1 - avg by (instance) (rate(node_cpu_seconds_total{mode='idle'}[2m]))"
  unit  = "1"
  join  = instance
  every = 15s
  stale = 90s
}
"""
_GANG_EXAMPLE = """gang by pod.labels["job-name"] { min = 1  mode = gate  timeout = 5m }
"""
_PAIR_METRIC_EXAMPLE = f"""metric talk: bandwidth {{
  query = "sum by (namespace, pod, peer_namespace, peer_pod) (rate(flow_bytes_total[1h]))"
  unit  = "B/s"
  from  = ["namespace", "pod"]
  to    = ["peer_namespace", "peer_pod"]
  every = 30s
  stale = 10m
}}
{_GANG_EXAMPLE}"""

NAME_DOCS: tuple[DiagnosticDoc, ...] = (
    diagnostic_doc(
        "PS201",
        "unguarded-optional",
        "an optional value is read without a check",
        "A label, an annotation or an optional input can be absent. Check it with `has` (in "
        "`when`, or before `and`), or give a fallback with `else`. A `reject` needs no check "
        "for labels of the node: if the label is absent, the node is not rejected.",
        bad='filter pool require node.labels["pool"] == "batch"',
        good='filter pool require has node.labels["pool"] and node.labels["pool"] == "batch"',
    ),
    diagnostic_doc(
        "PS202",
        "type-mismatch",
        "a value has the wrong type",
        "There are no implicit conversions. A label is a string even if it looks like a number; "
        "declare an `input` to parse it.",
        bad='filter size when has pod.labels["size"] require pod.labels["size"] == 4',
        good='filter size when has pod.labels["size"] require pod.labels["size"] == "4"',
    ),
    diagnostic_doc(
        "PS203",
        "ambiguous-unit",
        "a unit suffix is ambiguous",
        "`100m` is a tenth of a core if a cpu amount is expected, and a hundred minutes if a "
        "duration is. Declare a type.",
        bad="filter few require count(pods on node) < 100m",
        good="filter few require count(pods on node) < 100",
    ),
    diagnostic_doc(
        "PS204",
        "dimension-mismatch",
        "two amounts have different dimensions",
        "Cores and bytes have no common unit. Divide each by an amount of its own dimension to "
        "get plain numbers.",
        bad="filter room require node.free.cpu > node.free.memory",
        good="filter room require node.free.cpu > pod.requests.cpu",
    ),
    diagnostic_doc(
        "PS205",
        "milli-memory",
        "`m` is used as a unit of bytes",
        "`128m` of memory is a common mistake in manifests: Kubernetes reads it as thousandths "
        "of a byte. Use `Mi`.",
        bad="filter big require node.free.memory > 512m",
        good="filter big require node.free.memory > 512Mi",
    ),
    diagnostic_doc(
        "PS206",
        "decimal-size",
        "a size uses a decimal unit where a binary one is likely meant",
        "`512M` is 512,000,000 bytes; `512Mi` is 536,870,912. Memory is usually given in binary units.",
        bad="filter big require node.free.memory > 512M",
        good="filter big require node.free.memory > 512Mi",
        severity=Severity.HINT,
    ),
    diagnostic_doc(
        "PS207",
        "wrong-unit",
        "a unit is unknown or missing",
        "Bandwidths and durations always need a unit: `800Mbps` (bits), `100MBps` (bytes), `90s`.",
        bad='input wait: duration = pod.labels["wait"] default 90 invalid default\nqueue by wait',
        good='input wait: duration = pod.labels["wait"] default 90s invalid default\nqueue by wait',
    ),
    diagnostic_doc(
        "PS208",
        "out-of-range",
        "a number is out of range",
        "Amounts are whole thousandths of a core, bytes or nanoseconds, and fit in 64 bits. "
        "Weights are at most 1,000,000; scores are 0 to 100.",
        bad="let step: cpu = 0.0001\nfilter room require node.free.cpu > step",
        good="let step: cpu = 1m\nfilter room require node.free.cpu > step",
    ),
    diagnostic_doc(
        "PS209",
        "wrong-arguments",
        "a function has the wrong number of arguments",
        "`clamp(x, low, high)`, `normal_cdf` and `beta_cdf` take three arguments, `rank(x, "
        "[...])` and `window` two, `min` and `max` two or more, `round` one and an optional "
        "rounding mode, `traffic_to` one to three, all others one.",
        bad="queue by clamp(pod.priority, 10)",
        good="queue by clamp(pod.priority, 0, 10)",
    ),
    diagnostic_doc(
        "PS210",
        "unknown-name",
        "a name is not declared",
        "Bare names are declared with `param`, `let`, `input`, `metric` or `state`, above their "
        "first use. Attributes are written with their owner: `pod.qos`. Strings are quoted.",
        bad="filter room require node.free.cpu > headroom",
        good="let headroom: cpu = 500m\nfilter room require node.free.cpu > headroom",
    ),
    diagnostic_doc(
        "PS211",
        "unknown-attribute",
        "a pod, node or namespace has no such attribute",
        "See the documentation for the list of attributes. Maps such as `labels` are read with a key.",
        bad="filter room require node.free_cpu > pod.requests.cpu",
        good="filter room require node.free.cpu > pod.requests.cpu",
    ),
    diagnostic_doc(
        "PS212",
        "unknown-choice",
        "a keyword argument is not one of the allowed choices",
        "Choices such as `missing reject`, `on_timeout = requeue` or `normalize max` are bare "
        "words from a fixed set.",
        bad=f"{_METRIC_EXAMPLE}filter cool require cpu_util < 85% missing rejct",
        good=f"{_METRIC_EXAMPLE}filter cool require cpu_util < 85% missing reject",
    ),
    diagnostic_doc(
        "PS213",
        "duplicate-name",
        "a name is already declared",
        "Events and metrics refer to filters, scores, layers and declarations by name, so names "
        "are unique. Use `amend`, `replace`, `reweight` or `drop` to change an existing rule.",
        bad="filter node_ports when pod.priority < 100",
        good="amend node_ports when pod.priority < 100",
    ),
    diagnostic_doc(
        "PS214",
        "clause-required",
        "a required clause is missing",
        "The policy must state what happens if a sample or a label is absent, or a string "
        "cannot be parsed: `missing ...`, `default ...`, `optional`, `invalid ...`. There is no "
        "implicit default.",
        bad=f"{_METRIC_EXAMPLE}filter cool require cpu_util < 85%",
        good=f"{_METRIC_EXAMPLE}filter cool require cpu_util < 85% missing pass",
    ),
    diagnostic_doc(
        "PS215",
        "mixed-share-key",
        "a queue key combines a namespace share with something else",
        "Every placement changes the share of a namespace, and with it the position of all its "
        "pods. The queue stays efficient as long as a share only orders namespaces, and other "
        "keys order the pods within a namespace.",
        bad="queue by namespace.share.cpu * 100 - pod.priority else 0",
        good="queue by namespace.share.cpu, pod.priority desc",
    ),
    diagnostic_doc(
        "PS216",
        "key-without-brackets",
        "the key of a label is not quoted",
        "Keys contain dots, dashes and slashes, so they are written in brackets and quotes.",
        bad='filter app reject node.labels.pool == "spare"',
        good='filter app reject node.labels["pool"] == "spare"',
    ),
    diagnostic_doc(
        "PS217",
        "clause-not-allowed",
        "a clause is not allowed in this rule or declaration",
        "A built-in has its own messages and scale, `prefer` scores 100 or 0, and a record "
        "field is always part of an input.",
        bad='amend node_ports scaleup no says "no port is free"',
        good="amend node_ports when pod.priority < 100",
    ),
    diagnostic_doc(
        "PS218",
        "else-required",
        "an operation can be undefined",
        "Division by zero, the logarithm of zero and the square root of a negative number have "
        "no value. Give a fallback with `else`.",
        bad="score pack weight 1 higher node.requested.cpu / node.allocatable.cpu normalize range(0%, 100%)",
        good="score pack weight 1 higher node.requested.cpu / node.allocatable.cpu else 0 normalize range(0%, 100%)",
    ),
    diagnostic_doc(
        "PS219",
        "builtin-name",
        "the name of a built-in is used for another rule",
        "The name of a built-in always refers to kube-scheduler's rule, so that events are unambiguous.",
        bad="replace filter node_ports require pod.priority > 100",
        good="filter important require pod.priority > 100",
    ),
    diagnostic_doc(
        "PS220",
        "not-available-here",
        "a value is not available here",
        "Layers and the queue are evaluated before a node is chosen, and `when` is evaluated "
        "before metrics are read. `victim` is available only in `preemption`, `other` only in "
        "`count(pods where ...)`.",
        bad="queue by node.free.cpu desc",
        good="queue by pod.requests.cpu desc",
    ),
    diagnostic_doc(
        "PS221",
        "not-constant",
        "a constant is required",
        "List items, label keys and parameter values must be the same for every pod and node.",
        bad='filter ns require pod.namespace in ["batch", pod.name]',
        good='filter ns require pod.namespace in ["batch", "ml"]',
    ),
    diagnostic_doc(
        "PS222",
        "unknown-parameter",
        "a parameter is unknown",
        "Each metric, gang and built-in has its own parameters. A misspelled parameter would "
        "otherwise be ignored silently.",
        bad="replace score node_resources_fit weight 1 { strateg = most_allocated }",
        good="replace score node_resources_fit weight 1 { strategy = most_allocated }",
    ),
    diagnostic_doc(
        "PS223",
        "parameter-required",
        "a required parameter is missing",
        "For example, a metric needs its query, its unit, how samples map to nodes, how often "
        "it is polled and when a sample is stale.",
        bad="gang by pod.name { timeout = 5m }",
        good="gang by pod.name { min = 2  timeout = 5m }",
    ),
    diagnostic_doc(
        "PS225",
        "unknown-include",
        "an include target does not exist or is not a library",
        "A library is another key of the same ConfigMap, or another file in the same directory, "
        "and begins with `library`.",
        bad='include "bse.policy"',
        good='include "base.policy"',
        others=(("base.policy", "library base version 1\nfilter important reject pod.priority < 0\n"),),
    ),
    diagnostic_doc(
        "PS226",
        "unknown-default-version",
        "the defaults of this kube-scheduler release are unknown",
        "`include kube_default` adds the filters, scores and weights of one kube-scheduler "
        "release. A pinned release must be a supported one.",
        bad='include kube_default "1.20"',
        good='include kube_default "1.37"',
        head="policy example version 1\n",
    ),
    diagnostic_doc(
        "PS227",
        "broken-library",
        "an included library has errors",
        "The errors are reported in the library. Policies that include it stay at their last "
        "valid version until the library is fixed.",
        bad='include "broken.policy"',
        good='include "base.policy"',
        others=(
            ("base.policy", "library base version 1\nfilter important reject pod.priority < 0\n"),
            ("broken.policy", "library broken version 1\nfilter important reject pod.prioritty < 0\n"),
        ),
    ),
    diagnostic_doc(
        "PS228",
        "include-cycle",
        "libraries include each other in a cycle",
        "Remove one of the includes, and move shared declarations to a third library.",
        bad='library example version 1\ninclude "other.policy"',
        good="library example version 1",
        head="",
        others=(("other.policy", 'library other version 1\ninclude "example.policy"\n'),),
    ),
    diagnostic_doc(
        "PS229",
        "unknown-rule",
        "a change refers to a rule that does not exist",
        "`amend`, `replace`, `reweight` and `drop` change a rule that is declared or included above.",
        bad="reweight image_locallity 2",
        good="reweight image_locality 2",
    ),
    diagnostic_doc(
        "PS230",
        "locked-rule",
        "a locked rule cannot be changed",
        "A library marks rules that every policy must keep as `locked`.",
        bad='include "base.policy"\ndrop important',
        good='include "base.policy"',
        others=(
            ("base.policy", "library base version 1\nlocked filter important reject pod.priority < 0\n"),
        ),
    ),
    diagnostic_doc(
        "PS231",
        "ambiguous-rule",
        "a change matches both a filter and a score",
        "Many kube-scheduler plugins are both. Say which one is meant.",
        bad="amend taint_toleration when pod.priority < 1000",
        good="amend filter taint_toleration when pod.priority < 1000",
    ),
    diagnostic_doc(
        "PS232",
        "no-header",
        "the header is missing or is not first",
        "`policy NAME version 1` declares a policy that pods select with `schedulerName: NAME`; "
        "`library NAME version 1` declares a library for other policies to include.",
        bad="include kube_default",
        good="policy example version 1\ninclude kube_default",
        head="",
    ),
    diagnostic_doc(
        "PS233",
        "policy-name-taken",
        "two policies have the same name",
        "Pods select a policy by name. The first policy, in the order of the keys, stays active.",
        bad="policy first version 1\ninclude kube_default",
        good="policy second version 1\ninclude kube_default",
        head="",
        others=(("a.policy", "policy first version 1\ninclude kube_default\n"),),
    ),
    diagnostic_doc(
        "PS234",
        "reserved-resource-name",
        "a resource has the name of a Kubernetes resource",
        "`node.free.cpu` must keep the meaning it has in kube-scheduler. Choose another name.",
        bad="resource cpu { capacity = 4, request = 1 }",
        good="resource licences { capacity = 4, request = 1 }\nfilter enough require pod.requests.licences <= node.free.licences",
    ),
    diagnostic_doc(
        "PS235",
        "topology-requires-whole",
        "`topology` and `on_bind_failure = evict` require `mode = whole`",
        "`topology` places all members of a gang in one topology domain, and `on_bind_failure = evict` keeps a gang "
        "from running in part. Both need one decision for all members; `mode = gate` places each member by itself.",
        bad='gang by pod.owner.name { min = 2  timeout = 5m  mode = gate  topology = "rack" }',
        good='gang by pod.owner.name { min = 2  timeout = 5m  topology = "rack" }',
    ),
    diagnostic_doc(
        "PS236",
        "bad-placeholder",
        "a placeholder in a message is invalid",
        "A placeholder is a declared name or an attribute in braces: `{net_rx}`, `{node.free.cpu}`.",
        bad='filter few require count(pods on node) < 50 says "has {count(pods)} pods"',
        good='filter few require count(pods on node) < 50 says "has {node.pods} pods"',
    ),
    diagnostic_doc(
        "PS237",
        "unknown-type",
        "a type is unknown or not allowed here",
        "Inputs are single values or lists; metrics are numbers.",
        bad='input size: number = pod.labels["size"] default 1 invalid default\nqueue by size',
        good='input size: int = pod.labels["size"] default 1 invalid default\nqueue by size',
    ),
    diagnostic_doc(
        "PS238",
        "bad-window",
        "a weekly window is malformed",
        "A window has days and hours, `Mon-Fri 07:00-19:00`, separated by commas if there are "
        "several, and a time zone such as `Europe/Zurich`.",
        bad='filter hours require window("weekdays 07:00-19:00", "UTC")',
        good='filter hours require window("Mon-Fri 07:00-19:00", "UTC")',
    ),
    diagnostic_doc(
        "PS245",
        "invalid-recover",
        "`recover` does not follow a metric limit, or its value is on the wrong side of the limit",
        "`require METRIC < LIMIT recover VALUE for DURATION` keeps rejecting a node that "
        "exceeded the limit until its samples stay below the recovery value for the duration. "
        "This prevents flapping around the limit. Both are constants, and the recovery value is "
        "on the passing side of the limit.",
        bad=f"{_METRIC_EXAMPLE}filter cool require cpu_util < 85% recover 90% for 2m missing pass",
        good=f"{_METRIC_EXAMPLE}filter cool require cpu_util < 85% recover 70% for 2m missing pass",
    ),
    diagnostic_doc(
        "PS246",
        "nested-after-placing",
        "`after placing` is nested, or more than one aggregate depends on the placement",
        "Inside `... over nodes after placing`, every aggregate already includes the pod on the "
        "candidate node; a nested `after placing` would place the pod twice. At most one "
        "aggregate may depend on the candidate, because the value is recomputed for each "
        "candidate.",
        bad="score even weight 1 lower mean of abs(node.pods - mean of node.pods * node.pods over nodes after placing) over nodes after placing normalize minmax",
        good="score even weight 1 lower mean of abs(node.pods - mean of node.pods * node.pods over nodes) over nodes after placing normalize minmax",
    ),
    diagnostic_doc(
        "PS247",
        "metric-between-pods",
        "a metric between pods is used as a node metric, or the reverse",
        "A metric with `from` and `to` has one value per pair of pods. `traffic_to(gang)` sums "
        "it between the pod and the members of its gang on a node, which gives one value per "
        "node.",
        bad=f"{_PAIR_METRIC_EXAMPLE}score near weight 1 higher talk normalize range(0bps, 1Gbps) missing neutral",
        good=f"{_PAIR_METRIC_EXAMPLE}score near weight 1 higher traffic_to(gang) normalize range(0bps, 1Gbps) missing neutral",
    ),
    diagnostic_doc(
        "PS248",
        "ambiguous-traffic",
        "`traffic_to(gang)` has no gang, or its metric is ambiguous",
        "The members are those of the `gang by ...` statement; `mode = gate` is enough. The "
        "metric is the one with `from` and `to`; if there are several, name it: "
        "`traffic_to(gang, METRIC)`.",
        bad=f"{_PAIR_METRIC_EXAMPLE.replace(_GANG_EXAMPLE, '')}score near weight 1 higher traffic_to(gang) normalize range(0bps, 1Gbps) missing neutral",
        good=f"{_PAIR_METRIC_EXAMPLE}score near weight 1 higher traffic_to(gang) normalize range(0bps, 1Gbps) missing neutral",
    ),
    diagnostic_doc(
        "PS249",
        "pod-pair-metric-parameter",
        "a metric between pods has `join` or `sampled_at`",
        "`from` and `to` replace `join`: each names the series labels that identify a pod. "
        "Samples have the age of the poll that returned them.",
        bad=f"{_PAIR_METRIC_EXAMPLE.replace('every', 'join = node  every')}score near weight 1 higher traffic_to(gang) normalize range(0bps, 1Gbps) missing neutral",
        good=f"{_PAIR_METRIC_EXAMPLE}score near weight 1 higher traffic_to(gang) normalize range(0bps, 1Gbps) missing neutral",
    ),
    diagnostic_doc(
        "PS239",
        "too-many-rules",
        "a policy has more than 500 rules",
        "Join rules that differ in one value into one rule with a list: `x in [...]`.",
        bad="\n".join(f"filter f{index} reject pod.priority == {index}" for index in range(500)),
        good="filter f reject pod.priority < 500",
    ),
    diagnostic_doc(
        "PS240",
        "extender-with-whole-gang",
        "a gang in mode `whole` is combined with an extender",
        "A gang is placed whole on a trial snapshot in which its earlier members are already "
        "placed. An extender sees only the real cluster, and its protocol cannot describe pods "
        "that are not there: it could assign its last free device to two members. Use a "
        "separate policy for such gangs, or place members individually with `mode = gate`.",
        bad="gang by pod.owner.name { min = 2  timeout = 5m }\nextender gpu_share weight 5 missing neutral",
        good="gang by pod.owner.name { min = 2  timeout = 5m  mode = gate }\nextender gpu_share weight 5 missing neutral",
    ),
    diagnostic_doc(
        "PS241",
        "too-many-included-statements",
        "the libraries that a text includes have more than 2,000 statements",
        "Each text is checked together with everything that it includes, and each library counts "
        "with those that it includes itself. Include only what the text needs.",
        bad='include "big.policy"',
        good='include "base.policy"',
        others=(
            ("base.policy", "library base version 1\nfilter important reject pod.priority < 0\n"),
            ("big.policy", "library big version 1\n" + "include kube_default\n" * 2_001),
        ),
    ),
)
