"""The JSON of a pod without most of thousands of items of which none is kept (`large_pods`): to decode them all takes up to 35 times
as long as to parse them. Of each list are left as many as exceed the limit on their own, so that the rest is dropped as if all
had been decoded."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, TypeVar

from policysched.evaluate.decision_cost import ITEM_OPERATIONS, VALUE_OPERATIONS
from policysched.kube.decode.core_objects import Json
from policysched.kube.decode.pod_affinity import PREFERRED, REQUIRED

Item = TypeVar("Item")
Change = Callable[[Any], Any]

COUNTED_ALWAYS = ("cpu", "memory", "ephemeral-storage")
_SELECTORS = ("labelSelector", "namespaceSelector")
_NODE_REQUIREMENTS = ("matchExpressions", "matchFields")


def with_first_items(pod: Json, operations_max: int, resources: Collection[str]) -> Json:
    """`operations_max`: of what is kept (`evaluate.decision_cost`). `resources`: those that nodes have, which are all left."""
    return {**pod, "spec": _FirstItems(operations_max, resources).of_spec(pod["spec"])}


class _FirstItems:
    def __init__(self, operations_max: int, resources: Collection[str]) -> None:
        self._operations_max = operations_max
        self._items_max = operations_max // ITEM_OPERATIONS
        self._values_max = operations_max // VALUE_OPERATIONS
        self._resources = resources

    def of_spec(self, spec: Json) -> Json:
        terms: dict[str, Change] = dict.fromkeys((REQUIRED, PREFERRED), self._terms)
        of_nodes: dict[str, Change] = {
            REQUIRED: partial(_changed, nodeSelectorTerms=self._node_terms),
            PREFERRED: self._node_terms,
        }
        affinity = partial(
            _changed,
            nodeAffinity=partial(_changed, **of_nodes),
            podAffinity=partial(_changed, **terms),
            podAntiAffinity=partial(_changed, **terms),
        )
        containers = self._with_resources(self._resources_left(spec))
        return _changed(
            spec,
            tolerations=self._items,
            topologySpreadConstraints=self._items,
            affinity=affinity,
            volumes=self._volumes,
            containers=containers,
            initContainers=containers,
        )

    def _items(self, items: Sequence[Item]) -> Sequence[Item]:
        return items[: self._items_max + 1]

    def _terms(self, terms: Iterable[Json]) -> list[Json]:
        """Inter-pod affinity terms, also weighted ones."""
        change: dict[str, Change] = dict.fromkeys(_SELECTORS, self._selector)
        of_term = partial(_changed, **change, podAffinityTerm=partial(_changed, **change))
        return list(map(of_term, self._within(terms, _term_operations)))

    def _node_terms(self, terms: Iterable[Json]) -> list[Json]:
        """Node selector terms, also weighted ones."""
        change: dict[str, Change] = dict.fromkeys(_NODE_REQUIREMENTS, self._requirements)
        of_term = partial(_changed, **change, preference=partial(_changed, **change))
        return list(map(of_term, self._within(terms, _node_term_operations)))

    def _within(self, items: Iterable[Item], operations: Callable[[Item], int]) -> Iterator[Item]:
        """As many as exceed the limit by what they cost."""
        left = self._operations_max
        for item in items:
            if left < 0:
                return
            left -= operations(item)
            yield item

    def _selector(self, selector: Json) -> Json:
        def labels(all_of_them: Mapping[str, str]) -> Mapping[str, str]:
            return dict(islice(all_of_them.items(), self._values_max + 1))

        return _changed(selector, matchLabels=labels, matchExpressions=self._requirements)

    def _requirements(self, requirements: Sequence[Json]) -> list[Json]:
        def values(all_of_them: Sequence[str]) -> Sequence[str]:
            return all_of_them[: self._values_max + 1]

        return [_changed(each, values=values) for each in requirements[: self._values_max + 1]]

    def _volumes(self, volumes: Iterable[Json]) -> list[Json]:
        """The first of each kind."""
        left = dict[tuple[str, ...], int]()

        def is_left(volume: Json) -> bool:
            fields = tuple(volume)
            left[fields] = left.get(fields, self._items_max + 1) - 1
            return left[fields] >= 0

        of_volume = partial(_changed, rbd=partial(_changed, monitors=self._items))
        return list(map(of_volume, filter(is_left, volumes)))

    def _resources_left(self, spec: Json) -> Collection[str] | None:
        """Those of which requests and limits are left; None: all are."""
        names = dict.fromkeys(chain.from_iterable(_resource_lists(spec)))
        if len(names) <= self._items_max:
            return None
        in_use = {name for name in names if name in COUNTED_ALWAYS or name in self._resources}
        others = (name for name in names if name not in in_use)
        left = in_use.union(islice(others, self._items_max + 1))
        limits = chain.from_iterable(_resource_lists(spec, ("limits",)))
        return left.union(
            islice((name for name in limits if name not in left), 1)
        )  # says that there are more

    def _with_resources(self, left: Collection[str] | None) -> Callable[[Sequence[Json]], Sequence[Json]]:
        if left is None:
            return lambda containers: containers

        def amounts(all_of_them: Json) -> Json:
            return {name: amount for name, amount in all_of_them.items() if name in left}

        of_container = partial(_changed, resources=partial(_changed, requests=amounts, limits=amounts))
        return lambda containers: [of_container(container) for container in containers]


def _changed(obj: Json, /, **changes: Change) -> Json:
    """With other values of those of the keys that it has."""
    return {**obj, **{key: change(obj[key]) for key, change in changes.items() if obj.get(key)}}


def _term_operations(term: Json) -> int:
    """At most what it counts for a decision."""
    term, values = term.get("podAffinityTerm", term), 0
    for name in _SELECTORS:
        selector = term.get(name) or {}
        values += 2 * len(selector.get("matchLabels") or ())
        values += sum(1 + len(each.get("values") or ()) for each in selector.get("matchExpressions") or ())
    return ITEM_OPERATIONS + VALUE_OPERATIONS * values


def _node_term_operations(term: Json) -> int:
    """At most what it counts for a decision."""
    term = term.get("preference", term)
    requirements = [each for name in _NODE_REQUIREMENTS for each in term.get(name) or ()]
    values = sum(len(each.get("values") or ()) for each in requirements)
    return ITEM_OPERATIONS * len(requirements) + VALUE_OPERATIONS * values


def _resource_lists(spec: Json, kinds: Sequence[str] = ("limits", "requests")) -> Iterator[Json]:
    for container in chain(spec.get("containers") or (), spec.get("initContainers") or ()):
        resources = container.get("resources") or {}
        yield from (resources[kind] for kind in kinds if resources.get(kind))
