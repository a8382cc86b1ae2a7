"""Answers of `count(pods where ...)`, without looking at every pod for every decision.

Of a condition like `other.namespace == pod.namespace and other.labels["group"] == group and other.priority > 3` the equalities say
where to look: pods are sorted by what stands on the counted pod's side of them (their *head*), and the pod that is being decided
asks for one head. Under a head lie pods by *kind*, what the rest of the condition reads of them, with a number each: the
rest is asked once a kind. Both follow the census, pod by pod.
"""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from policysched.cluster.cache import Cache
from policysched.cluster.census import Census
from policysched.evaluate.columns.overlay import Overlay
from policysched.evaluate.scalar.compiler import compiled
from policysched.evaluate.scalar.eval_context import Declarations, Function, Seen
from policysched.evaluate.scalar.leaves import attribute
from policysched.lang.ir import expr as e
from policysched.lang.ir.program import Input
from policysched.lang.ir.reads import reads_of
from policysched.model.objects import Namespace, Pod, PodUid

_INDEXES_MAX = 64
_ANSWERS_MAX = 10_000
_NO_NAMESPACE = Namespace("", {}, {})

Head = tuple[Hashable, ...]
Kind = tuple[Hashable, ...]


class Counts:
    """For one cache. Indexes that nobody asks for any more are forgotten."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._indexes: OrderedDict[Hashable, _Index] = OrderedDict()

    def count(self, expr: e.CountAnywhere, program: Declarations, seen: Seen) -> int:
        """How many there are for which the condition holds; the pod itself is one of them, also where the cache has not
        heard of it (offline)."""
        index = self._index(expr, program, self._cache.census)
        stranger = seen.pod if seen.pod.uid not in self._cache.pods else None
        found = index.count(seen) + (stranger is not None and index.question.counts(stranger, seen))
        if not expr.ended:
            return found
        return found + self._index(expr, program, self._cache.ended).count(seen)

    def count_among(
        self, expr: e.CountAnywhere, program: Declarations, seen: Seen, pods: Iterable[Pod]
    ) -> int:
        """How many of these pods are among them."""
        there, ended = self._cache.census.pods, self._cache.ended.pods if expr.ended else {}
        counted = [pod for pod in pods if pod.uid in there or pod.uid in ended]
        question = self._index(expr, program, self._cache.census).question
        return sum(question.counts(pod, seen) for pod in counted)

    def _index(self, expr: e.CountAnywhere, program: Declarations, census: Census) -> "_Index":
        key = expr.where, _inputs(expr, program), census is self._cache.ended
        index = self._indexes.get(key)
        if index is None:
            index = self._indexes[key] = _Index(_Question.of(expr.where, program))
            if len(self._indexes) > _INDEXES_MAX:
                self._indexes.popitem(last=False)
        else:
            self._indexes.move_to_end(key)
        index.catch_up(census)
        return index


class Without:
    """The same in a hypothetical cluster: pods that are lifted off it are gone, and one that is laid on it counts as often as it
    did before."""

    def __init__(self, counts: Counts, overlay: Overlay) -> None:
        self._counts = counts
        self._overlay = overlay

    def count(self, expr: e.CountAnywhere, program: Declarations, seen: Seen) -> int:
        gone = self._counts.count_among(expr, program, seen, self._overlay.lifted)
        return self._counts.count(expr, program, seen) - gone


def _inputs(expr: e.Expr, program: Declarations) -> tuple[Input, ...]:
    names = dict.fromkeys(one.name for one in e.walk(expr) if isinstance(one, e.InputRef))
    return tuple(program.inputs[name] for name in names)


@dataclass(frozen=True, slots=True)
class _Question:
    """`theirs` of a counted pod must equal `ours` of the one that is decided, and `rest` (None: nothing more) be True, which
    reads `kinds` of the counted and `asked` of the other."""

    theirs: tuple[Function, ...]
    ours: tuple[Function, ...]
    rest: Function | None
    kinds: tuple[Function, ...]
    asked: tuple[Function, ...]

    @classmethod
    def of(cls, where: e.Expr, program: Declarations) -> "_Question":
        pairs, rest = list[tuple[e.Expr, e.Expr]](), list[e.Expr]()
        for item in where.items if isinstance(where, e.And) else (where,):
            pair = _equality(item)
            if pair is None:
                rest.append(item)
            else:
                pairs.append(pair)
        # A condition is True where all of its items are, the missing ones included.
        left = None if not rest else rest[0] if len(rest) == 1 else e.And(tuple(rest), where.span)
        reads = reads_of(left, program.inputs)
        return cls(
            theirs=tuple(compiled(theirs, program) for theirs, _ in pairs),
            ours=tuple(compiled(ours, program) for _, ours in pairs),
            rest=None if left is None else compiled(left, program),
            kinds=tuple(attribute("other", path) for path in sorted(reads.others)),
            asked=(
                *(attribute("pod", path) for path in sorted(reads.pod)),
                *(attribute("namespace", path) for path in sorted(reads.namespace)),
            ),
        )

    def head_of(self, pod: Pod) -> Head | None:
        """Where the pod lies; None: nowhere, as something that must equal something is missing."""
        return _values(self.theirs, _alone(pod))

    def kind_of(self, pod: Pod) -> Kind:
        alone = _alone(pod)
        return tuple([part(alone) for part in self.kinds])

    def counts(self, other: Pod, seen: Seen) -> bool:
        """Whether that one pod counts."""
        head = self.head_of(other)
        if head is None or head != _values(self.ours, seen):
            return False
        return self.rest is None or self.rest(seen.counting(other)) is True


def _values(functions: Sequence[Function], seen: Seen) -> Head | None:
    values = tuple([function(seen) for function in functions])
    return None if None in values else values


def _alone(pod: Pod) -> Seen:
    return Seen(pod, _NO_NAMESPACE, other=pod)


def _equality(item: e.Expr) -> tuple[e.Expr, e.Expr] | None:
    """What of the counted pod must equal what else, where the condition is one that can be looked up."""
    if not isinstance(item, e.Compare) or item.op != "==":
        return None
    if e.is_floating(item.left) or e.is_floating(item.right):
        return None
    match _speaks_of_other(item.left), _speaks_of_other(item.right):
        case True, False:
            return item.left, item.right
        case False, True:
            return item.right, item.left
        case _:
            return None


def _speaks_of_other(expr: e.Expr) -> bool | None:
    """True: of the counted pod alone; False: not of it; None: of both."""
    owners = set[bool]()
    for one in e.walk(expr):
        match one:
            case e.Attr(owner=owner) | e.InputRef(of=owner):
                owners.add(owner == "other")
    return None if len(owners) > 1 else owners == {True}


@dataclass(slots=True)
class _Group:
    example: Pod
    count: int


class _Index:
    """The pods of the census by head and kind."""

    def __init__(self, question: _Question) -> None:
        self.question = question
        self._version = -1
        self._places: dict[PodUid, tuple[Head, Kind]] = {}
        self._heads: dict[Head, dict[Kind, _Group]] = {}
        self._answers: dict[Hashable, int] = {}

    def count(self, seen: Seen) -> int:
        head = _values(self.question.ours, seen)
        groups = {} if head is None else self._heads.get(head, {})
        rest = self.question.rest
        if rest is None:
            return sum(group.count for group in groups.values())
        asked = head, tuple([part(seen) for part in self.question.asked])
        found = self._answers.get(asked)
        if found is None:
            found = sum(
                group.count for group in groups.values() if rest(seen.counting(group.example)) is True
            )
            if len(self._answers) >= _ANSWERS_MAX:
                self._answers.clear()
            self._answers[asked] = found
        return found

    def catch_up(self, census: Census) -> None:
        if self._version == census.version:
            return
        moved = census.moved_since(self._version)
        if moved is None:
            self._places.clear()
            self._heads.clear()
            moved = census.pods
        for uid in moved:
            self._take(uid)
            if uid in census.pods:
                self._put(census.pods[uid])
        self._answers.clear()
        self._version = census.version

    def _put(self, pod: Pod) -> None:
        head = self.question.head_of(pod)
        if head is None:
            return
        kind = self.question.kind_of(pod)
        self._places[pod.uid] = head, kind
        group = self._heads.setdefault(head, {}).setdefault(kind, _Group(pod, 0))
        group.count += 1

    def _take(self, uid: PodUid) -> None:
        place = self._places.pop(uid, None)
        if place is None:
            return
        head, kind = place
        groups = self._heads[head]
        groups[kind].count -= 1
        if not groups[kind].count:
            del groups[kind]
            if not groups:
                del self._heads[head]
