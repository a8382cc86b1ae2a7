"""`ClusterPodCounter`: the totals over pods that are the same for all nodes, and those of one node's domain.

Totals over placed pods are kept by the columns, with the rows that they refresh. Totals over all pods
of the cluster follow the pods one change at a time.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from weakref import ref

from policysched.cluster.cache import ClusterCache
from policysched.cluster.pod_index import PodIndex
from policysched.evaluate.columns.columns import Columns
from policysched.evaluate.columns.not_counted import NotCounted
from policysched.evaluate.columns.overlay import Overlay
from policysched.evaluate.columns.placed_pod_totals import PODS_PER_STEP
from policysched.evaluate.columns.pod_query import PodTotalSpec
from policysched.evaluate.columns.pod_totals import CountedKeys, PodTotals
from policysched.evaluate.scalar.eval_context import EvalContext, EvalValue, ExprDeclarations
from policysched.lang.ir import expr as e
from policysched.lang.ir.arithmetic import Number, rounded_total
from policysched.model.identifiers import PodUid

_OTHER_INDEXES_MAX = 64  # that no plan keeps
_SPECS_MAX = 1_000
_FEW_TOTALS = 8
"""Of so few it is not worth while to find out exactly what a decision visits."""

ScopedSpec = tuple[PodTotalSpec, e.PodScope]
_IndexKey = tuple[PodTotalSpec, bool]
"""The bool: over the ended pods."""


class ClusterPodCounter:
    """The totals of one cluster cache. Those of plans are built in steps and kept until `keep_only`. Others are built
    when they are read, and the least recently used ones evicted."""

    def __init__(self, cache: ClusterCache, columns: Columns) -> None:
        self._cache = cache
        self._columns = columns
        self._specs: dict[int, _Specs] = {}  # by id of the program
        self._of_plans: dict[_IndexKey, _FollowedPods] = {}
        self._others: OrderedDict[_IndexKey, _FollowedPods] = OrderedDict()

    def build_in_steps(self, spec: PodTotalSpec, scope: e.PodScope) -> Iterator[None]:
        """Build the total of a plan. The cluster may change between two steps."""
        if scope == "placed":
            yield from self._columns.placed_totals.build_in_steps(spec)
        for key in _index_keys(spec, scope):
            if key not in self._of_plans:
                index = self._others.get(key) or _FollowedPods(PodTotals(spec))
                yield from index.catch_up_in_steps(self._pods(key))
                self._of_plans[key] = index
                self._others.pop(key, None)

    def is_short(self, totals: Sequence[ScopedSpec]) -> bool:
        """Whether reading the totals of a plan visits few pods, as nearly always. Not certain where there are many totals."""
        if len(totals) > _FEW_TOTALS or not totals:
            return not totals
        visits = 0
        for total in totals:  # most are over placed pods, and this is asked for every attempt
            if total[1] == "placed":
                placed = self._columns.placed_totals.of_plan(total[0])
                visits += 0 if placed is None else placed.class_count
            else:
                visits += sum(built.class_count + lag for built, lag in self._built((total,)))
        return visits <= PODS_PER_STEP

    def catch_up_slice(self, totals: Sequence[ScopedSpec]) -> bool:
        """If the totals of a plan have more than a slice's pods to count again, count those of a slice. Whether they had."""
        if sum(lag for _, lag in self._built(totals)) <= PODS_PER_STEP:
            return False
        left = PODS_PER_STEP
        for key in (key for spec, scope in totals for key in _index_keys(spec, scope)):
            if left and key in self._of_plans:
                left -= self._of_plans[key].catch_up_some(self._pods(key), left)
        return True

    def prepare_in_steps(self, totals: Sequence[ScopedSpec], context: EvalContext) -> Iterator[None]:
        """Add up the totals of a plan for the pod. The cluster does not change meanwhile."""
        visited = 0
        for built, _ in self._built(totals):
            for visits in built.prepare_in_steps(context):
                visited += visits
                if visited >= PODS_PER_STEP:
                    visited = 0
                    yield

    def _built(self, totals: Sequence[ScopedSpec]) -> Iterator[tuple[PodTotals, int]]:
        """Those that were built for a plan, each with how many pods it has to count again at most."""
        for spec, scope in totals:
            placed = self._columns.placed_totals.of_plan(spec) if scope == "placed" else None
            if placed is not None:
                yield placed, 0
            for key in _index_keys(spec, scope):
                index = self._of_plans.get(key)
                if index is not None:
                    yield index.totals, index.lag(self._pods(key))

    def keep_only(self, specs: Collection[ScopedSpec]) -> None:
        """Drop the totals that no current plan reads."""
        self._columns.placed_totals.keep_only({spec for spec, scope in specs if scope == "placed"})
        keys = {key for spec, scope in specs for key in _index_keys(spec, scope)}
        self._of_plans = {key: index for key, index in self._of_plans.items() if key in keys}

    def total(
        self,
        expr: e.PodTotal,
        program: ExprDeclarations,
        context: EvalContext,
        overlay: Overlay | None = None,
    ) -> EvalValue:
        """The total, on the overlay if there is one. Over the pods of the cluster it includes the pod itself, even
        if the cache does not have it (offline), and pods that the overlay added, but none that it removed."""
        spec = self._spec(expr, program)
        if expr.scope == "placed":
            return self._total_placed(spec, context, overlay)
        active, ended = self._cache.active_pods, self._cache.ended_pods
        followed = self._followed(spec, active)
        total, query = followed.totals.totals(context).by_domain.get(None, 0), followed.totals.query
        if expr.scope == "all":
            total += self._followed(spec, ended).totals.totals(context).by_domain.get(None, 0)
        if context.pod.uid not in self._cache.pods:
            total += query.amount_of_pod(context, context.pod)
        for pod in () if overlay is None else overlay.removed_pods:
            if pod.uid in active.pods or (expr.scope == "all" and pod.uid in ended.pods):
                total -= query.amount_of_pod(context, pod)
        return rounded_total(total, floating=expr.floating)

    def next_change_ns(self, expr: e.PodTotal, program: ExprDeclarations, context: EvalContext) -> int | None:
        """When the total changes next because a pod comes of age; None: never."""
        spec = self._spec(expr, program)
        if expr.scope == "placed":
            return self._columns.placed_totals.get(spec).next_change_ns(context)
        followed = [self._followed(spec, self._cache.active_pods)]
        if expr.scope == "all":
            followed.append(self._followed(spec, self._cache.ended_pods))
        times = (index.totals.next_change_ns(context) for index in followed)
        return min((time for time in times if time is not None), default=None)

    def _spec(self, expr: e.PodTotal, program: ExprDeclarations) -> PodTotalSpec:
        specs = self._specs.get(id(program))
        if specs is None or specs.program() is not program:
            # A replaced policy must not stay in memory for its totals.
            self._specs = {key: other for key, other in self._specs.items() if other.program() is not None}
            specs = self._specs[id(program)] = _Specs(ref(program))
        cached = specs.by_expr.get(id(expr))
        if cached is None or cached[0] is not expr:
            if len(specs.by_expr) >= _SPECS_MAX:
                specs.by_expr.clear()
            cached = specs.by_expr[id(expr)] = expr, PodTotalSpec.of(expr, program)
        return cached[1]

    def _total_placed(
        self, spec: PodTotalSpec, context: EvalContext, overlay: Overlay | None
    ) -> Number | None:
        base = self._columns.placed_totals.get(spec)
        totals = base if overlay is None else overlay.pods.pod_totals(base, self._columns.nodes)
        domain = None
        if spec.topology_key is not None:
            assert context.node is not None, "the context has no node to find the domain of"
            domain = context.node.labels.get(spec.topology_key)
            if domain is None:
                return None
        return rounded_total(totals.totals(context).by_domain.get(domain, 0), floating=spec.floating)

    def _followed(self, spec: PodTotalSpec, pods: PodIndex) -> "_FollowedPods":
        key = spec, pods is self._cache.ended_pods
        index = self._of_plans.get(key)
        if index is None:
            index = self._other(key)
        index.catch_up(pods)
        return index

    def _other(self, key: _IndexKey) -> "_FollowedPods":
        index = self._others.get(key)
        if index is None:
            self._drop_outdated()
            index = self._others[key] = _FollowedPods(PodTotals(key[0]))
            if len(self._others) > _OTHER_INDEXES_MAX:
                self._others.popitem(last=False)
        else:
            self._others.move_to_end(key)
        return index

    def _drop_outdated(self) -> None:
        """An index that the change log does not reach would be made again anyway, and keeps pods that are gone."""
        for key in list(self._others):
            if self._others[key].is_outdated(self._pods(key)):
                del self._others[key]

    def _pods(self, key: _IndexKey) -> PodIndex:
        return self._cache.ended_pods if key[1] else self._cache.active_pods


def _index_keys(spec: PodTotalSpec, scope: e.PodScope) -> tuple[_IndexKey, ...]:
    match scope:
        case "placed":
            return ()
        case "active":
            return ((spec, False),)
        case "all":
            return (spec, False), (spec, True)


@dataclass(frozen=True, slots=True)
class HypotheticalPodCounter:
    """Totals on an overlay."""

    counter: ClusterPodCounter
    overlay: Overlay

    def total(self, expr: e.PodTotal, program: ExprDeclarations, context: EvalContext) -> EvalValue:
        return self.counter.total(expr, program, context, self.overlay)

    def next_change_ns(self, expr: e.PodTotal, program: ExprDeclarations, context: EvalContext) -> int | None:
        return self.counter.next_change_ns(expr, program, context)


@dataclass(slots=True)
class _Specs:
    """The totals of one program, by the id of their expression."""

    program: "ref[ExprDeclarations]"
    by_expr: dict[int, tuple[e.PodTotal, PodTotalSpec]] = field(default_factory=dict)


@dataclass(slots=True)
class _FollowedPods:
    """Totals over the pods of an index, as far as its changes were applied. Each pod is remembered by where it
    counts: the pods themselves would stay in memory after they changed, until somebody reads the totals."""

    totals: PodTotals
    _version: int = -1
    _keys: dict[PodUid, CountedKeys] = field(default_factory=dict)
    _pending: dict[PodUid, None] = field(default_factory=dict)
    """Changed until the version, and not counted again yet."""

    def lag(self, index: PodIndex) -> int:
        """How many pods `catch_up` counts again at most."""
        all_pods = len(self._keys) + len(index.pods)
        if self.is_outdated(index):
            return all_pods
        return len(self._pending) + min(index.version - self._version, all_pods)

    def is_outdated(self, index: PodIndex) -> bool:
        return not index.changes.reaches(self._version)

    def catch_up(self, index: PodIndex) -> None:
        if self._version != index.version or self._pending:
            for _ in self.catch_up_in_steps(index):
                pass

    def catch_up_in_steps(self, index: PodIndex) -> Iterator[None]:
        """The index may change between two steps: what changed meanwhile is counted again at the end."""
        while self.catch_up_some(index, PODS_PER_STEP):
            yield

    def catch_up_some(self, index: PodIndex, visits_max: int) -> int:
        """Count at most so many pods again. Returns how many."""
        if self._version != index.version:
            changed = index.changed_since(self._version)
            self._pending.update(dict.fromkeys((*self._keys, *index.pods) if changed is None else changed))
            self._version = index.version
        visits = min(visits_max, len(self._pending))
        for _ in range(visits):
            self._count_again(self._pending.popitem()[0], index)
        return visits

    def _count_again(self, uid: PodUid, index: PodIndex) -> None:
        before, pod = self._keys.pop(uid, None), index.pods.get(uid)
        if before is not None:
            self.totals.remove(before)
        try:
            keys = None if pod is None else self.totals.adjust(pod, None, 1)
        except Exception as error:
            self._pending[uid] = None
            raise NotCounted(None, pod) from error
        if keys is not None:
            self._keys[uid] = keys
