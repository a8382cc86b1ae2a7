"""PodGroups: objects that say which pods start together.

Three APIs define them: Kubernetes (`scheduling.k8s.io`), scheduler-plugins (`scheduling.x-k8s.io`) and Volcano
(`scheduling.volcano.sh`). A pod names its group by a field, a label or an annotation.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from policysched.model.nodes import Resources

PodGroupApi = Literal["scheduling.k8s.io", "scheduling.x-k8s.io", "scheduling.volcano.sh"]

GROUP_FIELD = "spec.schedulingGroup"
GROUP_LABEL = "scheduling.x-k8s.io/pod-group"
GROUP_ANNOTATION = "scheduling.k8s.io/group-name"

REFERENCE_NAMES: Mapping[PodGroupApi, str] = {
    "scheduling.k8s.io": GROUP_FIELD,
    "scheduling.x-k8s.io": f"the label {GROUP_LABEL}",
    "scheduling.volcano.sh": f"the annotation {GROUP_ANNOTATION}",
}
"""How a pod names a group of each API, for messages."""


class GroupReference(NamedTuple):
    """The PodGroup that a pod names, in its own namespace."""

    api: PodGroupApi
    name: str


class PodGroupKey(NamedTuple):
    """Identifies a PodGroup, or the pods that name one that does not exist."""

    api: PodGroupApi
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"PodGroup {self.namespace}/{self.name} ({self.api})"


@dataclass(frozen=True, slots=True)
class PodGroupStatus:
    """The status that the server has, as far as this scheduler writes it. `condition`: (status, reason, message) of the
    condition that says whether the group is scheduled; None without one. `disrupted`: it is being preempted as a whole. `other_conditions`: the other conditions of
    an API whose list cannot be merged by type, as the server has them; None: they are too long to be written again, so no
    condition is written."""

    condition: tuple[str, str, str] | None = None
    phase: str = ""
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    disrupted: bool = False
    other_conditions: tuple[Mapping[str, object], ...] | None = ()


@dataclass(frozen=True, slots=True, weakref_slot=True)
class PodGroup:
    """A PodGroup of any API. Equal groups decide equally: `version` and `status` are not compared.

    `minimum`: how many members start together; 1 for a group whose pods are scheduled one by one. `min_resources`: what
    the members that start together request at least. `topology`: the label key on which the members' nodes agree.
    `disruption`: whether members are preempted one by one, or all together; None: not said. `priority` and
    `preemption_policy`: None where the pods' own apply. `workload` is the Workload it was made for, `parent` its
    CompositePodGroup. `api_version` is the version that the server serves, such as `v1beta1`.
    """

    key: PodGroupKey
    uid: str
    api_version: str
    minimum: int
    min_resources: Resources = field(default_factory=dict)
    topology: str | None = None
    timeout_ns: int | None = None
    disruption: Literal["single", "all"] | None = None
    priority: int | None = None
    preemption_policy: Literal["PreemptLowerPriority", "Never"] | None = None
    workload: str | None = None
    parent: str | None = None
    has_claims: bool = False
    version: str = field(default="", compare=False)
    status: PodGroupStatus = field(default=PodGroupStatus(), compare=False)

    @property
    def name(self) -> str:
        return self.key.name

    @property
    def api(self) -> PodGroupApi:
        return self.key.api
