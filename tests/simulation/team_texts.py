"""The policies of teams: `zeta` has quotas, `eta` the gangs of PodGroups with topology levels.

They run only in seeds with a `TeamProfile`, beside those of `policy_texts`.
"""

from collections.abc import Mapping

QUOTA_POLICY, GROUP_POLICY = "zeta", "eta"
TEAM_SCHEDULERS = (QUOTA_POLICY, GROUP_POLICY)

TEAMS = (("x", "a"), ("x", "b"), ("y", "c"), ("y", "d"))
"""Organisation and team of the pods of `zeta`, by their labels. The last has no row of its own."""

_SPARING = 'preemption { victims = victim.scheduler == pod.scheduler and not has victim.labels["keep"] }\n'

ZETA = f"""\
policy zeta version 1
input org: string = pod.labels["org"] default "none"
input team: string = pod.labels["team"] default "none"
input group: string = pod.labels["group"] optional
input least: int = pod.labels["least"] default 1 invalid reject "least must be a number"
quota org by org {{
  "x" {{ cpu = 3 borrow 1 }}
  "y" {{ cpu = 2 borrow any }}
  others {{ cpu = 0 }}
}}
quota team by team within org {{
  "a" in "x" {{ cpu = 2 borrow any, pods = 5 }}
  "b" in "x" {{ cpu = 1 borrow any }}
  "c" in "y" {{ cpu = 1500m borrow 1 }}
  others {{ cpu = 500m borrow any, pods = 3 }}
}}
queue by pod.quota_share.team, pod.priority desc, pod.created asc
gang by group {{
  min = least
  timeout = 20s
  on_timeout = requeue
  on_bind_failure = evict
}}
include "base.policy"
filter node_affinity
{_SPARING}"""
ZETA_SMALL = ZETA.replace("cpu = 2 borrow any, pods = 5", "cpu = 1 borrow any, pods = 4")
ZETA_FLAT = (
    ZETA.replace("team by team within org", "team by team").replace(' in "x"', "").replace(' in "y"', "")
)
ZETA_BY_AGE = ZETA.replace("pod.quota_share.team, ", "")

ETA = f"""\
policy eta version 1
queue by pod.priority desc, pod.created asc
gang by pod.group.name {{
  min = pod.group.min
  timeout = 20s
  on_timeout = requeue
  on_bind_failure = evict
  topology = ["zone" required, "pool" preferred]
  disruption = pod.group.disruption
}}
include "base.policy"
filter node_affinity
{_SPARING}"""
ETA_ANYWHERE = ETA.replace('  topology = ["zone" required, "pool" preferred]\n', "")
ETA_KEEPING = ETA.replace("on_bind_failure = evict", "on_bind_failure = keep")

TEAM_TEXTS: Mapping[str, tuple[str, ...]] = {
    "zeta.policy": (ZETA, ZETA_SMALL, ZETA_FLAT, ZETA_BY_AGE),
    "eta.policy": (ETA, ETA_ANYWHERE, ETA_KEEPING),
}
