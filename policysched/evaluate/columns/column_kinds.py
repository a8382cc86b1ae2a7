"""What a column can hold of a node: one small class a kind, one object for equal arguments.

A kind says how to read the value of one row; `Columns` does it for every row when a plan or a pod first asks, and for
the touched rows afterwards. Kinds with `reads_usage` are read again when only the pods of a node changed.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Protocol
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import DTypeLike, NDArray

from policysched.cluster.usage import REQUESTED_MAX, NodeUsage
from policysched.evaluate.columns.dtypes import dtype_of
from policysched.evaluate.columns.flat_lists import FlatLists
from policysched.evaluate.columns.interner import ABSENT, Interner
from policysched.evaluate.scalar.compiler import compile_scalar
from policysched.evaluate.scalar.eval_context import EvalContext, ScalarFunction
from policysched.evaluate.scalar.leaves import attribute
from policysched.evaluate.scalar.operations import requested_amount
from policysched.lang.ir.arithmetic import whole_total
from policysched.lang.ir.declarations import Input, Metric
from policysched.lang.ir.expr import Expr
from policysched.lang.types.kinds import RecordType, Type, TypeKind
from policysched.lang.types.records import NoValueReason, parse_typed_value
from policysched.lang.types.records import TypedValue as HeldOrRecords
from policysched.model.namespaces import Namespace
from policysched.model.nodes import Node, Taint
from policysched.model.pods import HostPort, Pod
from policysched.model.storage import Disk

Array = NDArray[Any]
Scalar = bool | int | float
ClassCounts = tuple[tuple[int, int], ...]
"""How many pods of which group are on a node: codes of groups and counts, sorted."""

_COMPILED_CACHE_MAX = 1024  # functions of texts: those of the past go


@dataclass(slots=True)
class Interners:
    """One of each for all columns, so that codes of different columns compare."""

    strings: Interner[str] = field(default_factory=Interner)
    taints: Interner[tuple[Taint, ...]] = field(default_factory=Interner)
    ports: Interner[frozenset[HostPort]] = field(default_factory=Interner)
    lists: Interner[tuple[str, ...]] = field(default_factory=Interner)
    records: Interner[tuple[Type, HeldOrRecords]] = field(default_factory=Interner)  # lists of them
    flat_lists_by_record: dict[RecordType, FlatLists] = field(
        default_factory=dict
    )  # the same lists, by the record of their elements
    disks: Interner[frozenset[Disk]] = field(default_factory=Interner)
    pod_classes: Interner[Hashable] = field(default_factory=Interner)
    class_representatives: list[Pod] = field(default_factory=list)  # one pod of each group
    class_counts: Interner[ClassCounts] = field(default_factory=Interner)
    domains: dict[str, Interner[str]] = field(default_factory=dict)  # by topology key

    def code_count(self) -> int:
        texts = len(self.strings) + len(self.taints) + len(self.ports) + len(self.lists)
        texts += len(self.records)
        texts += sum(len(one) for one in self.domains.values())
        texts += len(self.disks)
        return texts + len(self.pod_classes) + len(self.class_counts)

    def flat_lists(self, record: RecordType) -> FlatLists:
        """All lists of such records, laid out flat."""
        found = self.flat_lists_by_record.get(record)
        if found is None:
            found = self.flat_lists_by_record[record] = FlatLists(record, self.records.values, self.strings)
        return found

    def pod_class_code(self, key: Hashable, pod: Pod) -> int:
        """The code of a group of pods, and the pod as its example if it is the first."""
        code = self.pod_classes.code(key)
        if code == len(self.class_representatives):
            self.class_representatives.append(pod)
        return code


class ColumnKind(Protocol):
    reads_usage: ClassVar[bool]

    @property
    def dtype(self) -> DTypeLike: ...

    def read(self, node: Node, usage: NodeUsage, codes: Interners) -> Scalar: ...

    def __hash__(self) -> int: ...


class _InstancePerArguments(type):
    """Equal arguments give the same object: columns are found by identity, many times a decision."""

    _instances: ClassVar["WeakValueDictionary[Hashable, Any]"] = WeakValueDictionary()

    def __call__(cls, *args: Any) -> Any:
        key = (cls, args)
        found = cls._instances.get(key)
        if found is None:
            found = cls._instances[key] = super().__call__(*args)
        return found


class _CodeColumn(metaclass=_InstancePerArguments):
    """A column of interned values."""

    __slots__ = ()

    reads_usage: ClassVar[bool] = False

    @property
    def dtype(self) -> DTypeLike:
        return np.int32


class _AmountColumn(metaclass=_InstancePerArguments):
    __slots__ = ()
    reads_usage: ClassVar[bool] = False

    @property
    def dtype(self) -> DTypeLike:
        return np.int64


class _UsageAmountColumn(_AmountColumn):
    __slots__ = ()
    reads_usage: ClassVar[bool] = True


class _FlagColumn(metaclass=_InstancePerArguments):
    __slots__ = ()
    reads_usage: ClassVar[bool] = False

    @property
    def dtype(self) -> DTypeLike:
        return np.bool_


# ── strings ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class NodeMapEntry(_CodeColumn):
    """An entry of one of the node's maps of strings (`labels`, `annotations`, `conditions`, `objects`), or ABSENT."""

    map_name: str
    key: str

    def read(self, node: Node, usage: NodeUsage, codes: Interners) -> int:
        entries: Mapping[str, str] = getattr(node, self.map_name)
        found = entries.get(self.key)
        return ABSENT if found is None else codes.strings.code(found)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class DomainCode(_CodeColumn):
    """The node's domain under a topology key, from 1, each key with codes of its own. 0: the label is not there, or the
    row holds no node."""

    key: str

    def read(self, node: Node, usage: NodeUsage, codes: Interners) -> int:
        value = node.labels.get(self.key)
        if value is None:
            return 0
        known = codes.domains.get(self.key)
        if known is None:
            known = codes.domains[self.key] = Interner()
        return 1 + known.code(value)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class NodeNameCode(_CodeColumn):
    def read(self, node: Node, usage: NodeUsage, codes: Interners) -> int:
        return codes.strings.code(node.name)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class TaintSet(_CodeColumn):
    """The node's taints as one value: nodes of a pool mostly share theirs."""

    def read(self, node: Node, usage: NodeUsage, codes: Interners) -> int:
        return codes.taints.code(node.taints)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class NodeTextList(_CodeColumn):
    """`node.taints` (their keys) or `node.images` (their names) as one interned tuple."""

    path: str

    def read(self, node: Node, usage: NodeUsage, codes: Interners) -> int:
        if self.path == "taints":
            return codes.lists.code(tuple(taint.key for taint in node.taints))
        assert self.path == "images", f"a node has no list {self.path}"
        return codes.lists.code(tuple(node.images))


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class PortSet(_CodeColumn):
    """The host ports held on the node as one value; most nodes hold the same few, or none."""

    reads_usage: ClassVar[bool] = True

    def read(self, node: Node, usage: NodeUsage, codes: Interners) -> int:
        return codes.ports.code(frozenset(usage.ports))


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class DiskSet(_CodeColumn):
    """The disks that the node's pods mount without a claim, as one value; most nodes have none."""

    reads_usage: ClassVar[bool] = True

    def read(self, node: Node, usage: NodeUsage, codes: Interners) -> int:
        return codes.disks.code(frozenset(disk for pod in usage.pods.values() for disk in pod.disks))


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class PodClassCounts(_CodeColumn):
    """The pods of the node by what `attribute_paths` say of them: pods that agree on these attributes are one group."""

    reads_usage: ClassVar[bool] = True
    attribute_paths: tuple[tuple[str, ...], ...]

    def read(self, node: Node, usage: NodeUsage, codes: Interners) -> int:
        counts: dict[int, int] = {}
        for pod in usage.pods.values():
            seen = EvalContext(pod, _NO_NAMESPACE)
            group = codes.pod_class_code(
                (self.attribute_paths, *[_pod_attribute(path)(seen) for path in self.attribute_paths]), pod
            )
            counts[group] = counts.get(group, 0) + 1
        return codes.class_counts.code(tuple(sorted(counts.items())))


_NO_NAMESPACE = Namespace("", {}, {})


@lru_cache(maxsize=_COMPILED_CACHE_MAX)
def _pod_attribute(path: tuple[str, ...]) -> ScalarFunction:
    return attribute("pod", path)


# ── numbers and flags ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Allocatable(_AmountColumn):
    resource: str

    def read(self, node: Node, usage: NodeUsage, codes: Interners) -> int:
        return node.allocatable.get(self.resource, 0)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class VolumeLimit(_AmountColumn):
    """One more than how many volumes of a CSI driver may be attached to the node; 0 where nothing sets a limit."""

    driver: str

    def read(self, node: Node, usage: NodeUsage, codes: Interners) -> int:
        return 0 if node.csi is None else 1 + node.csi.limits.get(self.driver, -1)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Requested(_UsageAmountColumn):
    """What the node's pods request of a resource."""

    resource: str

    def read(self, node: Node, usage: NodeUsage, codes: Interners) -> int:
        return usage.requested_capped(self.resource)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class PolicyResourceRequested(_UsageAmountColumn):
    """What the node's pods request of a policy's own resource: the sum of an expression of the counted pod, in whole units.
    `inputs` are those that it reads. Held as the resource's type is, up to the most that it can hold: less would leave a full node
    room."""

    amount: Expr
    inputs: tuple[Input, ...]
    floating: bool

    @property
    def dtype(self) -> DTypeLike:
        return np.float64 if self.floating else np.int64

    def read(self, node: Node, usage: NodeUsage, codes: Interners) -> Scalar:
        amount = _amount_function(self.amount, self.inputs)
        pods = usage.pods.values()
        return whole_total(
            (requested_amount(amount, EvalContext(pod, _NO_NAMESPACE, other=pod)) for pod in pods),
            floating=self.floating,
        )


@dataclass(frozen=True, slots=True)
class _InputDeclarations:
    inputs: Mapping[str, Input]
    metrics: Mapping[str, Metric]


@lru_cache(maxsize=_COMPILED_CACHE_MAX)
def _amount_function(amount: Expr, inputs: tuple[Input, ...]) -> ScalarFunction:
    return compile_scalar(amount, _InputDeclarations({one.name: one for one in inputs}, {}))


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class ScoringRequested(_UsageAmountColumn):
    """Requests with what kube-scheduler assumes for containers that name none; `resource` is cpu or memory."""

    resource: str

    def read(self, node: Node, usage: NodeUsage, codes: Interners) -> int:
        total = usage.scoring_cpu_milli if self.resource == "cpu" else usage.scoring_memory_bytes
        return min(total, REQUESTED_MAX)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class PodCount(_UsageAmountColumn):
    def read(self, node: Node, usage: NodeUsage, codes: Interners) -> int:
        return len(usage.pods)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class CreatedNs(_AmountColumn):
    def read(self, node: Node, usage: NodeUsage, codes: Interners) -> int:
        return node.created_ns


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class ImageSize(_AmountColumn):
    """Bytes of an image on the node, -1 where it is not there."""

    image: str

    def read(self, node: Node, usage: NodeUsage, codes: Interners) -> int:
        return node.images.get(self.image, -1)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class DeclaresFeatures(_FlagColumn):
    """Whether the node's kubelet declares all of the features."""

    features: tuple[str, ...]

    def read(self, node: Node, usage: NodeUsage, codes: Interners) -> bool:
        return node.declared_features.issuperset(self.features)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class NodeUnschedulable(_FlagColumn):
    def read(self, node: Node, usage: NodeUsage, codes: Interners) -> bool:
        return node.unschedulable


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class PluginMigrated(_FlagColumn):
    """Whether the node's kubelet leaves an in-tree plugin to its CSI driver."""

    plugin: str

    def read(self, node: Node, usage: NodeUsage, codes: Interners) -> bool:
        return node.csi is not None and self.plugin in node.csi.migrated_plugins


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class NodeReady(_FlagColumn):
    def read(self, node: Node, usage: NodeUsage, codes: Interners) -> bool:
        return node.ready


# ── inputs of the node ─────────────────────────────────────────────────────────────────────────────────────────────

INPUT_PRESENT, INPUT_ABSENT, INPUT_REQUIRED, INPUT_INVALID = 0, 1, 2, 3
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
        value = parse_typed_value(text, declared.type, declared.unit, declared.json_path)
        if not isinstance(value, NoValueReason):
            return INPUT_PRESENT, value
        if value is NoValueReason.INVALID and declared.invalid_text is not None:
            return INPUT_INVALID, 0
    if declared.default is not None:
        default = declared.default.value
        assert default == () or not isinstance(default, tuple), f"input {declared.name} has {default!r}"
        return INPUT_PRESENT, () if isinstance(default, tuple) else default
    return (INPUT_REQUIRED if declared.required_text is not None else INPUT_ABSENT), 0


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class InputState(metaclass=_InstancePerArguments):
    """One of the INPUT_ states."""

    reads_usage: ClassVar[bool] = False
    declaration: Input

    @property
    def dtype(self) -> DTypeLike:
        return np.int8

    def read(self, node: Node, usage: NodeUsage, codes: Interners) -> int:
        return read_node_input(self.declaration, node)[0]


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class InputValue(metaclass=_InstancePerArguments):
    """The value as its type is held (strings as codes), 0 where it has none."""

    reads_usage: ClassVar[bool] = False
    declaration: Input

    @property
    def dtype(self) -> DTypeLike:
        return dtype_of(self.declaration.type.kind)

    def read(self, node: Node, usage: NodeUsage, codes: Interners) -> Scalar:
        state, value = read_node_input(self.declaration, node)
        if self.declaration.type.kind is TypeKind.LIST:
            return codes.records.code((self.declaration.type, value)) if state == INPUT_PRESENT else 0
        assert not isinstance(value, tuple), f"input {self.declaration.name} is {value!r}"
        if self.declaration.type.kind is TypeKind.STRING:
            return codes.strings.code(str(value)) if state == INPUT_PRESENT else ABSENT
        assert not isinstance(value, str), (
            f"input {self.declaration.name} is {value!r}, not {self.declaration.type}"
        )
        return value
