"""The section `policy_permissions` of the settings: from checked YAML to what policies may do."""

from collections.abc import Mapping
from typing import Any

from policysched.scheduler.policy_permissions import (
    ALL_PROTECTED,
    AllowedPolicy,
    NamespaceSelection,
    PolicyPermissions,
    VictimCeiling,
)


def permission_settings(values: Mapping[str, Any]) -> PolicyPermissions:
    """From settings that fit the schema."""
    section = values.get("policy_permissions", {})
    policies, victims = section.get("policies_allowed"), section.get("victims_allowed", {})
    return PolicyPermissions(
        None if policies is None else tuple(_allowed_policy(policy) for policy in policies),
        VictimCeiling(
            _namespaces(victims),
            victims.get("priority_max"),
            frozenset(victims.get("protected", ALL_PROTECTED)),
        ),
    )


def _allowed_policy(values: Mapping[str, Any]) -> AllowedPolicy:
    owner = values.get("owner")
    served = _namespaces(values) if owner is None else NamespaceSelection((owner,))
    return AllowedPolicy(values["name"], served, owner)


def _namespaces(values: Mapping[str, Any]) -> NamespaceSelection:
    return NamespaceSelection(tuple(values.get("namespaces", ())), values.get("namespace_labels", {}))
