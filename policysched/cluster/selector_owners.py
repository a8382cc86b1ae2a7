"""Services and controllers as selectors of pods, for the default topology spread of pods without
constraints.

The default selector of a pod combines the selectors of its Services and its controller
(ReplicationController, ReplicaSet or StatefulSet). Services are indexed by one of their labels;
selectors are cached until one of these objects changes. Source: `DefaultSelector` in kubernetes'
`pkg/scheduler/framework/plugins/helper`.
"""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from policysched.model.pods import Pod
from policysched.model.selectors import LabelSelector, SelectorRequirement
from policysched.model.workloads import SelectorOwner, SelectorOwnerKind

SelectorOwnerKey = tuple[SelectorOwnerKind, str, str]
"""Kind, namespace and name."""

_SELECTORS_CACHED_MAX, _CHARACTERS_CACHED_MAX = 16384, 2**24
_CHARACTERS_PER_LABEL = 128  # short labels take more than their characters

REQUIREMENTS_MAX = 256
"""A pod whose default selector would have more is not spread by default: whoever writes thousands of requirements wants to
make decisions slow."""

COMPARED_MAX = 10_000
"""The same for the requirements of all Services that may select it: about 2 ms."""

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
        self._services: dict[
            tuple[str, str, str], dict[str, SelectorOwner]
        ] = {}  # by namespace and one label
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
        if (index_key := _index_key(selector_owner)) is not None:
            self._services.setdefault(index_key, {})[selector_owner.name] = selector_owner
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
        labels: dict[str, str] = {}
        compared = 0
        for service in self._services_of(pod):
            assert service.selector is not None, f"{service} is indexed without a selector"
            compared += len(service.selector.requirements)
            if compared > COMPARED_MAX:
                return None
            if service.selector.selects(pod.labels):
                labels.update(_selected_labels(service))
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

    def _services_of(self, pod: Pod) -> Iterator[SelectorOwner]:
        """Those that may select the pod."""
        for key, value in pod.labels.items():
            yield from self._services.get((pod.namespace, key, value), {}).values()

    def _unindex(self, before: SelectorOwner | None) -> None:
        if before is not None and (index_key := _index_key(before)) is not None:
            del self._services[index_key][before.name]
            if not self._services[index_key]:
                del self._services[index_key]

    def _changed(self) -> None:
        self.version += 1
        self._default_selectors.clear()


def _index_key(selector_owner: SelectorOwner) -> tuple[str, str, str] | None:
    """Namespace and first label of a Service's selector. None: no Service, or it selects nothing."""
    if (
        selector_owner.kind != "Service"
        or selector_owner.selector is None
        or not selector_owner.selector.requirements
    ):
        return None
    first = selector_owner.selector.requirements[0]
    return selector_owner.namespace, first.key, first.values[0]


def _selected_labels(selector_owner: SelectorOwner) -> Mapping[str, str]:
    """The labels that a Service or ReplicationController selects; these select by equality only."""
    return (
        {}
        if selector_owner.selector is None
        else {each.key: each.values[0] for each in selector_owner.selector.requirements}
    )
