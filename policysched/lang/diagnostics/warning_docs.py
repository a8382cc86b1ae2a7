"""Diagnostics about the logic (`PS3xx`), the operation (`PS4xx`) and the cost (`PS5xx`) of a valid policy."""

from functools import partial

from policysched.lang.diagnostics.diagnostic_doc import DiagnosticDoc, diagnostic_doc
from policysched.text import Severity

_warning_doc = partial(diagnostic_doc, severity=Severity.WARNING)


_METRIC_EXAMPLE = """metric net_rx: bandwidth {
  query = "sum by (instance) (rate(node_network_receive_bytes_total[2m]))"
  unit  = "B/s"
  join  = instance
  every = 15s
  stale = STALE
}
"""

WARNING_DOCS: tuple[DiagnosticDoc, ...] = (
    _warning_doc(
        "PS301",
        "always-true",
        "a condition is always true, or a value is always the same",
        'It has no effect and can be removed, or it does not express what was meant: `x != "a" or x != "b"` is true '
        "for every `x`. Conditions on parameters are not reported.",
        bad="filter room when 1 < 2 require node.free.cpu > 100m",
        good="filter room require node.free.cpu > 100m",
    ),
    _warning_doc(
        "PS302",
        "never-true",
        "a condition is never true",
        "The rule never applies, or rejects every node. This includes conditions that exclude each other, such as "
        "`x < 10 and x > 20`. Conditions on parameters are not reported.",
        bad="filter room when 2 < 1 require node.free.cpu > 100m",
        good="filter room require node.free.cpu > 100m",
    ),
    _warning_doc(
        "PS304",
        "repeated-filter",
        "a filter rejects no node that an earlier one does not reject",
        "It changes neither which nodes pass nor which rejection is counted. Filters that a layer changes, and "
        "conditions on parameters or metrics, are not compared.",
        bad="filter crowded require node.pods < 50\nfilter full require node.pods < 100",
        good="filter full require node.pods < 100\nfilter crowded require node.pods < 50",
    ),
    _warning_doc(
        "PS305",
        "contradictory-filters",
        "no node passes two filters",
        "Every pod to which both apply stays pending.",
        bad="filter busy require node.pods > 50\nfilter calm require node.pods < 20",
        good="filter busy_or_calm require node.pods > 50 or node.pods < 20",
    ),
    _warning_doc(
        "PS306",
        "unused-declaration",
        "a declaration is unused",
        "It may be left over, or a rule that should read it reads something else.",
        bad="let headroom: cpu = 500m",
        good="let headroom: cpu = 500m\nfilter room require node.free.cpu > headroom",
    ),
    _warning_doc(
        "PS307",
        "zero-weight",
        "a weight is 0",
        "The score is computed but has no effect.",
        bad="reweight image_locality 0",
        good="drop image_locality",
    ),
    _warning_doc(
        "PS308",
        "self-comparison",
        "both sides of a comparison are the same",
        "The result is constant; one side is probably meant to be something else.",
        bad="filter room require node.free.cpu >= node.free.cpu",
        good="filter room require node.free.cpu >= pod.requests.cpu",
    ),
    _warning_doc(
        "PS309",
        "score-not-normalised",
        "a score has no `normalize` clause",
        "Scores are added up, so each is scaled to 0 to 100. Start with `range(LOW, HIGH)`: it "
        "is stable from one decision to the next. `max` and `minmax` are relative to the other "
        "candidates.",
        bad="score few weight 1 lower node.pods",
        good="score few weight 1 lower node.pods normalize range(0, 100)",
        severity=Severity.ERROR,
    ),
    _warning_doc(
        "PS310",
        "clause-without-effect",
        "a clause has no effect",
        "The case that the clause handles cannot occur here.",
        bad="filter room require node.free.cpu > 100m missing pass",
        good="filter room require node.free.cpu > 100m",
    ),
    _warning_doc(
        "PS311",
        "older-message",
        "the message of a filter begins with `else`",
        "`else` gives a missing value a fallback, so the message has a clause of its own: `says`. "
        "The older form still works. `policysched fmt` rewrites it.",
        bad='filter ready require node.ready else "not ready"',
        good='filter ready require node.ready says "not ready"',
    ),
    _warning_doc(
        "PS312",
        "message-or-fallback",
        "a message that begins with `else` follows a string that can be absent",
        "At the end of a filter, `else` with a string is the message, even where it was meant as the fallback of "
        "an absent value: the example rejects no node without the label. Write `says` for a message, and "
        "parentheses around a value and its fallback.",
        bad='filter own reject pod.namespace != node.labels["tenant"] else "shared"',
        good='filter own reject pod.namespace != (node.labels["tenant"] else "shared")',
    ),
    _warning_doc(
        "PS313",
        "number-without-unit",
        "the unit of a number does not fit the value that it is compared with",
        "Without a suffix, a number is a ratio where 1 is 100%, or a number of bytes; `80%` is 0.8. A ratio "
        "above 1, less than 1 MiB of memory, or a percentage compared with a whole number was probably meant "
        "in another unit. The `unit` of an input applies to the text that it parses, not to its default.",
        bad='input load: ratio = node.annotations["load"] default 0% invalid default\nfilter cool require load < 85',
        good='input load: ratio = node.annotations["load"] default 0% invalid default\nfilter cool require load < 85%',
    ),
    _warning_doc(
        "PS314",
        "impossible-text",
        "a value is compared with a text that it can never be",
        "Kubernetes limits what labels, names, taints and conditions can be: a label's value has letters, digits, `-`, "
        "`_` and `.`, the controller of a Deployment's pods is a ReplicaSet, `node.taints` has only keys. Texts are "
        "not patterns. A letter may also belong to another alphabet, such as a Cyrillic `о`.",
        bad='filter own when pod.labels["team"] else "" == "ml-*" require node.ready',
        good='filter own when starts_with(pod.labels["team"] else "", "ml-") require node.ready',
    ),
    _warning_doc(
        "PS315",
        "count-without-other",
        "the condition of a count or the value of a sum does not read the counted pod",
        "In `count(... where CONDITION)` and `sum(VALUE over ...)` the counted pod is `other`, and `pod` is the pod to be "
        "placed. A condition on `pod` alone counts all pods or none, a value of `pod` alone is the same for all of them.",
        bad='filter few require count(pods on node where pod.namespace == "ml") < 3',
        good='filter few require count(pods on node where other.namespace == "ml") < 3',
    ),
    _warning_doc(
        "PS316",
        "same-for-every-node",
        "a score is the same for every node",
        "It reads only the pod, its namespace or the time, so it prefers no node. `queue by` defines the order in which "
        "pods are tried.",
        bad="score urgent weight 1 higher pod.priority normalize range(0, 100)",
        good="score roomy weight 1 higher node.free.cpu normalize range(0, 64)",
    ),
    _warning_doc(
        "PS317",
        "absent-label-passes",
        "a `reject` with `!=` lets nodes pass that lack the label",
        'A missing value rejects nothing: `reject label != "a"` passes nodes without the label as well as nodes with '
        "`a`. State whether a node without the label passes.",
        bad='filter lab reject node.labels["zone"] != "lab"',
        good='filter lab require node.labels["zone"] else "" == "lab"',
    ),
    _warning_doc(
        "PS403",
        "stale-below-twice-every",
        "a metric is stale after one lost sample",
        "Polls fail or are late now and then. Set `stale` to at least twice `every`.",
        bad=_METRIC_EXAMPLE.replace("STALE", "20s")
        + "score net weight 1 lower net_rx normalize range(0Mbps, 1Gbps) missing neutral",
        good=_METRIC_EXAMPLE.replace("STALE", "90s")
        + "score net weight 1 lower net_rx normalize range(0Mbps, 1Gbps) missing neutral",
    ),
    _warning_doc(
        "PS404",
        "gang-without-timeout",
        "a gang has no timeout",
        "If a member never arrives, the others stay pending. Set `timeout` and `on_timeout`.",
        bad='gang by pod.labels["group"] { min = 2 }',
        good='gang by pod.labels["group"] { min = 2  timeout = 5m  on_timeout = requeue }',
    ),
    _warning_doc(
        "PS406",
        "no-resource-fit",
        "no filter checks that a pod fits on a node",
        "Without `node_resources_fit`, nodes are overcommitted and the kubelet rejects bound pods.",
        bad="filter taint_toleration",
        good="filter taint_toleration\nfilter node_resources_fit",
        head="policy example version 1\n",
    ),
    _warning_doc(
        "PS407",
        "no-taint-filter",
        "no filter checks taints",
        "Without `taint_toleration`, pods are scheduled to tainted nodes, including nodes that "
        "are not ready or are being drained.",
        bad="filter node_resources_fit",
        good="filter node_resources_fit\nfilter taint_toleration",
        head="policy example version 1\n",
    ),
    _warning_doc(
        "PS412",
        "default-scheduler-name",
        "a policy is called `default-scheduler`",
        "Pods without a `schedulerName` get this name. If kube-scheduler runs as well, both "
        "schedule the same pods.",
        bad="policy default-scheduler version 1\ninclude kube_default",
        good="policy example version 1\ninclude kube_default",
        head="",
    ),
    _warning_doc(
        "PS413",
        "relative-metric-score",
        "a metric is normalized relative to the other candidates",
        "On an idle cluster, `max` and `minmax` scale noise to full scores: 3 kbps against 1 "
        "kbps counts as much as 900 Mbps against 300 Mbps. `range` does not.",
        bad=_METRIC_EXAMPLE.replace("STALE", "90s")
        + "score net weight 1 lower net_rx normalize minmax missing neutral",
        good=_METRIC_EXAMPLE.replace("STALE", "90s")
        + "score net weight 1 lower net_rx normalize range(0Mbps, 1Gbps) missing neutral",
    ),
    _warning_doc(
        "PS414",
        "no-such-resource",
        "a policy reads a resource that no node has",
        "Kubernetes' native resources are `cpu`, `memory`, `ephemeral-storage`, `pods` and "
        "`hugepages-*`. All other names, in particular those of devices, need a domain prefix; "
        "the API server rejects them otherwise. The amount of a resource that does not exist is "
        "0.",
        bad="filter cards require node.free.gpu >= 1",
        good='filter cards require node.free["nvidia.com/gpu"] >= 1',
    ),
    _warning_doc(
        "PS415",
        "lowest-priority-first",
        "the queue begins with the pods of lowest priority",
        "Keys are ascending unless they say `desc`. Write `asc` if that is meant.",
        bad="queue by pod.priority, pod.queued",
        good="queue by pod.priority desc, pod.queued",
    ),
    _warning_doc(
        "PS416",
        "dominating-score",
        "one point of a score outweighs all other scores together",
        "The other scores decide only between nodes that are equal in this one. A score is a number from 0 to 100, times "
        "its weight.",
        bad="score few_pods weight 100000 lower node.pods normalize range(0, 100)",
        good="score few_pods weight 10 lower node.pods normalize range(0, 100)",
    ),
    _warning_doc(
        "PS417",
        "victims-more-important",
        "only pods that are at least as important are evicted",
        "Pods of higher priority are evicted for pods of lower priority, and then evict those in turn.",
        bad="preemption { victims = victim.priority > pod.priority }",
        good="preemption { victims = victim.priority < pod.priority }",
    ),
    _warning_doc(
        "PS418",
        "suspicious-query",
        "a query is not PromQL, or its unit does not fit the metric",
        "The check counts brackets and quotes, requires a range for functions such as `rate`, and reports a series of "
        "bytes whose `unit` is in bits. It skips queries of a metric whose `source` has another name.",
        bad=_METRIC_EXAMPLE.replace("STALE", "90s").replace("[2m]", "")
        + "score net weight 1 lower net_rx normalize range(0Mbps, 1Gbps) missing neutral",
        good=_METRIC_EXAMPLE.replace("STALE", "90s")
        + "score net weight 1 lower net_rx normalize range(0Mbps, 1Gbps) missing neutral",
    ),
    _warning_doc(
        "PS501",
        "policy-too-expensive",
        "a policy costs more than 10,000 operations",
        "Every policy shares one scheduler, so the time of one evaluation is limited in advance. The cost is the "
        "number of operations for each pod and for each pod and node, with the rules of all layers; "
        "`policysched show` lists it for each rule. "
        "An aggregate nested in one `after placing` is the usual cause, because it is evaluated for up to 32 "
        "placements. The scheduler rejects the text, and the previous version stays active.",
        bad="\n".join(
            f"score even_{index} weight 1 lower "
            + "mean of node.pods + " * 9
            + "node.pods"
            + " over nodes" * 8
            + " over nodes after placing normalize minmax"
            for index in range(5)
        ),
        good="score even weight 1 lower stddev of node.pods over nodes after placing normalize minmax",
        severity=Severity.ERROR,
    ),
)
