"""The section `team_policies` of the settings: which ConfigMaps of teams are read, and what their policies are built on."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from policysched.config.layers import LayeredSettings
from policysched.metric_sources.source_kind import SettingProblem

TEAM_CONFIG_MAP = "policysched-policies"


@dataclass(frozen=True, slots=True)
class TeamPolicySettings:
    """`required_base`: the key of the library that each team's policy includes first. `config_map`: the name of the
    ConfigMap in the namespaces of the teams. The limits are those of one namespace, `policy_cost_max` that of a policy."""

    required_base: str
    config_map: str = TEAM_CONFIG_MAP
    texts_max: int = 8
    bytes_max: int = 128 * 1024
    policy_cost_max: int = 1_000


def team_settings(values: Mapping[str, Any]) -> TeamPolicySettings | None:
    """From settings that fit the schema; None: no ConfigMap of a team is read."""
    section = values.get("team_policies")
    return None if section is None else TeamPolicySettings(**section)


def team_problems(layers: LayeredSettings) -> Iterator[SettingProblem]:
    """`team_policies` needs names with an `owner`; without them no text of a team could have a name."""
    entries = (layers.valid("policy_permissions") or {}).get("policies_allowed", ())
    owned = any("owner" in policy for policy in entries)
    for policy in entries:
        if "owner" in policy and policy.keys() & {"namespaces", "namespace_labels"}:
            reason = f"the policies `{policy['name']}` serve only the namespace of their owner: remove the namespaces"
            yield ("policy_permissions", "policies_allowed"), reason
    if layers.valid("team_policies") and not owned:
        yield ("team_policies",), "no entry of policy_permissions.policies_allowed has an `owner`"
