"""Services and controllers as selectors of pods, for the default topology spread of pods without
constraints.

The default selector of a pod combines the selectors of its Services and its controller
(ReplicationController, ReplicaSet or StatefulSet). The selectors of Services are indexed; default
selectors are cached until one of these objects changes. Source: `DefaultSelector` in kubernetes'
`pkg/scheduler/framework/plugins/helper`.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from itertools import chain

from policysched.cluster.selector_index import SelectorIndex
from policysched.model.pods import Pod
from policysched.model.selectors import LabelSelector, SelectorRequirement
from policysched.model.workloads import SelectorOwner, SelectorOwnerKind

SelectorOwnerKey = tuple[SelectorOwnerKind, str, str]
"""Kind, namespace and name."""

_SELECTORS_CACHED_MAX, _CHARACTERS_CACHED_MAX = 16384, 2**24
_CHARACTERS_PER_LABEL = 128  # short labels take more than their characters

REQUIREMENTS_MAX = 256
"""A pod whose default selector would have more is not spread by default, nor one that has more labels of which Services require
something: whoever writes thousands of them wants to make decisions slow. Nor is any pod of a namespace with more Services
than are indexed."""

_NO_SERVICES = SelectorIndex()

CONTROLLER_KINDS: Mapping[tuple[str, str], SelectorOwnerKind] = {
    ("v1", "ReplicationController"): "ReplicationController",
    ("apps/v1", "ReplicaSet"): "ReplicaSet",
    ("apps/v1", "StatefulSet"): "StatefulSet",
}
"""By apiVersion and kind of the owner. Kinds of other API groups are ignored."""


@dataclass(frozen=True, slots=True)
class DefaultSelector:
    """Selects the pods of a pod's namespace that it is spread with. `selects_itself`: the pod
    matches its own selector."""

    label_selector: LabelSelector
    selects_itself: bool


class SelectorOwners:
    """All Services and controllers by key. `version` grows with each change."""

    def __init__(self) -> None:
        self.by_key: dict[SelectorOwnerKey, SelectorOwner] = {}
        self.version = 0
        self._services: dict[str, SelectorIndex] = {}  # by namespace
        self._default_selectors: dict[Hashable, DefaultSelector | None] = {}
        self._characters = 0  # of the labels in their keys

    def put(self, selector_owner: SelectorOwner) -> bool:
        """Returns whether that changed anything."""
        key = (selector_owner.kind, selector_owner.namespace, selector_owner.name)
        before = self.by_key.get(key)
        if before == selector_owner:
            return False
        self._unindex(before)
        self.by_key[key] = selector_owner
        selector = selector_owner.selector
        if selector_owner.kind == "Service" and selector is not None and selector.requirements:
            index = self._services.setdefault(selector_owner.namespace, SelectorIndex())
            # As many labels as a pod that is spread by default has, and one more.
            index.put(selector_owner.name, LabelSelector(selector.requirements[: REQUIREMENTS_MAX + 1]))
        self._changed()
        return True

    def drop(self, kind: SelectorOwnerKind, namespace: str, name: str) -> bool:
        before = self.by_key.pop((kind, namespace, name), None)
        if before is None:
            return False
        self._unindex(before)
        self._changed()
        return True

    def default_selector(self, pod: Pod) -> DefaultSelector | None:
        """None if no observed Service or controller selects the pod."""
        if not self.by_key:
            return None
        key = pod.namespace, pod.owner_api, pod.owner_kind, pod.owner_name, tuple(pod.labels.items())
        try:
            return self._default_selectors[key]
        except KeyError:
            self._characters += sum(map(len, chain(*key[-1]))) + _CHARACTERS_PER_LABEL * len(key[-1])
            if (
                len(self._default_selectors) >= _SELECTORS_CACHED_MAX
                or self._characters > _CHARACTERS_CACHED_MAX
            ):
                self._default_selectors.clear()
                self._characters = 0
            selector = self._default_selectors[key] = self._default_selector(pod)
            return selector

    def _default_selector(self, pod: Pod) -> DefaultSelector | None:
        services = self._services.get(pod.namespace, _NO_SERVICES)
        keys = services.required_keys(pod.labels, REQUIREMENTS_MAX)
        if keys is None:
            return None
        labels = {key: pod.labels[key] for key in keys}
        kind = CONTROLLER_KINDS.get((pod.owner_api, pod.owner_kind))
        owner = None if kind is None else self.by_key.get((kind, pod.namespace, pod.owner_name))
        controller_requirements: tuple[SelectorRequirement, ...] = ()
        if owner is not None and owner.kind == "ReplicationController":
            labels.update(_selected_labels(owner))
        elif owner is not None and owner.selector is not None:
            controller_requirements = owner.selector.requirements
        requirements = (
            tuple([SelectorRequirement(key, "In", (labels[key],)) for key in sorted(labels)])
            + controller_requirements
        )
        if not requirements or len(requirements) > REQUIREMENTS_MAX:
            return None
        selector = LabelSelector(requirements)
        return DefaultSelector(selector, selector.selects(pod.labels))

    def _unindex(self, before: SelectorOwner | None) -> None:
        if before is not None and before.kind == "Service" and before.namespace in self._services:
            self._services[before.namespace].remove(before.name)
            if not self._services[before.namespace]:
                del self._services[before.namespace]

    def _changed(self) -> None:
        self.version += 1
        self._default_selectors.clear()


def _selected_labels(selector_owner: SelectorOwner) -> Mapping[str, str]:
    """The labels that a ReplicationController selects; it selects by equality only."""
    return (
        {}
        if selector_owner.selector is None
        else {each.key: each.values[0] for each in selector_owner.selector.requirements}
    )
