"""What the operator allows policies to do: the names that they may have, the namespaces that each serves, and whom they
may evict.

The values come from the settings, so that the author of a policy cannot change them. Nothing here reads a policy.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal, get_args

from policysched.model.namespaces import Namespace
from policysched.model.pods import Pod

DEFAULT_SCHEDULER = "default-scheduler"
"""Pods that name no scheduler have this one, so a policy of this name takes every such pod."""

MIRROR_POD_ANNOTATION = "kubernetes.io/config.mirror"
"""Set by kubelets on the mirror pods of their static pods; the API server rejects it on a pod without a node."""

ProtectedClass = Literal["kube-system", "static-pods", "daemonset-pods"]
ALL_PROTECTED: frozenset[ProtectedClass] = frozenset(get_args(ProtectedClass))


@dataclass(frozen=True, slots=True)
class NamespaceSelection:
    """Namespaces by name (`*` stands for any characters; empty: every name) and by labels. Both must match."""

    names: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)

    def selects(self, name: str, namespace: Namespace | None) -> bool:
        """A namespace that is not known yet (None) has no labels."""
        if not self.selects_name(name):
            return False
        if not self.labels:
            return True
        labels: Mapping[str, str] = {} if namespace is None else namespace.labels
        return all(labels.get(key) == value for key, value in self.labels.items())

    def selects_name(self, name: str) -> bool:
        return not self.names or any(fnmatchcase(name, pattern) for pattern in self.names)

    def __str__(self) -> str:
        """`ml-*, batch with the labels team=ml`."""
        names = ", ".join(self.names) or "all namespaces"
        if not self.labels:
            return names
        labels = ", ".join(f"{key}={value}" for key, value in sorted(self.labels.items()))
        return f"{names} with the label{'s' if len(self.labels) > 1 else ''} {labels}"


EVERY_NAMESPACE = NamespaceSelection()


@dataclass(frozen=True, slots=True)
class AllowedPolicy:
    """Policies by name (`*` stands for any characters), and the namespaces that they serve. With an `owner` they are
    those of a team: they serve and evict pods only in its namespace."""

    name: str
    namespaces: NamespaceSelection = EVERY_NAMESPACE
    owner: str | None = None

    def allows(self, policy: str) -> bool:
        """`default-scheduler` is allowed only by its exact name, never by a pattern."""
        return policy == self.name or (policy != DEFAULT_SCHEDULER and fnmatchcase(policy, self.name))


@dataclass(frozen=True, slots=True)
class VictimCeiling:
    """The pods that any policy may evict, whatever its `preemption` clause says. `priority_max` None: any priority;
    `protected`: classes of pods that are never evicted.
    """

    namespaces: NamespaceSelection = EVERY_NAMESPACE
    priority_max: int | None = None
    protected: frozenset[ProtectedClass] = ALL_PROTECTED

    def protects(self, victim: Pod, namespace: Namespace | None) -> bool:
        """Whether the pod must not be evicted. `namespace` is the pod's."""
        return (
            (self.priority_max is not None and victim.priority > self.priority_max)
            or ("kube-system" in self.protected and victim.namespace == "kube-system")
            or ("static-pods" in self.protected and MIRROR_POD_ANNOTATION in victim.annotations)
            or ("daemonset-pods" in self.protected and _is_of_daemon_set(victim))
            or not self.namespaces.selects(victim.namespace, namespace)
        )


def _is_of_daemon_set(pod: Pod) -> bool:
    """By its controller reference, which the creator of the pod sets. The garbage collector deletes pods whose DaemonSet
    does not exist; it cannot look up one of an invented API group."""
    return pod.owner_kind == "DaemonSet" and pod.owner_api.startswith("apps/")


_OWNERS_KEPT_MAX = 16_384
_OWNED_NAME_MAX = 63
"""Of a policy. A `schedulerName` can be of any length."""


@dataclass(frozen=True, slots=True)
class PolicyPermissions:
    """`policies` None: every name except `default-scheduler`, and every namespace."""

    policies: tuple[AllowedPolicy, ...] | None = None
    victims: VictimCeiling = field(default_factory=VictimCeiling)
    _owners: dict[str, str | None] = field(default_factory=dict, init=False, repr=False, compare=False)

    def allows_name(self, policy: str) -> bool:
        if self.policies is None:
            return policy != DEFAULT_SCHEDULER
        return any(allowed.allows(policy) for allowed in self.policies)

    def owner(self, policy: str) -> str | None:
        """The namespace of the team that owns the name: that of the first entry with an owner. None: the operator's. Found
        once for a name: hundreds of teams have an entry each, and each edit of one asks for all names."""
        known = self._owners.get(policy, "")
        if known != "":
            return known
        owners = (
            allowed.owner for allowed in self.policies or () if allowed.owner and allowed.allows(policy)
        )
        owner = next(owners, None)
        if len(policy) <= _OWNED_NAME_MAX:
            if len(self._owners) >= _OWNERS_KEPT_MAX:
                self._owners.clear()
            self._owners[policy] = owner
        return owner

    def owners(self) -> frozenset[str]:
        """The namespaces of all teams that own a name."""
        return frozenset(allowed.owner for allowed in self.policies or () if allowed.owner)

    def protects(self, policy: str, victim: Pod, namespace: Namespace | None) -> bool:
        """Whether a pod of the policy must not evict `victim`, whose namespace is `namespace`."""
        owner = self.owner(policy)
        return (owner is not None and victim.namespace != owner) or self.victims.protects(victim, namespace)

    def counts(self, policy: str, namespace: str) -> bool:
        """Whether pods of the namespace that name the policy count for it: in quotas, states and canaries. Anybody can create a
        pod with `nodeName`, whatever policy it names. By the names of namespaces alone: their labels change."""
        if self.policies is None:
            return True
        owner = self.owner(policy)
        if owner is not None:
            return namespace == owner
        return any(
            allowed.allows(policy) and allowed.namespaces.selects_name(namespace) for allowed in self.policies
        )

    def namespace_rejection(self, policy: str, name: str, namespace: Namespace | None) -> str | None:
        """Why the policy schedules no pods of the namespace called `name`; None if it serves it."""
        if self.policies is None:
            return None
        owner = self.owner(policy)
        if owner is not None:
            return (
                None
                if name == owner
                else (
                    f"policy {policy} does not serve namespace {name}: the settings (policy_permissions.policies_allowed) "
                    f"say that namespace {owner} owns it"
                )
            )
        served = [allowed.namespaces for allowed in self.policies if allowed.allows(policy)]
        if any(selection.selects(name, namespace) for selection in served):
            return None
        return (
            f"policy {policy} does not serve namespace {name}: the settings (policy_permissions.policies_allowed) "
            f"let it serve {'; '.join(map(str, served))}"
        )


Counts = Callable[[str, str], bool]
"""`PolicyPermissions.counts`."""

COUNTS_ALWAYS: Counts = PolicyPermissions().counts
"""Without settings."""

ANY_POLICY_NAME = PolicyPermissions((AllowedPolicy("*"), AllowedPolicy(DEFAULT_SCHEDULER)))
"""For offline commands without settings: every name, every namespace, and the default ceiling."""
