"""The policies that simulated operators write: for each key several that check, and some that do not.

What checks and what does not is said here by whoever wrote them; a test holds the checker to it, so that the checker
is not its own judge.
"""

from collections.abc import Mapping

ALPHA = """\
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
ALPHA_STRICT = ALPHA.replace("missing pass\nscore", "missing reject\nscore").replace("weight 3", "weight 9")
ALPHA_ZONE = ALPHA + 'filter not_z2 reject node.labels["zone"] == "z2" else "zone z2 is being repaired"\n'
ALPHA_OUTAGE = ALPHA_STRICT.replace("queue by", "outage {\n  above = 50%\n  then = disable\n}\nqueue by")

BETA = """\
policy beta version 1
include kube_default
"""
BETA_PACKED = """\
policy beta version 1
include "base.policy"
score node_affinity weight 2
"""
BETA_PATIENT = """\
policy beta version 1
queue by pod.waited > 8s desc, pod.priority desc, pod.created asc
include kube_default
filter gold_only when pod.priority < 5 require node.labels["pool"] else "general" != "gold"
"""

BASE = """\
library base version 1
filter node_unschedulable
filter taint_toleration
filter node_ports
filter node_resources_fit
score node_resources_fit weight 1 { strategy = most_allocated }
"""
BASE_SPREAD = BASE.replace("most_allocated", "least_allocated")

GAMMA = """\
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
GAMMA_ROOMY = GAMMA + "filter room require node.free.cpu - pod.requests.cpu >= 100m\n"

GAMMA_TOGETHER = GAMMA.replace("timeout = 20s", 'timeout = 20s\n  topology = "zone"')
GAMMA_URGENT = GAMMA + "preemption { victims = any }\n"

DELTA = """\
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

GOOD: Mapping[str, tuple[str, ...]] = {
    "alpha.policy": (ALPHA, ALPHA_STRICT, ALPHA_ZONE, ALPHA_OUTAGE),
    "base.policy": (BASE, BASE_SPREAD),
    "beta.policy": (BETA, BETA_PACKED, BETA_PATIENT),
    "gamma.policy": (GAMMA, GAMMA_ROOMY, GAMMA_TOGETHER, GAMMA_URGENT),
    "delta.policy": (DELTA,),
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
}

SCHEDULERS = ("alpha", "beta", "gamma", "delta")
"""The policies' names, which pods give as their schedulerName."""
