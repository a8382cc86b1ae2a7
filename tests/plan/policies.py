"""Policies by hand, one for each corner of the language: a property that holds for generated programs can be asked of
these as well, and a failure here names the corner.
"""

from functools import cache

from policysched.lang.program import Program
from tests.oracle.checked import metric, program

_RX = metric("rx", "bandwidth", "bit/s")
_LOAD = metric("load", "ratio", "1")

CORNERS: dict[str, tuple[str, ...]] = {
    "comparisons": (
        "filter less require node.free.cpu < pod.requests.cpu",
        "filter equal reject node.allocatable.memory == 8Gi",
        "filter not_equal require node.name != pod.name",
        "filter least require node.allocatable.pods >= 2",
        "filter qos require pod.qos <= Burstable",
        "score greater weight 3 prefer node.requested.memory > pod.limits.memory",
    ),
    "arithmetic": (
        "filter sum require node.free.cpu - pod.requests.cpu + 100m >= 0m",
        "filter product require node.allocatable.cpu * 2 > pod.requests.cpu * 3",
        "filter scaled require node.requested.memory * 1.5 < node.allocatable.memory",
        "filter ratio require (node.requested.cpu / node.allocatable.cpu else 100%) < 85%",
        "filter whole require (node.allocatable.memory / (node.pods - 1) else 1Gi) > 256Mi",
        "score negative weight 1 higher -node.pods normalize minmax",
    ),
    "choices": (
        _LOAD,
        "filter by_size require (if pod.requests.cpu > 500m then node.free.cpu else 2) >= 1",
        'filter by_pool require if has node.labels["pool"] then node.pods < 3 else node.free.cpu > 500m',
        'filter text require (if node.pods > 1 then "a" else node.name) != "n1"',
        "score mixed weight 2 higher if node.pods > 1 then node.pods else 0.5 normalize minmax",
        "score nested weight 1 lower if node.pods == 0 then 1 else if load < 50% then load else 3 normalize max missing 7",
        "score unknown weight 3 higher if load < 50% then 2 else 1 normalize range(0, 2) missing neutral",
        "score spared weight 3 higher (if node.pods > 1 then load else 7 / 2 else 1) normalize range(0, 2) missing best",
    ),
    "functions": (
        "filter clamped require clamp(node.free.cpu, 100m, 2) >= min(pod.requests.cpu, 1)",
        "filter maximum require max(node.requested.memory, pod.requests.memory, 1Gi) < 5Gi",
        "filter rounded require round(node.requested.cpu / node.allocatable.cpu * 10 else 3) != 5",
        "score logarithm weight 2 higher (log(node.pods * 1.0) else -1) normalize minmax",
        "score root weight 2 lower (sqrt(node.free.cpu / 1m - 100) else 0) normalize max",
        "score power weight 1 lower abs(floor(exp(node.pods * 0.5)) - 3) normalize range(0, 10)",
    ),
    "aggregates": (
        _LOAD,
        'filter pool require (node.labels["pool"] else "a") != "b"',
        "score average weight 2 lower abs(node.pods - mean of node.pods over nodes) normalize minmax",
        "score best weight 1 higher node.free.cpu / max of node.free.cpu over nodes else 0 normalize range(0, 1)",
        "score least weight 1 prefer node.requested.memory <= min of node.requested.memory over nodes",
        "score known weight 3 higher load - mean of load over nodes normalize minmax missing neutral",
        'score guarded weight 1 when has node.labels["rack"] higher (stddev of load over nodes else 0) normalize range(0, 1)',
        "score nested weight 1 higher node.pods - min of (max of node.pods over nodes after placing) over nodes normalize minmax",
        "score twice weight 1 higher mean of node.free.cpu - mean of node.free.cpu over nodes over nodes after placing normalize minmax",
        "score thrice weight 1 lower max of (mean of abs(node.pods - min of node.pods over nodes) over nodes after placing) over nodes - node.pods normalize minmax",
        "score total weight 1 higher sum of (if node.pods > 1 then 1 else 0) over nodes normalize range(0, 5)",
    ),
    "placing": (
        'input traffic: bandwidth = pod.labels["pool"] default 300Mbps invalid default',
        metric("rx", "bandwidth", "bit/s", "assume = traffic"),
        'filter pool require (node.labels["pool"] else "a") != "b"',
        "score balanced weight 5 lower stddev of (node.requested.cpu / node.allocatable.cpu else 1) over nodes after placing normalize minmax",
        "score spread weight 2 lower max of node.pods over nodes after placing normalize max",
        "score least weight 2 higher min of node.free.memory over nodes after placing normalize minmax",
        "score roomiest weight 2 higher max of node.free.cpu over nodes after placing normalize range(0, 4)",
        "score average weight 1 lower mean of node.requested.memory over nodes after placing - 1Gi normalize max",
        "score traffic weight 1 lower stddev of rx over nodes after placing normalize minmax missing worst",
        "score busiest weight 1 lower (max of rx + 1Mbps over nodes after placing else 0bps) normalize range(0bps, 2Gbps)",
        'score kin weight 3 lower sum of count(pods on node where other.labels["pool"] == pod.labels["pool"]) '
        "over nodes after placing normalize minmax",
    ),
    "recovering": (
        _RX,
        _LOAD,
        "filter link_cool require rx < 800Mbps recover 600Mbps for 2m missing reject",
        'filter loaded reject 85% <= load recover 50% for 90s missing pass else "busy"',
        "score free weight 1 higher node.free.cpu normalize range(0, 4)",
    ),
    "roundings": (
        "filter half_up require round(node.pods * 0.5, half_up) != 1",
        "filter half_away require round(node.pods * -0.5, half_away) != -2",
        "score truncated weight 2 higher round(node.free.cpu / 300m, trunc) normalize range(-3, 12)",
        "score even weight 2 higher round(node.free.memory / 2Gi, half_even) normalize minmax",
        "score seeds weight 1 higher round((node.requested.cpu / node.allocatable.cpu else 0) * 10 + 0.5, trunc) normalize range(0, 10)",
    ),
    "distributions": (
        _RX,
        _LOAD,
        "filter safe require 1 - beta_cdf(90%, node.requested.cpu / node.allocatable.cpu else 1, 0.1) <= 30%",
        "filter normal require normal_cdf(800Mbps, rx else 0bps, 100Mbps) > 1%",
        "score risk weight 5 lower 1 - beta_cdf(0.9, load, 0.05 * (1 + node.pods)) normalize range(0, 1) missing neutral",
        "score far weight 1 higher normal_cdf(node.free.memory, 4Gi, 1Gi) normalize range(0, 1)",
    ),
    "labels": (
        'filter rack reject node.labels["rack"] == "a"',
        'filter not_both reject node.labels["rack"] == "b" and node.labels["pool"] == "a"',
        'filter either reject node.labels["rack"] == "1" or node.labels["gen"] in ["2", "10"]',
        'filter same when has pod.labels["pool"] require has node.labels["pool"]',
        'filter condition require (node.conditions["Ready"] else "Unknown") != "Unknown"',
        'score annotated weight 4 prefer (node.annotations["pool"] else "a") == "a"',
    ),
    "lists": (
        'filter image require "app:1" in pod.images or not ("db:1" in node.images)',
        'filter tainted reject "spot" in node.taints',
        'filter tolerating require "dedicated" in pod.tolerations or not ("dedicated" in node.taints)',
        'filter named require pod.namespace in ["default", "batch"] and not (node.name in ["n1"])',
    ),
    "inputs": (
        'input pool: string = pod.labels["pool"] optional',
        'input nodes_pool: string = node.labels["pool"] default "general"',
        'input gen: int = node.labels["gen"] default 0 invalid default',
        'input rack: int = node.labels["rack"] required "has no rack" invalid reject "has an odd rack"',
        'input weight_of: int = pod.annotations["gen"] default 3 invalid default',
        'input tier: string = namespace.labels["rack"] default "standard"',
        "filter match when has pool require pool == nodes_pool",
        'filter tier_a when tier == "a" require rack <= weight_of else "rack {rack} is over {weight_of} of {tier}"',
        "score young weight 5 higher gen + rack normalize range(-3, 12)",
    ),
    "refusing inputs": (
        'input gen: int = pod.labels["gen"] optional invalid reject "gen must be a number"',
        'input rack: string = namespace.labels["rack"] required "the namespace names no rack"',
        "include kube_default",
        "score s weight 2 when has gen prefer node.pods > gen",
        'filter r require rack != "zz"',
    ),
    "metrics": (
        _RX,
        _LOAD,
        'filter strict require rx < 800Mbps missing reject else "receiving {rx}"',
        "filter lenient require load < 85% missing pass scaleup no",
        "filter with_else require (rx else 0bps) + 1Mbps < 1Gbps",
        "filter present require has load or node.pods < 3",
        "score worst weight 5 lower rx normalize range(0Mbps, 1Gbps) missing worst",
        "score neutral weight 2 higher load normalize minmax missing neutral",
        "score best weight 1 lower load * 2 normalize max missing best",
        "score seven weight 1 prefer rx < 1Gbps missing 7",
        "score half weight 1 when node.pods > 0 lower rx normalize max missing neutral",
    ),
    "assumed": (
        'input traffic: bandwidth = pod.labels["pool"] default 300Mbps invalid default',
        'input share: ratio = namespace.labels["gen"] default 20% invalid default',
        metric("rx", "bandwidth", "bit/s", "assume = traffic"),
        metric("load", "ratio", "1", "assume = share * (pod.priority - 1)"),
        'filter strict require rx < 900Mbps missing reject else "receiving {rx}"',
        "filter present require has load or node.pods < 3",
        "score idle weight 5 lower rx normalize range(0Mbps, 2Gbps) missing worst",
        "score loaded weight 2 lower load normalize minmax missing neutral",
        "score free weight 1 higher node.free.cpu normalize range(0, 4)",
    ),
    "outage": (
        _RX,
        _LOAD,
        "outage {\nabove = 50%\nthen = disable\n}",
        "filter taint_toleration",
        "filter strict require rx < 800Mbps missing reject",
        "score idle weight 5 lower rx normalize range(0Mbps, 1Gbps) missing worst",
        "score loaded weight 2 lower (load else 50%) normalize max",
        "score free weight 2 higher node.free.cpu normalize max",
    ),
    "counting": (
        "filter few require count(pods on node) < 3",
        'filter alone require count(pods on node where other.namespace == pod.namespace) <= 1 else "{pod.namespace} is here"',
        "score quiet weight 3 lower count(pods on node where other.priority >= pod.priority) normalize max",
        'score kin weight 1 higher count(pods on node where other.labels["pool"] == "a") normalize minmax',
    ),
    "records": (
        'record card {\n  health: string\n  memory: bytes = "freeMemory" unit "MiB"\n  clock: int optional\n  speed: float\n}',
        'input cards: list<card> = node.annotations["cards"] default [] invalid reject "odd cards"',
        'input inner: list<card> = node.annotations["cards"] at "items" optional invalid default',
        'input seen: list<card> = node.objects["cards"] default [] invalid default',
        "filter seen reject count(seen) > 2",
        'input wants: list<card> = pod.annotations["cards"] default [] invalid default',
        'filter healthy require count(cards where card.health == "Healthy" and card.memory >= 512Mi) >= 1',
        "filter strong reject any(cards where (card.clock else 0) > 5 and card.memory > pod.requests.memory)",
        "filter wanted require not any(wants where card.memory > node.free.memory)",
        "filter inner when has inner require sum(card.memory over inner) < 5Gi",
        "score spare weight 1 higher count(cards where card.memory >= node.requested.memory) normalize max",
        "score room weight 3 higher sum(card.memory over cards) normalize max",
        "score clock weight 2 lower (max(card.clock over cards where card.health != pod.name) else 3) normalize minmax",
        "score speed weight 1 higher (min(card.speed over cards) else 0.5) normalize range(0, 10)",
        "score sums weight 1 higher sum(card.speed over cards) + sum(card.clock over wants) normalize minmax",
    ),
    "pods among pods": (
        "filter inter_pod_affinity",
        'filter pod_topology_spread when node.name != "n1" or pod.priority > 0',
        "score inter_pod_affinity weight 2 { hard_pod_affinity_weight = 5 }",
        "score pod_topology_spread weight 3",
        'score apart weight 1 prefer node.name != "n2"',
    ),
    "time": (
        'filter hours require window("Mon-Fri 07:00-19:00", "Europe/Zurich")',
        'filter nights reject window("Sat-Sun 22:00-06:00", "America/New_York")',
        "filter patient when pod.waited > 20s require node.pods < 2",
        "filter aged require now - node.created > 1h and now - pod.created >= 1s",
        "filter deadline when has pod.deadline require pod.deadline > 5m",
        "queue by pod.waited > 30s desc, pod.attempts, pod.created",
    ),
    "queue and gangs": (
        'input team: string = pod.labels["pool"] optional',
        'input least: int = pod.labels["gen"] default 2 invalid default',
        'input tier: string = namespace.labels["rack"] default "b"',
        "queue by least desc, rank(tier, ['gold', 'a', 'b']), pod.qos desc, pod.queued".replace("'", '"'),
        "gang by team {\nmin = least\nmax = least * 2\ntimeout = 5m\non_timeout = requeue\n}",
        "include kube_default",
    ),
    "layers": (
        "include kube_default",
        _RX,
        "reweight image_locality 3",
        "filter room require node.free.memory >= 1Gi",
        "score idle weight 2 lower rx normalize range(0Mbps, 1Gbps) missing neutral",
        'layer batch when pod.namespace == "batch" {\namend room require node.free.memory >= 4Gi\n'
        "reweight idle 9\ndrop image_locality\n}",
        "layer urgent when pod.priority > 5 {\nreplace filter room require node.free.cpu >= 1\n"
        'filter fresh reject node.labels["gen"] == "1"\n}',
        'layer owned when pod.owner.kind == "Job" and pod.service_account == "trainer" {\ndrop node_ports\n}',
    ),
    "built-ins by condition": (
        "filter node_resources_fit when pod.priority >= 0",
        'filter taint_toleration when (node.labels["pool"] else "a") == "a"',
        "score node_resources_fit weight 2 when node.pods < 2",
        "score node_affinity weight 1 when pod.priority >= 0",
        'score image_locality weight 1 when (node.labels["pool"] else "a") == "a"',
    ),
}
"""Lines of policies by what they are about. Their metrics are those of `clusters.samples`."""


@cache
def corner(name: str) -> Program:
    return program(*CORNERS[name])
