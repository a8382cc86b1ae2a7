"""`ClusterPodCounter`: evaluates `count(pods where ...)` over the cluster by index.

In `other.namespace == pod.namespace and other.labels["group"] == group and other.priority > 3` the
equalities are an index lookup: pods are indexed by the counted pod's side of them (the index key),
and the pod being scheduled looks up one key. Under a key, pods are grouped by what the rest of the
condition reads of them (the residual key), with a count: the rest is evaluated once per group.
Indexes follow the pods of the cluster one change at a time.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from policysched.cluster.cache import ClusterCache
from policysched.cluster.pod_index import PodIndex
from policysched.evaluate.columns.overlay import Overlay
from policysched.evaluate.scalar.compiler import compile_scalar
from policysched.evaluate.scalar.eval_context import (
    EvalContext,
    ExprDeclarations,
    ScalarFunction,
    inputs_read,
)
from policysched.evaluate.scalar.leaves import attribute
from policysched.lang.ir import expr as e
from policysched.lang.ir.expr_analysis import is_floating, walk
from policysched.lang.ir.reads import expr_reads
from policysched.model.identifiers import PodUid
from policysched.model.namespaces import Namespace
from policysched.model.pods import Pod

_INDEXES_MAX = 64
_CACHE_ENTRIES_MAX = 10_000
_NO_NAMESPACE = Namespace("", {}, {})

IndexKey = tuple[Hashable, ...]
ResidualKey = tuple[Hashable, ...]


class ClusterPodCounter:
    """The indexes of one cluster cache, least recently used ones evicted."""

    def __init__(self, cache: ClusterCache) -> None:
        self._cache = cache
        self._indexes: OrderedDict[Hashable, _PodCountIndex] = OrderedDict()

    def count(self, expr: e.CountPodsInCluster, program: ExprDeclarations, context: EvalContext) -> int:
        """How many pods satisfy the condition, including the pod itself, even if the cache does not have it (offline)."""
        index = self._index(expr, program, self._cache.active_pods)
        uncached = context.pod if context.pod.uid not in self._cache.pods else None
        total = index.count(context) + (uncached is not None and index.query.matches(uncached, context))
        if not expr.include_finished:
            return total
        return total + self._index(expr, program, self._cache.ended_pods).count(context)

    def count_among(
        self, expr: e.CountPodsInCluster, program: ExprDeclarations, context: EvalContext, pods: Iterable[Pod]
    ) -> int:
        """How many of these pods `count` includes."""
        active = self._cache.active_pods.pods
        ended = self._cache.ended_pods.pods if expr.include_finished else {}
        counted = [pod for pod in pods if pod.uid in active or pod.uid in ended]
        query = self._index(expr, program, self._cache.active_pods).query
        return sum(query.matches(pod, context) for pod in counted)

    def _index(
        self, expr: e.CountPodsInCluster, program: ExprDeclarations, pods: PodIndex
    ) -> "_PodCountIndex":
        key = expr.where, inputs_read(program, expr), pods is self._cache.ended_pods
        index = self._indexes.get(key)
        if index is None:
            index = self._indexes[key] = _PodCountIndex(_CountQuery.of(expr.where, program))
            if len(self._indexes) > _INDEXES_MAX:
                self._indexes.popitem(last=False)
        else:
            self._indexes.move_to_end(key)
        index.catch_up(pods)
        return index


class HypotheticalPodCounter:
    """Counts on an overlay: without the pods that it removed. A pod that it added counts as before."""

    def __init__(self, counter: ClusterPodCounter, overlay: Overlay) -> None:
        self._counter = counter
        self._overlay = overlay

    def count(self, expr: e.CountPodsInCluster, program: ExprDeclarations, context: EvalContext) -> int:
        removed = self._counter.count_among(expr, program, context, self._overlay.removed_pods)
        return self._counter.count(expr, program, context) - removed


@dataclass(frozen=True, slots=True)
class _CountQuery:
    """A condition split for the index: `other_key` of a counted pod must equal `pod_key` of the pod
    being scheduled, and `residual` (None: nothing more) must be true, which reads `other_reads` of
    the former and `pod_reads` of the latter."""

    other_key: tuple[ScalarFunction, ...]
    pod_key: tuple[ScalarFunction, ...]
    residual: ScalarFunction | None
    other_reads: tuple[ScalarFunction, ...]
    pod_reads: tuple[ScalarFunction, ...]

    @classmethod
    def of(cls, where: e.Expr, program: ExprDeclarations) -> "_CountQuery":
        equalities, rest = list[tuple[e.Expr, e.Expr]](), list[e.Expr]()
        for item in where.items if isinstance(where, e.And) else (where,):
            operands = _equality_operands(item)
            if operands is None:
                rest.append(item)
            else:
                equalities.append(operands)
        # A conjunction is true where every item is; a missing item makes it not true.
        residual = None if not rest else rest[0] if len(rest) == 1 else e.And(tuple(rest), where.span)
        reads = expr_reads(residual, program.inputs)
        return cls(
            other_key=tuple(compile_scalar(other_side, program) for other_side, _ in equalities),
            pod_key=tuple(compile_scalar(pod_side, program) for _, pod_side in equalities),
            residual=None if residual is None else compile_scalar(residual, program),
            other_reads=tuple(attribute("other", path) for path in sorted(reads.counted_pods)),
            pod_reads=(
                *(attribute("pod", path) for path in sorted(reads.pod)),
                *(attribute("namespace", path) for path in sorted(reads.namespace)),
            ),
        )

    def index_key(self, pod: Pod) -> IndexKey | None:
        """The key of a counted pod; None: a value is missing, so that the pod never counts."""
        return _values(self.other_key, _other_pod_context(pod))

    def residual_key(self, pod: Pod) -> ResidualKey:
        context = _other_pod_context(pod)
        return tuple([read(context) for read in self.other_reads])

    def matches(self, other: Pod, context: EvalContext) -> bool:
        """Whether one pod counts."""
        key = self.index_key(other)
        if key is None or key != _values(self.pod_key, context):
            return False
        return self.residual is None or self.residual(context.with_other_pod(other)) is True


def _values(functions: Sequence[ScalarFunction], context: EvalContext) -> IndexKey | None:
    values = tuple([function(context) for function in functions])
    return None if None in values else values


def _other_pod_context(pod: Pod) -> EvalContext:
    return EvalContext(pod, _NO_NAMESPACE, other=pod)


def _equality_operands(item: e.Expr) -> tuple[e.Expr, e.Expr] | None:
    """The counted pod's side of an equality and the other side; None: not an equality that an index can serve."""
    if not isinstance(item, e.Compare) or item.op != "==":
        return None
    if is_floating(item.left) or is_floating(item.right):
        return None
    match _reads_only_other(item.left), _reads_only_other(item.right):
        case True, False:
            return item.left, item.right
        case False, True:
            return item.right, item.left
        case _:
            return None


def _reads_only_other(expr: e.Expr) -> bool | None:
    """True: reads the counted pod alone; False: does not read it; None: reads both pods."""
    reads_other = set[bool]()
    for part in walk(expr):
        match part:
            case e.Attr(owner=owner) | e.InputRef(owner=owner):
                reads_other.add(owner == "other")
    return None if len(reads_other) > 1 else reads_other == {True}


@dataclass(slots=True)
class _CountedClass:
    representative: Pod
    count: int


class _PodCountIndex:
    """Counts of pods by index key and residual key."""

    def __init__(self, query: _CountQuery) -> None:
        self.query = query
        self._version = -1
        self._keys_by_pod: dict[PodUid, tuple[IndexKey, ResidualKey]] = {}
        self._classes: dict[IndexKey, dict[ResidualKey, _CountedClass]] = {}
        self._counts_cache: dict[Hashable, int] = {}

    def count(self, context: EvalContext) -> int:
        key = _values(self.query.pod_key, context)
        classes = {} if key is None else self._classes.get(key, {})
        residual = self.query.residual
        if residual is None:
            return sum(counted.count for counted in classes.values())
        cache_key = key, tuple([read(context) for read in self.query.pod_reads])
        total = self._counts_cache.get(cache_key)
        if total is None:
            total = sum(
                counted.count
                for counted in classes.values()
                if residual(context.with_other_pod(counted.representative)) is True
            )
            if len(self._counts_cache) >= _CACHE_ENTRIES_MAX:
                self._counts_cache.clear()
            self._counts_cache[cache_key] = total
        return total

    def catch_up(self, index: PodIndex) -> None:
        if self._version == index.version:
            return
        changed = index.changed_since(self._version)
        if changed is None:
            self._keys_by_pod.clear()
            self._classes.clear()
            changed = index.pods
        for uid in changed:
            self._remove(uid)
            if uid in index.pods:
                self._add(index.pods[uid])
        self._counts_cache.clear()
        self._version = index.version

    def _add(self, pod: Pod) -> None:
        key = self.query.index_key(pod)
        if key is None:
            return
        residual_key = self.query.residual_key(pod)
        self._keys_by_pod[pod.uid] = key, residual_key
        counted = self._classes.setdefault(key, {}).setdefault(residual_key, _CountedClass(pod, 0))
        counted.count += 1

    def _remove(self, uid: PodUid) -> None:
        keys = self._keys_by_pod.pop(uid, None)
        if keys is None:
            return
        key, residual_key = keys
        classes = self._classes[key]
        classes[residual_key].count -= 1
        if not classes[residual_key].count:
            del classes[residual_key]
            if not classes:
                del self._classes[key]
