"""The policies of the simulated clusters: several valid texts for each key, and some invalid ones.

The authors of the texts state which are valid; a test compares that with the policy checker.
"""

from collections.abc import Mapping

EXTENDER = "topology"
"""The name of the extender in the settings."""

SPARING = 'preemption { victims = victim.scheduler == pod.scheduler and not has victim.labels["keep"] }\n'
"""In every policy but one; the safety checker knows which pods are protected."""
SPARING_KEPT = 'preemption { victims = not has victim.labels["keep"] }\n'
EVICTS_ANYBODY = ("gamma",)
"""Urgent gangs can preempt pods of other schedulers."""

GANG_TIMEOUT_S = 19.0
"""For the policy whose gangs fail, minus the second by which creation times are rounded."""

LOAD_LIMIT, LOAD_HELD_NS = 0.8, 10 * 10**9
"""For alpha: the highest load of a feasible node, and with `recover` the time for which the node
stays infeasible.
"""
WAITS_BELOW_RANK = 3
"""For alpha with `then = wait`: pods of a lower rank wait while a feasible node has no sample."""

TRAFFIC_LIMIT, TRAFFIC_ASSUMED = 800e6, 300e6
"""Bits per second: the limit for the traffic between a gang member and its peers on a node, and the
traffic assumed for a pair without samples.
"""

ALPHA = (
    """\
policy alpha version 1
input rank: int = pod.labels["rank"] default 0 invalid default
input tier: string = namespace.labels["tier"] default "standard"
metric load: ratio {
  query = "load"
  unit = "1"
  join = instance
  assume = 2% * (rank + 1)
  every = 5s
  stale = 30s
}
queue by rank desc, pod.created asc
include kube_default
filter cool require load < 80% missing pass
score idle weight 3 lower load normalize range(0%, 100%) missing worst
layer gold when tier == "gold" {
  amend cool require load < 60% missing pass
}
"""
    + SPARING
)
ALPHA_STRICT = ALPHA.replace("missing pass\nscore", "missing reject\nscore").replace("weight 3", "weight 9")
ALPHA_ZONE = ALPHA + 'filter not_z2 reject node.labels["zone"] == "z2" says "zone z2 is being repaired"\n'
ALPHA_OUTAGE = ALPHA_STRICT.replace("queue by", "outage {\n  above = 50%\n  then = disable\n}\nqueue by")
ALPHA_SLOW = ALPHA.replace("load < 80% missing", "load < 80% recover 60% for 10s missing")
ALPHA_WAIT = (
    f"""\
policy alpha version 1
input rank: int = pod.labels["rank"] default 0 invalid default
metric load: ratio {{
  query = "load"
  unit = "1"
  join = instance
  assume = 2% * (rank + 1)
  every = 5s
  stale = 30s
}}
outage {{
  above = 0%
  then = wait
}}
queue by rank desc, pod.created asc
include kube_default
score idle weight 3 when rank < {WAITS_BELOW_RANK} lower load normalize range(0%, 100%) missing neutral
"""
    + SPARING
)

BETA = f"""\
policy beta version 1
include kube_default
{SPARING}"""
BETA_PACKED = f"""\
policy beta version 1
include "base.policy"
score node_affinity weight 2
{SPARING}"""
BETA_ASKING = f"{BETA}extender {EXTENDER}\n"
BETA_PATIENT = f"""\
policy beta version 1
queue by pod.waited > 8s desc, pod.priority desc, pod.created asc
include kube_default
filter gold_only when pod.priority < 5 require node.labels["pool"] else "general" != "gold"
{SPARING}"""

BASE = """\
library base version 1
filter node_unschedulable
filter taint_toleration
filter node_ports
filter node_resources_fit
filter volume_restrictions
filter volume_binding
filter volume_zone
filter dynamic_resources
score node_resources_fit weight 1 { strategy = most_allocated }
"""
BASE_SPREAD = BASE.replace("most_allocated", "least_allocated")

GAMMA = (
    """\
policy gamma version 1
input group: string = pod.labels["group"] optional
input least: int = pod.labels["least"] default 1 invalid reject "least must be a number"
queue by pod.priority desc, pod.created asc
gang by group {
  min = least
  timeout = 20s
  on_timeout = requeue
}
include "base.policy"
filter node_affinity
"""
    + SPARING_KEPT
)
GAMMA_ROOMY = GAMMA + "filter room require node.free.cpu - pod.requests.cpu >= 100m\n"

_TALK = """metric talk: bandwidth {
  query = "flows"
  unit = "B/s"
  from = ["namespace", "pod"]
  to = ["peer_namespace", "peer_pod"]
  every = 5s
  stale = 30s
  assume = 300Mbps
}
queue by"""
_NEAR = """filter apart require traffic_to(gang) < 800Mbps missing pass
score near weight 3 higher traffic_to(gang) normalize range(0bps, 1Gbps) missing neutral
"""
GAMMA_NEAR = GAMMA.replace("queue by", _TALK) + _NEAR
GAMMA_FAIL = GAMMA.replace("requeue", "fail")
GAMMA_IN_PART = GAMMA.replace("requeue", "best_effort")
GAMMA_TOGETHER = GAMMA.replace("timeout = 20s", 'timeout = 20s\n  topology = "zone"')

DELTA = (
    """\
policy delta version 1
input group: string = pod.labels["group"] optional
input least: int = pod.labels["least"] default 1 invalid reject "least must be a number"
gang by group {
  min = least
  max = least + 1
  timeout = 15s
  on_timeout = requeue
  mode = gate
}
include kube_default
filter few require count(pods on node where other.scheduler == "delta") < 6
"""
    + SPARING
)
DELTA_NEAR = DELTA.replace("gang by", _TALK.replace("queue by", "gang by")) + _NEAR

EPSILON = (
    """\
policy epsilon version 1
let kind: string = pod.labels["rank"] else "none"
state ended: float {
  key = kind
  on = terminated
  value = 1.0
  keep = 50%
  start = 0.0
}
queue by namespace.share.cpu, pod.priority desc, pod.created asc
include kube_default
filter crowd require count(pods where other.scheduler == "epsilon" and other.namespace == pod.namespace) <= 9
  says "there are too many of us"
filter worn require ended < 0.99 says "it is worn out for pods of rank {kind}"
score fresh weight 3 lower ended normalize range(0, 1)
"""
    + SPARING
)
EPSILON_ASKING = EPSILON + f"extender {EXTENDER} weight 2 missing neutral\n"

GOOD: Mapping[str, tuple[str, ...]] = {
    "alpha.policy": (ALPHA, ALPHA_STRICT, ALPHA_ZONE, ALPHA_OUTAGE, ALPHA_SLOW, ALPHA_WAIT),
    "base.policy": (BASE, BASE_SPREAD),
    "beta.policy": (BETA, BETA_PACKED, BETA_ASKING, BETA_PATIENT),
    "gamma.policy": (GAMMA, GAMMA_ROOMY, GAMMA_FAIL, GAMMA_IN_PART, GAMMA_TOGETHER, GAMMA_NEAR),
    "delta.policy": (DELTA_NEAR, DELTA),
    "epsilon.policy": (EPSILON_ASKING, EPSILON),
}

BAD: Mapping[str, tuple[str, ...]] = {
    "alpha.policy": (
        ALPHA.replace("require load < 80%", "require lod < 80%"),
        ALPHA.replace("filter cool", "filtr cool"),
        ALPHA.replace("}\nqueue by", "queue by"),
    ),
    "base.policy": ("library base version 1\nfilter node_resources_fitt\n",),
    "beta.policy": ("", "policy beta version 1\nscore idle weight 1 lower node.nothing\n"),
    "gamma.policy": (
        GAMMA.replace("timeout = 20s", "timeout = 20"),
        GAMMA.replace("default 1 invalid", "default one invalid"),
    ),
    "delta.policy": (DELTA.replace("< 6", "< 6 bananas"),),
    "epsilon.policy": (EPSILON.replace("on = terminated", "on = breakfast"),),
}

SCHEDULERS = ("alpha", "beta", "gamma", "delta", "epsilon")
"""The names of the policies, which are the schedulerNames of their pods."""
