"""Answers of `count(pods where ...)`, without looking at every pod for every decision.

Of a condition like `other.namespace == pod.namespace and other.labels["group"] == group and other.priority > 3` the equalities say
where to look: pods are sorted by what stands on the counted pod's side of them (their *head*), and the pod that is being decided
asks for one head. Under a head lie pods by *kind*, what the rest of the condition reads of them, with a number each: the
rest is asked once a kind. Both follow the census, pod by pod.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from policysched.cluster.cache import ClusterCache
from policysched.cluster.pod_index import PodIndex
from policysched.evaluate.columns.overlay import Overlay
from policysched.evaluate.scalar.compiler import compile_scalar
from policysched.evaluate.scalar.eval_context import EvalContext, ExprDeclarations, ScalarFunction
from policysched.evaluate.scalar.leaves import attribute
from policysched.lang.ir import expr as e
from policysched.lang.ir.declarations import Input
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
    """For one cache. Indexes that nobody asks for any more are forgotten."""

    def __init__(self, cache: ClusterCache) -> None:
        self._cache = cache
        self._indexes: OrderedDict[Hashable, _PodCountIndex] = OrderedDict()

    def count(self, expr: e.CountPodsInCluster, program: ExprDeclarations, seen: EvalContext) -> int:
        """How many there are for which the condition holds; the pod itself is one of them, also where the cache has not
        heard of it (offline)."""
        index = self._index(expr, program, self._cache.active_pods)
        stranger = seen.pod if seen.pod.uid not in self._cache.pods else None
        found = index.count(seen) + (stranger is not None and index.query.matches(stranger, seen))
        if not expr.include_finished:
            return found
        return found + self._index(expr, program, self._cache.ended_pods).count(seen)

    def count_among(
        self, expr: e.CountPodsInCluster, program: ExprDeclarations, seen: EvalContext, pods: Iterable[Pod]
    ) -> int:
        """How many of these pods are among them."""
        there, ended = (
            self._cache.active_pods.pods,
            self._cache.ended_pods.pods if expr.include_finished else {},
        )
        counted = [pod for pod in pods if pod.uid in there or pod.uid in ended]
        question = self._index(expr, program, self._cache.active_pods).query
        return sum(question.matches(pod, seen) for pod in counted)

    def _index(
        self, expr: e.CountPodsInCluster, program: ExprDeclarations, census: PodIndex
    ) -> "_PodCountIndex":
        key = expr.where, _inputs_read(expr, program), census is self._cache.ended_pods
        index = self._indexes.get(key)
        if index is None:
            index = self._indexes[key] = _PodCountIndex(_CountQuery.of(expr.where, program))
            if len(self._indexes) > _INDEXES_MAX:
                self._indexes.popitem(last=False)
        else:
            self._indexes.move_to_end(key)
        index.catch_up(census)
        return index


class HypotheticalPodCounter:
    """The same in a hypothetical cluster: pods that are lifted off it are gone, and one that is laid on it counts as often as it
    did before."""

    def __init__(self, counts: ClusterPodCounter, overlay: Overlay) -> None:
        self._counts = counts
        self._overlay = overlay

    def count(self, expr: e.CountPodsInCluster, program: ExprDeclarations, seen: EvalContext) -> int:
        gone = self._counts.count_among(expr, program, seen, self._overlay.removed_pods)
        return self._counts.count(expr, program, seen) - gone


def _inputs_read(expr: e.Expr, program: ExprDeclarations) -> tuple[Input, ...]:
    names = dict.fromkeys(one.name for one in e.walk(expr) if isinstance(one, e.InputRef))
    return tuple(program.inputs[name] for name in names)


@dataclass(frozen=True, slots=True)
class _CountQuery:
    """`other_key` of a counted pod must equal `pod_key` of the one that is decided, and `residual` (None: nothing more) be True, which
    reads `other_reads` of the counted and `pod_reads` of the other."""

    other_key: tuple[ScalarFunction, ...]
    pod_key: tuple[ScalarFunction, ...]
    residual: ScalarFunction | None
    other_reads: tuple[ScalarFunction, ...]
    pod_reads: tuple[ScalarFunction, ...]

    @classmethod
    def of(cls, where: e.Expr, program: ExprDeclarations) -> "_CountQuery":
        pairs, rest = list[tuple[e.Expr, e.Expr]](), list[e.Expr]()
        for item in where.items if isinstance(where, e.And) else (where,):
            pair = _equality_operands(item)
            if pair is None:
                rest.append(item)
            else:
                pairs.append(pair)
        # A condition is True where all of its items are, the missing ones included.
        left = None if not rest else rest[0] if len(rest) == 1 else e.And(tuple(rest), where.span)
        reads = expr_reads(left, program.inputs)
        return cls(
            other_key=tuple(compile_scalar(theirs, program) for theirs, _ in pairs),
            pod_key=tuple(compile_scalar(ours, program) for _, ours in pairs),
            residual=None if left is None else compile_scalar(left, program),
            other_reads=tuple(attribute("other", path) for path in sorted(reads.counted_pods)),
            pod_reads=(
                *(attribute("pod", path) for path in sorted(reads.pod)),
                *(attribute("namespace", path) for path in sorted(reads.namespace)),
            ),
        )

    def index_key(self, pod: Pod) -> IndexKey | None:
        """Where the pod lies; None: nowhere, as something that must equal something is missing."""
        return _values(self.other_key, _other_pod_context(pod))

    def residual_key(self, pod: Pod) -> ResidualKey:
        alone = _other_pod_context(pod)
        return tuple([part(alone) for part in self.other_reads])

    def matches(self, other: Pod, seen: EvalContext) -> bool:
        """Whether that one pod counts."""
        head = self.index_key(other)
        if head is None or head != _values(self.pod_key, seen):
            return False
        return self.residual is None or self.residual(seen.with_other_pod(other)) is True


def _values(functions: Sequence[ScalarFunction], seen: EvalContext) -> IndexKey | None:
    values = tuple([function(seen) for function in functions])
    return None if None in values else values


def _other_pod_context(pod: Pod) -> EvalContext:
    return EvalContext(pod, _NO_NAMESPACE, other=pod)


def _equality_operands(item: e.Expr) -> tuple[e.Expr, e.Expr] | None:
    """What of the counted pod must equal what else, where the condition is one that can be looked up."""
    if not isinstance(item, e.Compare) or item.op != "==":
        return None
    if e.is_floating(item.left) or e.is_floating(item.right):
        return None
    match _reads_only_other(item.left), _reads_only_other(item.right):
        case True, False:
            return item.left, item.right
        case False, True:
            return item.right, item.left
        case _:
            return None


def _reads_only_other(expr: e.Expr) -> bool | None:
    """True: of the counted pod alone; False: not of it; None: of both."""
    owners = set[bool]()
    for one in e.walk(expr):
        match one:
            case e.Attr(owner=owner) | e.InputRef(owner=owner):
                owners.add(owner == "other")
    return None if len(owners) > 1 else owners == {True}


@dataclass(slots=True)
class _CountedClass:
    representative: Pod
    count: int


class _PodCountIndex:
    """The pods of the census by head and kind."""

    def __init__(self, question: _CountQuery) -> None:
        self.query = question
        self._version = -1
        self._keys_by_pod: dict[PodUid, tuple[IndexKey, ResidualKey]] = {}
        self._classes: dict[IndexKey, dict[ResidualKey, _CountedClass]] = {}
        self._counts_cache: dict[Hashable, int] = {}

    def count(self, seen: EvalContext) -> int:
        head = _values(self.query.pod_key, seen)
        groups = {} if head is None else self._classes.get(head, {})
        rest = self.query.residual
        if rest is None:
            return sum(group.count for group in groups.values())
        asked = head, tuple([part(seen) for part in self.query.pod_reads])
        found = self._counts_cache.get(asked)
        if found is None:
            found = sum(
                group.count
                for group in groups.values()
                if rest(seen.with_other_pod(group.representative)) is True
            )
            if len(self._counts_cache) >= _CACHE_ENTRIES_MAX:
                self._counts_cache.clear()
            self._counts_cache[asked] = found
        return found

    def catch_up(self, census: PodIndex) -> None:
        if self._version == census.version:
            return
        moved = census.changed_since(self._version)
        if moved is None:
            self._keys_by_pod.clear()
            self._classes.clear()
            moved = census.pods
        for uid in moved:
            self._remove(uid)
            if uid in census.pods:
                self._add(census.pods[uid])
        self._counts_cache.clear()
        self._version = census.version

    def _add(self, pod: Pod) -> None:
        head = self.query.index_key(pod)
        if head is None:
            return
        kind = self.query.residual_key(pod)
        self._keys_by_pod[pod.uid] = head, kind
        group = self._classes.setdefault(head, {}).setdefault(kind, _CountedClass(pod, 0))
        group.count += 1

    def _remove(self, uid: PodUid) -> None:
        place = self._keys_by_pod.pop(uid, None)
        if place is None:
            return
        head, kind = place
        groups = self._classes[head]
        groups[kind].count -= 1
        if not groups[kind].count:
            del groups[kind]
            if not groups:
                del self._classes[head]
