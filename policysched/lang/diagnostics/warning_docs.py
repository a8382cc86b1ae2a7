"""Doubts about a policy that can run: its logic (`PS3xx`) and how it does in operation (`PS4xx`)."""

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
        "a condition is always true, or a key the same for every pod",
        "What it is part of could be left out, or does not say what was meant.",
        bad="filter room when 1 < 2 require node.free.cpu > 100m",
        good="filter room require node.free.cpu > 100m",
    ),
    _warning_doc(
        "PS302",
        "never-true",
        "a condition is never true",
        "The rule never applies, or refuses every node.",
        bad="filter room when 2 < 1 require node.free.cpu > 100m",
        good="filter room require node.free.cpu > 100m",
    ),
    _warning_doc(
        "PS306",
        "unused-declaration",
        "a declared name is never read",
        "It may be left over, or a rule that should read it reads something else.",
        bad="let headroom: cpu = 500m",
        good="let headroom: cpu = 500m\nfilter room require node.free.cpu > headroom",
    ),
    _warning_doc(
        "PS307",
        "zero-weight",
        "a weight is 0",
        "The score is computed and changes nothing.",
        bad="reweight image_locality 0",
        good="drop image_locality",
    ),
    _warning_doc(
        "PS308",
        "self-comparison",
        "both sides of a comparison are the same",
        "Its answer never changes; one side is probably meant to be something else.",
        bad="filter room require node.free.cpu >= node.free.cpu",
        good="filter room require node.free.cpu >= pod.requests.cpu",
    ),
    _warning_doc(
        "PS309",
        "score-not-normalised",
        "nothing says how a value becomes a score from 0 to 100",
        "Scores are added, so each needs the same scale. `range(LOW, HIGH)` is the one to begin with: it is stable from one "
        "decision to the next. `max` and `minmax` are relative to the other candidates.",
        bad="score few weight 1 lower node.pods",
        good="score few weight 1 lower node.pods normalize range(0, 100)",
        severity=Severity.ERROR,
    ),
    _warning_doc(
        "PS310",
        "clause-without-effect",
        "a clause never applies",
        "What it speaks of cannot happen here.",
        bad="filter room require node.free.cpu > 100m missing pass",
        good="filter room require node.free.cpu > 100m",
    ),
    _warning_doc(
        "PS403",
        "stale-below-twice-every",
        "a metric counts as missing as soon as one sample is lost",
        "A poll that fails or comes late is ordinary. Let `stale` be at least twice `every`.",
        bad=_METRIC_EXAMPLE.replace("STALE", "20s")
        + "score net weight 1 lower net_rx normalize range(0Mbps, 1Gbps) missing neutral",
        good=_METRIC_EXAMPLE.replace("STALE", "90s")
        + "score net weight 1 lower net_rx normalize range(0Mbps, 1Gbps) missing neutral",
    ),
    _warning_doc(
        "PS404",
        "gang-without-timeout",
        "a gang may wait for ever",
        "A member that never comes keeps the others pending. `timeout` and `on_timeout` say when to give up.",
        bad='gang by pod.labels["group"] { min = 2 }',
        good='gang by pod.labels["group"] { min = 2  timeout = 5m  on_timeout = requeue }',
    ),
    _warning_doc(
        "PS406",
        "no-resource-fit",
        "nothing asks whether a pod fits on a node",
        "Without `node_resources_fit` nodes are overcommitted: the kubelet then refuses pods that were bound to it.",
        bad="filter taint_toleration",
        good="filter taint_toleration\nfilter node_resources_fit",
        head="policy example version 1\n",
    ),
    _warning_doc(
        "PS407",
        "no-taint-filter",
        "taints are not looked at",
        "Without `taint_toleration` pods go to nodes that are tainted, also to those that are not ready or being drained.",
        bad="filter node_resources_fit",
        good="filter node_resources_fit\nfilter taint_toleration",
        head="policy example version 1\n",
    ),
    _warning_doc(
        "PS412",
        "name-of-kube-scheduler",
        "a policy has the name of kube-scheduler itself",
        "Every pod that names no scheduler gets this one. Where kube-scheduler runs as well, both place the same pods.",
        bad="policy default-scheduler version 1\ninclude kube_default",
        good="policy example version 1\ninclude kube_default",
        head="",
    ),
    _warning_doc(
        "PS413",
        "relative-metric-score",
        "a metric is scored relative to the other candidates",
        "On an idle cluster `max` and `minmax` make full scores of noise: 3 kbps against 1 kbps counts as much as 900 Mbps "
        "against 300. `range` does not.",
        bad=_METRIC_EXAMPLE.replace("STALE", "90s")
        + "score net weight 1 lower net_rx normalize minmax missing neutral",
        good=_METRIC_EXAMPLE.replace("STALE", "90s")
        + "score net weight 1 lower net_rx normalize range(0Mbps, 1Gbps) missing neutral",
    ),
    _warning_doc(
        "PS414",
        "no-such-resource",
        "an amount is read of a resource that no node has",
        "Kubernetes' own resources are `cpu`, `memory`, `ephemeral-storage`, `pods` and `hugepages-*`. All others, devices above all, have "
        "a domain in their name, and the API server refuses them without. Of a resource that is not there every amount is 0.",
        bad="filter cards require node.free.gpu >= 1",
        good='filter cards require node.free["nvidia.com/gpu"] >= 1',
    ),
)
