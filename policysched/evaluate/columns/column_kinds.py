"""What a column can hold of a node: one small class a kind, one object for equal arguments.

A kind says how to read the value of one row; `Columns` does it for every row when a plan or a pod first asks, and for
the touched rows afterwards. Kinds with `of_usage` are read again when only the pods of a node changed.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Protocol
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import DTypeLike, NDArray

from policysched.cluster.usage import COUNTED_MAX, Usage
from policysched.evaluate.columns.dtypes import held_dtype
from policysched.evaluate.columns.flat_lists import FlatLists
from policysched.evaluate.columns.interner import ABSENT, Interner
from policysched.evaluate.scalar.compiler import compiled
from policysched.evaluate.scalar.eval_context import Function, Seen
from policysched.evaluate.scalar.leaves import attribute
from policysched.evaluate.scalar.operations import promised
from policysched.lang.ir.arithmetic import whole_total
from policysched.lang.ir.expr import Expr
from policysched.lang.ir.program import Input, Metric
from policysched.lang.types.kinds import Kind, Record, Type
from policysched.lang.types.records import NoValue, held_value
from policysched.lang.types.records import Value as HeldOrRecords
from policysched.model.objects import Disk, HostPort, Namespace, Node, Pod, Taint

Array = NDArray[Any]
Scalar = bool | int | float
Mixture = tuple[tuple[int, int], ...]
"""How many pods of which group are on a node: codes of groups and counts, sorted."""

_COMPILED_MAX = 1024  # functions of texts: those of the past go


@dataclass(slots=True)
class Interners:
    """One of each for all columns, so that codes of different columns compare."""

    strings: Interner[str] = field(default_factory=Interner)
    taints: Interner[tuple[Taint, ...]] = field(default_factory=Interner)
    ports: Interner[frozenset[HostPort]] = field(default_factory=Interner)
    lists: Interner[tuple[str, ...]] = field(default_factory=Interner)
    records: Interner[tuple[Type, HeldOrRecords]] = field(default_factory=Interner)  # lists of them
    flat: dict[Record, FlatLists] = field(
        default_factory=dict
    )  # the same lists, by the record of their elements
    disks: Interner[frozenset[Disk]] = field(default_factory=Interner)
    groups: Interner[Hashable] = field(default_factory=Interner)
    examples: list[Pod] = field(default_factory=list)  # one pod of each group
    mixtures: Interner[Mixture] = field(default_factory=Interner)
    domains: dict[str, Interner[str]] = field(default_factory=dict)  # by topology key

    def total(self) -> int:
        texts = len(self.strings) + len(self.taints) + len(self.ports) + len(self.lists)
        texts += len(self.records)
        texts += sum(len(one) for one in self.domains.values())
        texts += len(self.disks)
        return texts + len(self.groups) + len(self.mixtures)

    def flat_lists(self, record: Record) -> FlatLists:
        """All lists of such records, laid out flat."""
        found = self.flat.get(record)
        if found is None:
            found = self.flat[record] = FlatLists(record, self.records.values, self.strings)
        return found

    def group(self, key: Hashable, pod: Pod) -> int:
        """The code of a group of pods, and the pod as its example if it is the first."""
        code = self.groups.code(key)
        if code == len(self.examples):
            self.examples.append(pod)
        return code


class ColumnKind(Protocol):
    of_usage: ClassVar[bool]

    @property
    def dtype(self) -> DTypeLike: ...

    def read(self, node: Node, usage: Usage, codes: Interners) -> Scalar: ...

    def __hash__(self) -> int: ...


class _OneOfAKind(type):
    """Equal arguments give the same object: columns are found by identity, many times a decision."""

    _made: ClassVar["WeakValueDictionary[Hashable, Any]"] = WeakValueDictionary()

    def __call__(cls, *args: Any) -> Any:
        key = (cls, args)
        found = cls._made.get(key)
        if found is None:
            found = cls._made[key] = super().__call__(*args)
        return found


class _Codes(metaclass=_OneOfAKind):
    """A column of interned values."""

    __slots__ = ()

    of_usage: ClassVar[bool] = False

    @property
    def dtype(self) -> DTypeLike:
        return np.int32


class _Amounts(metaclass=_OneOfAKind):
    __slots__ = ()
    of_usage: ClassVar[bool] = False

    @property
    def dtype(self) -> DTypeLike:
        return np.int64


class _UsageAmounts(_Amounts):
    __slots__ = ()
    of_usage: ClassVar[bool] = True


class _Flags(metaclass=_OneOfAKind):
    __slots__ = ()
    of_usage: ClassVar[bool] = False

    @property
    def dtype(self) -> DTypeLike:
        return np.bool_


# ── strings ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Text(_Codes):
    """An entry of one of the node's maps of strings (`labels`, `annotations`, `conditions`, `objects`), or ABSENT."""

    map: str
    key: str

    def read(self, node: Node, usage: Usage, codes: Interners) -> int:
        entries: Mapping[str, str] = getattr(node, self.map)
        found = entries.get(self.key)
        return ABSENT if found is None else codes.strings.code(found)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Domain(_Codes):
    """The node's domain under a topology key, from 1, each key with codes of its own. 0: the label is not there, or the
    row holds no node."""

    key: str

    def read(self, node: Node, usage: Usage, codes: Interners) -> int:
        value = node.labels.get(self.key)
        if value is None:
            return 0
        known = codes.domains.get(self.key)
        if known is None:
            known = codes.domains[self.key] = Interner()
        return 1 + known.code(value)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Name(_Codes):
    def read(self, node: Node, usage: Usage, codes: Interners) -> int:
        return codes.strings.code(node.name)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class TaintSet(_Codes):
    """The node's taints as one value: nodes of a pool mostly share theirs."""

    def read(self, node: Node, usage: Usage, codes: Interners) -> int:
        return codes.taints.code(node.taints)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Listed(_Codes):
    """`node.taints` (their keys) or `node.images` (their names) as one interned tuple."""

    path: str

    def read(self, node: Node, usage: Usage, codes: Interners) -> int:
        if self.path == "taints":
            return codes.lists.code(tuple(taint.key for taint in node.taints))
        assert self.path == "images", f"a node has no list {self.path}"
        return codes.lists.code(tuple(node.images))


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class PortSet(_Codes):
    """The host ports held on the node as one value; most nodes hold the same few, or none."""

    of_usage: ClassVar[bool] = True

    def read(self, node: Node, usage: Usage, codes: Interners) -> int:
        return codes.ports.code(frozenset(usage.ports))


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class DiskSet(_Codes):
    """The disks that the node's pods mount without a claim, as one value; most nodes have none."""

    of_usage: ClassVar[bool] = True

    def read(self, node: Node, usage: Usage, codes: Interners) -> int:
        return codes.disks.code(frozenset(disk for pod in usage.pods.values() for disk in pod.disks))


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class PodMixture(_Codes):
    """The pods of the node by what `paths` say of them: pods that agree on these attributes are one group."""

    of_usage: ClassVar[bool] = True
    paths: tuple[tuple[str, ...], ...]

    def read(self, node: Node, usage: Usage, codes: Interners) -> int:
        counts: dict[int, int] = {}
        for pod in usage.pods.values():
            seen = Seen(pod, _NO_NAMESPACE)
            group = codes.group((self.paths, *[_of_pod(path)(seen) for path in self.paths]), pod)
            counts[group] = counts.get(group, 0) + 1
        return codes.mixtures.code(tuple(sorted(counts.items())))


_NO_NAMESPACE = Namespace("", {}, {})


@lru_cache(maxsize=_COMPILED_MAX)
def _of_pod(path: tuple[str, ...]) -> Function:
    return attribute("pod", path)


# ── numbers and flags ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Allocatable(_Amounts):
    resource: str

    def read(self, node: Node, usage: Usage, codes: Interners) -> int:
        return node.allocatable.get(self.resource, 0)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class VolumeLimit(_Amounts):
    """One more than how many volumes of a CSI driver may be attached to the node; 0 where nothing sets a limit."""

    driver: str

    def read(self, node: Node, usage: Usage, codes: Interners) -> int:
        return 0 if node.csi is None else 1 + node.csi.limits.get(self.driver, -1)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Requested(_UsageAmounts):
    """What the node's pods request of a resource."""

    resource: str

    def read(self, node: Node, usage: Usage, codes: Interners) -> int:
        return usage.counted(self.resource)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Promised(_UsageAmounts):
    """What the node's pods request of a policy's own resource: the sum of an expression of the counted pod, in whole units.
    `inputs` are those that it reads. Held as the resource's type is, up to the most that it can hold: less would leave a full node
    room."""

    amount: Expr
    inputs: tuple[Input, ...]
    floating: bool

    @property
    def dtype(self) -> DTypeLike:
        return np.float64 if self.floating else np.int64

    def read(self, node: Node, usage: Usage, codes: Interners) -> Scalar:
        amount = _amount_function(self.amount, self.inputs)
        pods = usage.pods.values()
        return whole_total(
            (promised(amount, Seen(pod, _NO_NAMESPACE, other=pod)) for pod in pods), floating=self.floating
        )


@dataclass(frozen=True, slots=True)
class _Inputs:
    inputs: Mapping[str, Input]
    metrics: Mapping[str, Metric]


@lru_cache(maxsize=_COMPILED_MAX)
def _amount_function(amount: Expr, inputs: tuple[Input, ...]) -> Function:
    return compiled(amount, _Inputs({one.name: one for one in inputs}, {}))


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class ScoringRequested(_UsageAmounts):
    """Requests with what kube-scheduler assumes for containers that name none; `resource` is cpu or memory."""

    resource: str

    def read(self, node: Node, usage: Usage, codes: Interners) -> int:
        total = usage.scoring_cpu_milli if self.resource == "cpu" else usage.scoring_memory_bytes
        return min(total, COUNTED_MAX)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class PodCount(_UsageAmounts):
    def read(self, node: Node, usage: Usage, codes: Interners) -> int:
        return len(usage.pods)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Created(_Amounts):
    def read(self, node: Node, usage: Usage, codes: Interners) -> int:
        return node.created_ns


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class ImageSize(_Amounts):
    """Bytes of an image on the node, -1 where it is not there."""

    image: str

    def read(self, node: Node, usage: Usage, codes: Interners) -> int:
        return node.images.get(self.image, -1)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Declares(_Flags):
    """Whether the node's kubelet declares all of the features."""

    features: tuple[str, ...]

    def read(self, node: Node, usage: Usage, codes: Interners) -> bool:
        return node.declared_features.issuperset(self.features)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Unschedulable(_Flags):
    def read(self, node: Node, usage: Usage, codes: Interners) -> bool:
        return node.unschedulable


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Migrated(_Flags):
    """Whether the node's kubelet leaves an in-tree plugin to its CSI driver."""

    plugin: str

    def read(self, node: Node, usage: Usage, codes: Interners) -> bool:
        return node.csi is not None and self.plugin in node.csi.migrated


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Ready(_Flags):
    def read(self, node: Node, usage: Usage, codes: Interners) -> bool:
        return node.ready


# ── inputs of the node ─────────────────────────────────────────────────────────────────────────────────────────────

INPUT_THERE, INPUT_ABSENT, INPUT_REQUIRED, INPUT_INVALID = 0, 1, 2, 3
"""States of an input on a node: it has a value; optional and absent; absent but required; refused as invalid."""


def read_node_input(declared: Input, node: Node) -> tuple[int, HeldOrRecords]:
    """Its state, and the value where it has one."""
    source: object = getattr(node, declared.source_map)
    if declared.source_key is None:
        text: str | None = str(source)
    else:
        assert isinstance(source, Mapping), f"node.{declared.source_map} is no map"
        text = source.get(declared.source_key)
    if text is not None:
        value = held_value(text, declared.type, declared.unit, declared.at)
        if not isinstance(value, NoValue):
            return INPUT_THERE, value
        if value is NoValue.INVALID and declared.invalid_text is not None:
            return INPUT_INVALID, 0
    if declared.default is not None:
        default = declared.default.value
        assert default == () or not isinstance(default, tuple), f"input {declared.name} has {default!r}"
        return INPUT_THERE, () if isinstance(default, tuple) else default
    return (INPUT_REQUIRED if declared.required_text is not None else INPUT_ABSENT), 0


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class InputState(metaclass=_OneOfAKind):
    """One of the INPUT_ states."""

    of_usage: ClassVar[bool] = False
    declared: Input

    @property
    def dtype(self) -> DTypeLike:
        return np.int8

    def read(self, node: Node, usage: Usage, codes: Interners) -> int:
        return read_node_input(self.declared, node)[0]


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class InputValue(metaclass=_OneOfAKind):
    """The value as its type is held (strings as codes), 0 where it has none."""

    of_usage: ClassVar[bool] = False
    declared: Input

    @property
    def dtype(self) -> DTypeLike:
        return held_dtype(self.declared.type.kind)

    def read(self, node: Node, usage: Usage, codes: Interners) -> Scalar:
        state, value = read_node_input(self.declared, node)
        if self.declared.type.kind is Kind.LIST:
            return codes.records.code((self.declared.type, value)) if state == INPUT_THERE else 0
        assert not isinstance(value, tuple), f"input {self.declared.name} is {value!r}"
        if self.declared.type.kind is Kind.STRING:
            return codes.strings.code(str(value)) if state == INPUT_THERE else ABSENT
        assert not isinstance(value, str), (
            f"input {self.declared.name} is {value!r}, not {self.declared.type}"
        )
        return value
