"""Kinds of columns: one small class per kind, one object for equal arguments.

A kind reads the value of one row. `Columns` calls it for every row when a plan or a pod first needs
the column, and for changed rows afterwards. Kinds with `reads_usage` are read again when only the
pods of a node changed.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Protocol
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import DTypeLike, NDArray

from policysched.cluster.node_usage import REQUESTED_MAX, NodeUsage
from policysched.evaluate.columns.dtypes import dtype_of
from policysched.evaluate.columns.interner import ABSENT, Interner
from policysched.evaluate.columns.shared_interners import Interners
from policysched.evaluate.scalar.compiler import compile_scalar
from policysched.evaluate.scalar.eval_context import EvalContext, InputDeclarations, ScalarFunction
from policysched.evaluate.scalar.leaves import attribute
from policysched.evaluate.scalar.operations import requested_amount
from policysched.lang.ir.arithmetic import integer_sum
from policysched.lang.ir.attributes import find_attribute
from policysched.lang.ir.declarations import Input
from policysched.lang.ir.expr import Expr
from policysched.lang.types.kinds import TypeKind
from policysched.lang.types.records import NoValueReason, TypedValue, parse_typed_value
from policysched.model.namespaces import Namespace
from policysched.model.nodes import Node

Array = NDArray[Any]
Scalar = bool | int | float

_COMPILED_CACHE_MAX = 1024


class ColumnKind(Protocol):
    reads_usage: ClassVar[bool]

    @property
    def dtype(self) -> DTypeLike: ...

    def read(self, node: Node, usage: NodeUsage, codes: Interners) -> Scalar: ...

    def __hash__(self) -> int: ...


class _InternedMeta(type):
    """Equal arguments give the same object, so that columns are looked up by identity, which is hot."""

    _instances: ClassVar["WeakValueDictionary[Hashable, Any]"] = WeakValueDictionary()

    def __call__(cls, *args: Any) -> Any:
        key = (cls, args)
        instance = cls._instances.get(key)
        if instance is None:
            instance = cls._instances[key] = super().__call__(*args)
        return instance


class _CodeColumn(metaclass=_InternedMeta):
    """A column of interned values."""

    __slots__ = ()

    reads_usage: ClassVar[bool] = False

    @property
    def dtype(self) -> DTypeLike:
        return np.int32


class _AmountColumn(metaclass=_InternedMeta):
    __slots__ = ()
    reads_usage: ClassVar[bool] = False

    @property
    def dtype(self) -> DTypeLike:
        return np.int64


class _UsageAmountColumn(_AmountColumn):
    __slots__ = ()
    reads_usage: ClassVar[bool] = True


class _FlagColumn(metaclass=_InternedMeta):
    __slots__ = ()
    reads_usage: ClassVar[bool] = False

    @property
    def dtype(self) -> DTypeLike:
        return np.bool_


# ── strings ────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class NodeMapEntryColumn(_CodeColumn):
    """An entry of one of the node's maps of strings (`labels`, `annotations`, `conditions`, `objects`), or ABSENT."""

    map_name: str
    key: str

    def read(self, node: Node, usage: NodeUsage, codes: Interners) -> int:
        entries: Mapping[str, str] = getattr(node, self.map_name)
        value = entries.get(self.key)
        return ABSENT if value is None else codes.strings.code(value)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class DomainColumn(_CodeColumn):
    """The node's domain under a topology key, from 1, each key with codes of its own. 0: the label is
    absent, or the row is free."""

    key: str

    def read(self, node: Node, usage: NodeUsage, codes: Interners) -> int:
        value = node.labels.get(self.key)
        if value is None:
            return 0
        domains = codes.domains.get(self.key)
        if domains is None:
            domains = codes.domains[self.key] = Interner()
        return 1 + domains.code(value)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class NodeFieldColumn(metaclass=_InternedMeta):
    """An attribute of the node that is one of its fields; strings and lists of strings as codes.

    `field` as in `lang.ir.attributes`: `FIELD`, or `FIELD[].ITEM` for that field of each item.
    """

    reads_usage: ClassVar[bool] = False
    field: str
    type_kind: TypeKind

    @property
    def dtype(self) -> DTypeLike:
        return dtype_of(self.type_kind)

    def read(self, node: Node, usage: NodeUsage, codes: Interners) -> Scalar:
        name, _, item_name = self.field.partition("[].")
        value: Any = getattr(node, name)
        match self.type_kind:
            case TypeKind.STRING:
                return codes.strings.code(value)
            case TypeKind.LIST if item_name:
                return codes.lists.code(tuple([getattr(item, item_name) for item in value]))
            case TypeKind.LIST:
                return codes.lists.code(tuple(value))
            case _:
                scalar: Scalar = value
                return scalar


NODE_NAME = NodeFieldColumn("name", TypeKind.STRING)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class TaintSetColumn(_CodeColumn):
    """The node's taints as one value, which the nodes of a pool mostly share."""

    def read(self, node: Node, usage: NodeUsage, codes: Interners) -> int:
        return codes.taints.code(node.taints)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class PortSetColumn(_CodeColumn):
    """`NodeUsage.ports` as one value."""

    reads_usage: ClassVar[bool] = True

    def read(self, node: Node, usage: NodeUsage, codes: Interners) -> int:
        code = codes.ports.code(usage.ports.items)
        usage.ports.share(codes.ports.values[code])
        return code


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class DiskSetColumn(_CodeColumn):
    """`NodeUsage.disks` as one value."""

    reads_usage: ClassVar[bool] = True

    def read(self, node: Node, usage: NodeUsage, codes: Interners) -> int:
        code = codes.disks.code(usage.disks.items)
        usage.disks.share(codes.disks.values[code])
        return code


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class PodClassCountsColumn(_CodeColumn):
    """The pods of the node by class: pods that agree on the attributes `attribute_paths` are one class."""

    reads_usage: ClassVar[bool] = True
    attribute_paths: tuple[tuple[str, ...], ...]

    def read(self, node: Node, usage: NodeUsage, codes: Interners) -> int:
        counts: dict[int, int] = {}
        for pod in usage.pods.values():
            context = EvalContext(pod, _NO_NAMESPACE, other=pod)
            values = [_counted_attribute(path)(context) for path in self.attribute_paths]
            code = codes.pod_class_code((self.attribute_paths, *values), pod)
            counts[code] = counts.get(code, 0) + 1
        return codes.class_counts.code(tuple(sorted(counts.items())))


_NO_NAMESPACE = Namespace("", {}, {})


@lru_cache(maxsize=_COMPILED_CACHE_MAX)
def _counted_attribute(path: tuple[str, ...]) -> ScalarFunction:
    return attribute("other", path)


# ── numbers and flags ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class AllocatableColumn(_AmountColumn):
    resource: str

    def read(self, node: Node, usage: NodeUsage, codes: Interners) -> int:
        return node.allocatable.get(self.resource, 0)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class VolumeLimitColumn(_AmountColumn):
    """One more than the limit of attached volumes of a CSI driver; 0: no limit."""

    driver: str

    def read(self, node: Node, usage: NodeUsage, codes: Interners) -> int:
        return 0 if node.csi is None else 1 + node.csi.limits.get(self.driver, -1)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class CsiDriverColumn(_FlagColumn):
    """Whether the CSINode has the driver."""

    driver: str

    def read(self, node: Node, usage: NodeUsage, codes: Interners) -> bool:
        return node.csi is not None and self.driver in node.csi.drivers


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class RequestedColumn(_UsageAmountColumn):
    """The sum of what the node's pods request of a resource."""

    resource: str

    def read(self, node: Node, usage: NodeUsage, codes: Interners) -> int:
        return usage.requested_capped(self.resource)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class PolicyResourceRequestedColumn(_UsageAmountColumn):
    """What the node's pods request of a resource that the policy declares: the sum of `amount`, an
    expression of the counted pod that reads `inputs`, in whole units. Saturates, so that a full node
    stays full."""

    amount: Expr
    inputs: tuple[Input, ...]
    floating: bool

    @property
    def dtype(self) -> DTypeLike:
        return np.float64 if self.floating else np.int64

    def read(self, node: Node, usage: NodeUsage, codes: Interners) -> Scalar:
        amount = _amount_function(self.amount, self.inputs)
        pods = usage.pods.values()
        return integer_sum(
            (requested_amount(amount, EvalContext(pod, _NO_NAMESPACE, other=pod)) for pod in pods),
            floating=self.floating,
        )


@lru_cache(maxsize=_COMPILED_CACHE_MAX)
def _amount_function(amount: Expr, inputs: tuple[Input, ...]) -> ScalarFunction:
    return compile_scalar(amount, InputDeclarations.of(inputs))


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class ScoringRequestedColumn(_UsageAmountColumn):
    """Requests, with kube-scheduler's defaults for containers without any; `resource` is cpu or memory."""

    resource: str

    def read(self, node: Node, usage: NodeUsage, codes: Interners) -> int:
        total = usage.scoring_cpu_milli if self.resource == "cpu" else usage.scoring_memory_bytes
        return min(total, REQUESTED_MAX)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class PodCountColumn(_UsageAmountColumn):
    def read(self, node: Node, usage: NodeUsage, codes: Interners) -> int:
        return usage.pod_count


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class ImageSizeColumn(_AmountColumn):
    """Size of an image on the node in bytes; -1: absent."""

    image: str

    def read(self, node: Node, usage: NodeUsage, codes: Interners) -> int:
        return node.images.get(self.image, -1)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class DeclaredFeaturesColumn(_FlagColumn):
    """Whether the node's kubelet declares all of the features."""

    features: tuple[str, ...]

    def read(self, node: Node, usage: NodeUsage, codes: Interners) -> bool:
        return node.declared_features.issuperset(self.features)


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class NodeUnschedulableColumn(_FlagColumn):
    def read(self, node: Node, usage: NodeUsage, codes: Interners) -> bool:
        return node.unschedulable


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class PluginMigratedColumn(_FlagColumn):
    """Whether the node's kubelet has migrated an in-tree plugin to its CSI driver."""

    plugin: str

    def read(self, node: Node, usage: NodeUsage, codes: Interners) -> bool:
        return node.csi is not None and self.plugin in node.csi.migrated_plugins


# ── built-in attributes of the node ────────────────────────────────────────────────────────────────────────────────


def node_attribute_column(path: tuple[str, ...]) -> ColumnKind:
    """The column of a built-in attribute, from its row in `lang.ir.attributes`. `node.free` has
    none: it is the difference of two columns."""
    row, key = find_attribute("node", path), path[-1]
    match row.field, row.key_kind:
        case "usage.pods", None:
            return PodCountColumn()
        case "usage.requested", _:
            return PodCountColumn() if key == "pods" else RequestedColumn(key)
        case "allocatable", _:
            return AllocatableColumn(key)
        case map_name, "texts":
            return NodeMapEntryColumn(map_name, key)
        case field_name, None if "." not in field_name.replace("[].", "") and not row.type.optional:
            return NodeFieldColumn(field_name, row.type.kind)
        case _:
            raise AssertionError(f"{row.qualified_name} has no column")


# ── inputs of the node ─────────────────────────────────────────────────────────────────────────────────────────────

INPUT_PRESENT, INPUT_ABSENT, INPUT_REQUIRED, INPUT_INVALID = 0, 1, 2, 3
"""States of an input on a node: it has a value; optional and absent; required and absent; rejected as invalid."""


def read_node_input(declaration: Input, node: Node) -> tuple[int, TypedValue]:
    """The input's INPUT_ state, and its value where it has one."""
    source: object = getattr(node, declaration.source_map)
    if declaration.source_key is None:
        text: str | None = str(source)
    else:
        assert isinstance(source, Mapping), f"node.{declaration.source_map} is not a map"
        text = source.get(declaration.source_key)
    if text is not None:
        value = parse_typed_value(text, declaration.type, declaration.unit, declaration.json_path)
        if not isinstance(value, NoValueReason):
            return INPUT_PRESENT, value
        if value is NoValueReason.INVALID and declaration.invalid_text is not None:
            return INPUT_INVALID, 0
    if declaration.default is not None:
        default = declaration.default.value
        assert default == () or not isinstance(default, tuple), f"input {declaration.name} has {default!r}"
        return INPUT_PRESENT, () if isinstance(default, tuple) else default
    return (INPUT_REQUIRED if declaration.required_text is not None else INPUT_ABSENT), 0


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class InputStateColumn(metaclass=_InternedMeta):
    """One of the INPUT_ states."""

    reads_usage: ClassVar[bool] = False
    declaration: Input

    @property
    def dtype(self) -> DTypeLike:
        return np.int8

    def read(self, node: Node, usage: NodeUsage, codes: Interners) -> int:
        return read_node_input(self.declaration, node)[0]


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class InputValueColumn(metaclass=_InternedMeta):
    """The value in the dtype of its type (strings and lists as codes), 0 where it has none."""

    reads_usage: ClassVar[bool] = False
    declaration: Input

    @property
    def dtype(self) -> DTypeLike:
        return dtype_of(self.declaration.type.kind)

    def read(self, node: Node, usage: NodeUsage, codes: Interners) -> Scalar:
        state, value = read_node_input(self.declaration, node)
        if self.declaration.type.kind is TypeKind.LIST:
            return codes.record_lists.code((self.declaration.type, value)) if state == INPUT_PRESENT else 0
        assert not isinstance(value, tuple), f"input {self.declaration.name} is {value!r}"
        if self.declaration.type.kind is TypeKind.STRING:
            return codes.strings.code(str(value)) if state == INPUT_PRESENT else ABSENT
        assert not isinstance(value, str), (
            f"input {self.declaration.name} is {value!r}, not {self.declaration.type}"
        )
        return value
