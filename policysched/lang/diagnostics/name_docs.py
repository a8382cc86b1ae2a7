"""Diagnostics about names, types and units (`PS2xx`): with one of these a policy does not become active."""

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
        "something that may be absent is read without asking first",
        "A label, an annotation or an optional input may not be there. What should happen then must stand in the policy: "
        "`has` in front of it (in `when`, or before `and`), or `else` behind it. In `reject` an absent label of the node "
        "does not reject, and needs no asking.",
        bad='filter pool require node.labels["pool"] == "batch"',
        good='filter pool require has node.labels["pool"] and node.labels["pool"] == "batch"',
    ),
    diagnostic_doc(
        "PS202",
        "type-mismatch",
        "a value is not of the type that is needed here",
        "Nothing is converted silently. A label is a string, also where it looks like a number: an input with a type reads it.",
        bad='filter size when has pod.labels["size"] require pod.labels["size"] == 4',
        good='filter size when has pod.labels["size"] require pod.labels["size"] == "4"',
    ),
    diagnostic_doc(
        "PS203",
        "ambiguous-unit",
        "a suffix can mean two things, and nothing decides",
        "`100m` is a tenth of a core where a cpu is expected and a hundred minutes where a duration is. Give it a type.",
        bad="filter few require count(pods on node) < 100m",
        good="filter few require count(pods on node) < 100",
    ),
    diagnostic_doc(
        "PS204",
        "dimension-mismatch",
        "two amounts of different dimensions are compared, added or put in each other's place",
        "Cores and bytes have no common unit. Divide each by one of its own kind to get plain numbers.",
        bad="filter room require node.free.cpu > node.free.memory",
        good="filter room require node.free.cpu > pod.requests.cpu",
    ),
    diagnostic_doc(
        "PS205",
        "milli-memory",
        "`m` behind a size means thousandths of a byte",
        "`128m` of memory is an old mistake in manifests: Kubernetes reads it as less than one byte. `Mi` is meant.",
        bad="filter big require node.free.memory > 512m",
        good="filter big require node.free.memory > 512Mi",
    ),
    diagnostic_doc(
        "PS206",
        "decimal-size",
        "a size looks binary and is counted in thousands",
        "`512M` is 512,000,000 bytes, `512Mi` is 536,870,912. Memory is usually counted in the second way.",
        bad="filter big require node.free.memory > 512M",
        good="filter big require node.free.memory > 512Mi",
        severity=Severity.HINT,
    ),
    diagnostic_doc(
        "PS207",
        "wrong-unit",
        "a unit is unknown, or missing where a bare number would not say enough",
        "Bandwidths and durations are always written with their unit: `800Mbps` (bits), `100MBps` (bytes), `90s`.",
        bad='input wait: duration = pod.labels["wait"] default 90 invalid default\nqueue by wait',
        good='input wait: duration = pod.labels["wait"] default 90s invalid default\nqueue by wait',
    ),
    diagnostic_doc(
        "PS208",
        "out-of-range",
        "a number is outside what can be held or is allowed here",
        "Amounts are whole thousandths of a core, bytes and nanoseconds, and fit into 64 bits; weights go up to a million, "
        "scores from 0 to 100.",
        bad="let step: cpu = 0.0001\nfilter room require node.free.cpu > step",
        good="let step: cpu = 1m\nfilter room require node.free.cpu > step",
    ),
    diagnostic_doc(
        "PS209",
        "wrong-arguments",
        "a function has too many or too few arguments",
        "`clamp(x, low, high)` takes three, `min` and `max` two or more, `rank(x, [...])` two, `normal_cdf` and `beta_cdf` three, `round` one and "
        "perhaps how to round, the others one.",
        bad="queue by clamp(pod.priority, 10)",
        good="queue by clamp(pod.priority, 0, 10)",
    ),
    diagnostic_doc(
        "PS210",
        "unknown-name",
        "a name is not declared",
        "Bare names are declared with `let`, `input` or `metric`, above where they are used. Attributes have their owner "
        "in front: `pod.qos`. Strings are quoted.",
        bad="filter room require node.free.cpu > headroom",
        good="let headroom: cpu = 500m\nfilter room require node.free.cpu > headroom",
    ),
    diagnostic_doc(
        "PS211",
        "unknown-attribute",
        "a pod, node or namespace has no such attribute",
        "The attributes are listed in the documentation; maps such as `labels` are read with a key.",
        bad="filter room require node.free_cpu > pod.requests.cpu",
        good="filter room require node.free.cpu > pod.requests.cpu",
    ),
    diagnostic_doc(
        "PS212",
        "unknown-word",
        "a word is not one of those that can stand here",
        "Choices such as `missing reject`, `on_timeout = requeue` or `normalize max` are bare words out of a few.",
        bad=f"{_METRIC_EXAMPLE}filter cool require cpu_util < 85% missing rejct",
        good=f"{_METRIC_EXAMPLE}filter cool require cpu_util < 85% missing reject",
    ),
    diagnostic_doc(
        "PS213",
        "duplicate-name",
        "a name is taken already",
        "Each filter, each score, each layer and each declaration has a name of its own, since events and metrics speak of "
        "it. `amend`, `replace`, `reweight` and `drop` change a rule that is there.",
        bad="filter node_ports when pod.priority < 100",
        good="amend node_ports when pod.priority < 100",
    ),
    diagnostic_doc(
        "PS214",
        "clause-required",
        "a case is left open that the policy must decide",
        "What happens without a sample, without a label or with a text of the wrong type is decided by who writes the "
        "policy, not by a default: `missing ...`, `default ...`, `optional`, `invalid ...`.",
        bad=f"{_METRIC_EXAMPLE}filter cool require cpu_util < 85%",
        good=f"{_METRIC_EXAMPLE}filter cool require cpu_util < 85% missing pass",
    ),
    diagnostic_doc(
        "PS215",
        "share-mixed-in-a-key",
        "a key of the queue reads what a namespace holds together with something else",
        "Every placement changes what a namespace holds, and with it the place of all its pods at once. A queue of many "
        "thousands keeps up with that as long as a share orders namespaces against each other, and other keys order the pods "
        "within one.",
        bad="queue by namespace.share.cpu * 100 - pod.priority else 0",
        good="queue by namespace.share.cpu, pod.priority desc",
    ),
    diagnostic_doc(
        "PS216",
        "key-without-brackets",
        "the key of a label is not quoted",
        "Keys have dots, dashes and slashes in them, so they always stand in brackets and quotes.",
        bad='filter app reject node.labels.pool == "spare"',
        good='filter app reject node.labels["pool"] == "spare"',
    ),
    diagnostic_doc(
        "PS217",
        "clause-not-allowed",
        "a clause stands in a rule that has no use for it",
        "A built-in has its own words and its own scale, and `prefer` is 100 or 0.",
        bad='amend node_ports scaleup no else "no port is free"',
        good="amend node_ports when pod.priority < 100",
    ),
    diagnostic_doc(
        "PS218",
        "else-required",
        "an operation may have no value",
        "A division by zero, a logarithm of zero and a root of a negative number have none. `else` says what stands there.",
        bad="score pack weight 1 higher node.requested.cpu / node.allocatable.cpu normalize range(0%, 100%)",
        good="score pack weight 1 higher node.requested.cpu / node.allocatable.cpu else 0 normalize range(0%, 100%)",
    ),
    diagnostic_doc(
        "PS219",
        "builtin-name",
        "a rule of one's own has the name of a built-in, or a built-in stands where it cannot",
        "A built-in's name always means kube-scheduler's rule, so that an event that names it can be believed.",
        bad="replace filter node_ports require pod.priority > 100",
        good="filter important require pod.priority > 100",
    ),
    diagnostic_doc(
        "PS220",
        "not-known-here",
        "something is read where it is not known yet",
        "A layer and the queue look at the pod before any node is chosen; a `when` is decided before samples are looked at; "
        "`victim` and `other` have a meaning only in their own places.",
        bad="queue by node.free.cpu desc",
        good="queue by pod.requests.cpu desc",
    ),
    diagnostic_doc(
        "PS221",
        "not-constant",
        "a constant is needed and this depends on something",
        "The items of a list, the keys of labels and what a parameter is set to are the same for every pod and node.",
        bad='filter ns require pod.namespace in ["batch", pod.name]',
        good='filter ns require pod.namespace in ["batch", "ml"]',
    ),
    diagnostic_doc(
        "PS222",
        "unknown-parameter",
        "a parameter in braces is not known",
        "Each metric, gang and built-in has its own parameters; a misspelt one would be a setting that is not set.",
        bad="replace score node_resources_fit weight 1 { strateg = most_allocated }",
        good="replace score node_resources_fit weight 1 { strategy = most_allocated }",
    ),
    diagnostic_doc(
        "PS223",
        "parameter-required",
        "a parameter in braces is missing",
        "A metric says where it comes from, its unit, how its samples belong to nodes, and how long one counts.",
        bad="gang by pod.name { timeout = 5m }",
        good="gang by pod.name { min = 2  timeout = 5m }",
    ),
    diagnostic_doc(
        "PS225",
        "unknown-include",
        "what is to be included is not there",
        "A library is another key of the same ConfigMap, or another file of the same folder, and begins with `library`.",
        bad='include "bse.policy"',
        good='include "base.policy"',
        others=(("base.policy", "library base version 1\nfilter important reject pod.priority < 0\n"),),
    ),
    diagnostic_doc(
        "PS226",
        "unknown-default-version",
        "the defaults of that release of kube-scheduler are not known",
        "`include kube_default` brings the filters, scores and weights of one release; a pinned one must be known.",
        bad='include kube_default "1.20"',
        good='include kube_default "1.36"',
        head="policy example version 1\n",
    ),
    diagnostic_doc(
        "PS227",
        "broken-library",
        "an included library has errors",
        "Its errors are reported where they are. Policies that include it keep their last known good form until it is mended.",
        bad='include "broken.policy"',
        good='include "base.policy"',
        others=(
            ("base.policy", "library base version 1\nfilter important reject pod.priority < 0\n"),
            ("broken.policy", "library broken version 1\nfilter important reject pod.prioritty < 0\n"),
        ),
    ),
    diagnostic_doc(
        "PS228",
        "include-circle",
        "libraries include each other in a circle",
        "One of the includes must go; what both need belongs into a third library.",
        bad='library example version 1\ninclude "other.policy"',
        good="library example version 1",
        head="",
        others=(("other.policy", 'library other version 1\ninclude "example.policy"\n'),),
    ),
    diagnostic_doc(
        "PS229",
        "unknown-rule",
        "a change names a rule that is not there",
        "`amend`, `replace`, `reweight` and `drop` change a rule that stands above them, or that an include above brought.",
        bad="reweight image_locallity 2",
        good="reweight image_locality 2",
    ),
    diagnostic_doc(
        "PS230",
        "locked-rule",
        "a locked rule cannot be changed",
        "A library marks the rules that every policy must keep as `locked`.",
        bad='include "base.policy"\ndrop important',
        good='include "base.policy"',
        others=(
            ("base.policy", "library base version 1\nlocked filter important reject pod.priority < 0\n"),
        ),
    ),
    diagnostic_doc(
        "PS231",
        "ambiguous-rule",
        "a change could mean a filter or a score of the same name",
        "kube-scheduler's plugins often are both. A clause that only one of them has decides; else restate the rule.",
        bad="amend taint_toleration when pod.priority < 1000",
        good="replace filter taint_toleration when pod.priority < 1000",
    ),
    diagnostic_doc(
        "PS232",
        "no-header",
        "a text does not begin by saying what it is",
        "`policy NAME version 1` makes a policy that pods choose by `schedulerName: NAME`; `library NAME version 1` is only "
        "included by others.",
        bad="include kube_default",
        good="policy example version 1\ninclude kube_default",
        head="",
    ),
    diagnostic_doc(
        "PS233",
        "policy-name-taken",
        "two policies have the same name",
        "Pods choose a policy by its name. The first, in the order of the keys, stays active.",
        bad="policy first version 1\ninclude kube_default",
        good="policy second version 1\ninclude kube_default",
        head="",
        others=(("a.policy", "policy first version 1\ninclude kube_default\n"),),
    ),
    diagnostic_doc(
        "PS234",
        "resource-of-kubernetes",
        "a resource has the name of one that Kubernetes counts",
        "`node.free.cpu` must mean what kube-scheduler means by it. A resource of the policy's own needs a name of its own.",
        bad="resource cpu { capacity = 4, request = 1 }",
        good="resource licences { capacity = 4, request = 1 }\nfilter enough require pod.requests.licences <= node.free.licences",
    ),
    diagnostic_doc(
        "PS235",
        "topology-needs-whole",
        "a gang is to keep together, and its members go one by one",
        "`topology` puts all members into one domain. That needs a decision for all at once, which `mode = gate` leaves to each member.",
        bad='gang by pod.owner.name { min = 2  timeout = 5m  mode = gate  topology = "rack" }',
        good='gang by pod.owner.name { min = 2  timeout = 5m  topology = "rack" }',
    ),
    diagnostic_doc(
        "PS236",
        "bad-placeholder",
        "a placeholder in a text is no name",
        "Between braces stands a declared name or an attribute: `{net_rx}`, `{node.free.cpu}`.",
        bad='filter few require count(pods on node) < 50 else "has {count(pods)} pods"',
        good='filter few require count(pods on node) < 50 else "has {node.pods} pods"',
    ),
    diagnostic_doc(
        "PS237",
        "unknown-type",
        "there is no such type, or it cannot stand here",
        "Inputs have a single value; metrics are numbers.",
        bad='input size: number = pod.labels["size"] default 1 invalid default\nqueue by size',
        good='input size: int = pod.labels["size"] default 1 invalid default\nqueue by size',
    ),
    diagnostic_doc(
        "PS238",
        "bad-window",
        "a weekly window cannot be read",
        "Days, a blank, hours: `Mon-Fri 07:00-19:00`, several joined by commas; and a zone such as `Europe/Zurich`.",
        bad='filter hours require window("weekdays 07:00-19:00", "UTC")',
        good='filter hours require window("Mon-Fri 07:00-19:00", "UTC")',
    ),
    diagnostic_doc(
        "PS245",
        "no-way-to-recover",
        "`recover` stands behind what is no limit of a metric, or names a mark on the wrong side of it",
        "`require METRIC < LIMIT recover MARK for DURATION` keeps a node refused that was over the limit until its samples were below the mark for "
        "that long, so that a value that swings about the limit does not let pods in each time. Both are constants, and the mark is where the metric passes.",
        bad=f"{_METRIC_EXAMPLE}filter cool require cpu_util < 85% recover 90% for 2m missing pass",
        good=f"{_METRIC_EXAMPLE}filter cool require cpu_util < 85% recover 70% for 2m missing pass",
    ),
    diagnostic_doc(
        "PS246",
        "placed-once",
        "`after placing` inside `after placing`, or two numbers of all nodes that move with the pod",
        "Inside `... over nodes after placing` every aggregate is as it would be with the pod on that node; saying so again would place two pods. "
        "One such number may move with the pod: the value is worked out once for each of those that the candidates see.",
        bad="score even weight 1 lower mean of abs(node.pods - mean of node.pods * node.pods over nodes after placing) over nodes after placing normalize minmax",
        good="score even weight 1 lower mean of abs(node.pods - mean of node.pods * node.pods over nodes) over nodes after placing normalize minmax",
    ),
    diagnostic_doc(
        "PS247",
        "metric-between-pods",
        "a metric between two pods is read as if it were of a node, or the reverse",
        "A metric with `from` and `to` has a number for two pods. `traffic_to(gang)` adds up what it has between the pod and the members of its gang "
        "on a node, and that is a number of the node.",
        bad=f"{_PAIR_METRIC_EXAMPLE}score near weight 1 higher talk normalize range(0bps, 1Gbps) missing neutral",
        good=f"{_PAIR_METRIC_EXAMPLE}score near weight 1 higher traffic_to(gang) normalize range(0bps, 1Gbps) missing neutral",
    ),
    diagnostic_doc(
        "PS248",
        "traffic-of-whom",
        "`traffic_to(gang)` where it is not said what a gang is, or which metric is meant",
        "The members are those of the policy's `gang by ...`, which may be a mere gate. The metric is the one that is between pods (`from`, `to`); where "
        "there are several it is named: `traffic_to(gang, METRIC)`.",
        bad=f"{_PAIR_METRIC_EXAMPLE.replace(_GANG_EXAMPLE, '')}score near weight 1 higher traffic_to(gang) normalize range(0bps, 1Gbps) missing neutral",
        good=f"{_PAIR_METRIC_EXAMPLE}score near weight 1 higher traffic_to(gang) normalize range(0bps, 1Gbps) missing neutral",
    ),
    diagnostic_doc(
        "PS249",
        "no-such-join",
        "`join` or `sampled_at` in a metric between two pods",
        "`from` and `to` take the place of `join`: each names the labels of a series that say which pod it is about. Such samples are as old as the poll "
        "that brought them.",
        bad=f"{_PAIR_METRIC_EXAMPLE.replace('every', 'join = node  every')}score near weight 1 higher traffic_to(gang) normalize range(0bps, 1Gbps) missing neutral",
        good=f"{_PAIR_METRIC_EXAMPLE}score near weight 1 higher traffic_to(gang) normalize range(0bps, 1Gbps) missing neutral",
    ),
    diagnostic_doc(
        "PS239",
        "too-many-rules",
        "a policy has more than 500 rules",
        "Rules that differ in one value are one rule with a list: `x in [...]`.",
        bad="\n".join(f"filter f{index} reject pod.priority == {index}" for index in range(500)),
        good="filter f reject pod.priority < 500",
    ),
    diagnostic_doc(
        "PS240",
        "extender-beside-gang",
        "a gang cannot be placed whole while an extender has to be asked",
        "Members of a gang are tried together, on a cluster in which those before them are placed already. An extender outside "
        "sees only the cluster that is, and its protocol has no word for pods that are not there, so its answer would not be about "
        "that trial: two members could be sent to the one free device that it counts. Give such gangs a policy of their own, or "
        "place their members one by one, with `mode = gate`.",
        bad="gang by pod.owner.name { min = 2  timeout = 5m }\nextender gpu_share weight 5 missing neutral",
        good="gang by pod.owner.name { min = 2  timeout = 5m  mode = gate }\nextender gpu_share weight 5 missing neutral",
    ),
)
