"""What kernels and expressions look at: columns over some rows, as one array a kind.

Three views of one shape: every row (the columns themselves, nothing copied), the few rows that changed, and rows on
which an overlay has laid or lifted pods.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from policysched.cluster.devices.availability import DeviceStock
from policysched.cluster.devices.finder import LaidDevices
from policysched.cluster.samples import Pairs
from policysched.cluster.usage import Usage
from policysched.cluster.volumes.availability import Stock
from policysched.cluster.volumes.reservations import Promises
from policysched.evaluate.columns.attached_volumes import attached_to
from policysched.evaluate.columns.column_kinds import ColumnKind, Interners
from policysched.evaluate.columns.columns import Array, Columns
from policysched.evaluate.columns.device_answers import Coded, Refusal
from policysched.evaluate.columns.free_volumes import FreeVolumes
from policysched.evaluate.columns.gang_members import HypotheticalMembers, Members, MemberTerms
from policysched.evaluate.columns.metric_column import MetricColumn
from policysched.evaluate.columns.placed_pods import (
    Cells,
    HeldTerm,
    HypotheticalPods,
    PlacedPods,
    Tally,
)
from policysched.evaluate.columns.storage_capacity import StorageRoom
from policysched.lang.ir.arithmetic import Number
from policysched.lang.ir.expr import Watch
from policysched.model.objects import ClaimKey, Mount, Node, NodeName, PodUid
from policysched.model.storage import PersistentVolumeClaim

Value = TypeVar("Value")


class View:
    """`count` rows; `rows` are their places in the columns. `column(kind)` is an array of `count`, not to be changed.

    `now_ns` is the clock and `metrics` the policy's samples as columns: a view is of one moment. `laid` are the values of metrics
    on rows where an overlay changed them. `asked` collects the columns that
    were looked at, `whole_answer` stays True while nothing else was: then equal values give equal answers.
    """

    __slots__ = (
        "_claims",
        "_columns",
        "_devices",
        "_everywhere",
        "_hypothetical",
        "_laid",
        "_pods",
        "_promises",
        "_usages",
        "asked",
        "count",
        "metrics",
        "now_ns",
        "rows",
        "whole_answer",
    )

    def __init__(
        self,
        columns: Columns,
        rows: Sequence[int] | None = None,
        *,
        now_ns: int = 0,
        metrics: Mapping[str, MetricColumn] | None = None,
        hypothetical: Mapping[int, Usage] | None = None,
        laid: Mapping[str, Mapping[int, Number]] | None = None,
        pods: HypotheticalPods | None = None,
        claims: Mapping[ClaimKey, int] | None = None,
        promises: Promises | None = None,
        devices: LaidDevices | None = None,
    ) -> None:
        self._columns = columns
        self._laid = laid or {}
        self._usages = hypothetical
        self._pods = pods
        self._claims = claims or {}
        self._promises = promises
        self._devices = devices
        self._everywhere: View | None = None
        self.now_ns = now_ns
        self.asked: set[ColumnKind] = set()
        self.whole_answer = True
        self.metrics = metrics or {}
        if rows is None:
            self.rows: slice | Array = slice(0, columns.size)
            self.count = columns.size
        elif len(rows) == 1:
            self.rows = slice(rows[0], rows[0] + 1)
            self.count = 1
        else:
            self.rows = np.array(rows, np.intp)
            self.count = len(rows)
        self._hypothetical = {} if not hypothetical else self._in_view(hypothetical)

    @property
    def codes(self) -> Interners:
        return self._columns.codes

    @property
    def coding(self) -> int:
        """Codes of one value are equal as long as this is."""
        return self._columns.coding

    @property
    def node_count(self) -> int:
        """All nodes of the cluster, in view or not."""
        return self._columns.node_count

    @property
    def topology_version(self) -> int:
        """Moves when a node comes, goes, or changes its labels or taints."""
        self.whole_answer = False
        return self._columns.topology_version

    @property
    def placed(self) -> PlacedPods:
        """What can be asked about the pods on all rows; `cells` has the answers, the overlay's included."""
        self.whole_answer = False
        if self._pods is not None:
            self._pods.take_moves()
        return self._columns.placed

    @property
    def stock(self) -> Stock:
        """Volumes and claims, with what the overlay has promised."""
        self.whole_answer = False
        stock = self._columns.stock
        return stock if self._promises is None else stock.laid(self._promises)

    def free_volumes(self, claim: PersistentVolumeClaim) -> tuple[FreeVolumes, list[int]]:
        """Those that would do for the claim, and the places of those that the overlay has promised."""
        self.whole_answer = False
        found = self._columns.free_volumes.of(claim, self.coding)
        promised = () if self._promises is None else self._promises.given
        return found, [
            found.place_of[one] for one in promised if isinstance(one, str) and one in found.place_of
        ]

    def storage_room(self, class_name: str) -> StorageRoom:
        self.whole_answer = False
        return self._columns.storage_room.of(class_name, self.stock, self.codes.strings, self.coding)

    def attached(self, driver: str, own: Collection[Mount]) -> tuple[Array, Array]:
        """int64[count]: how many volumes of a CSI driver are attached, the overlay's included, and how many of a pod's `own` (of
        this driver) no pod of the row has attached."""
        self.whole_answer = False
        known = self._columns.attached
        counts = known.counts(driver)[self.rows]
        new = np.full(self._columns.size, len(own), np.int64)
        for mount in own:
            new[list(known.rows_with(mount))] -= 1
        new = new[self.rows]
        if self._hypothetical:
            counts = counts.copy()
            for place, usage in self._hypothetical.items():
                node = self._columns.nodes[self.row(place)]
                assert node is not None, f"row {self.row(place)} has an overlay and no node"
                there = attached_to(node, usage.pods.values(), self._columns.stock)
                counts[place] = there.counts.get(driver, 0)
                new[place] = sum(mount not in there.of_pods for mount in own)
        return counts, new

    @property
    def devices(self) -> DeviceStock:
        """Devices and claims for them, with what the overlay has promised."""
        self.whole_answer = False
        stock = self._columns.devices
        return stock if self._devices is None else stock.laid(self._devices)

    def device_refusals(
        self,
        text: Hashable,
        stamp: Hashable,
        ask: Callable[[Node, DeviceStock], Refusal | None],
    ) -> Coded:
        """What nodes say of claims of this text, by row of the view, with what the overlay has promised."""
        self.whole_answer = False
        columns, laid = self._columns, self._devices
        stock = columns.devices
        found = columns.device_answers.of(columns, text, stamp, lambda node: ask(node, stock))
        if laid is None or not (laid.nodes or laid.anywhere):
            return replace(found, codes=found.codes[self.rows])
        found, stock = deepcopy(found), stock.laid(laid)
        rows = [columns.row(name) for name in laid.nodes] if not laid.anywhere else range(columns.size)
        for row in rows:
            node = None if row is None else columns.nodes[row]
            if row is not None and node is not None:
                found.codes[row] = found.code(ask(node, stock))
        return replace(found, codes=found.codes[self.rows])

    def claim_uses(self, claim: ClaimKey) -> int:
        """How many volumes of placed pods are this claim, the overlay's included."""
        self.whole_answer = False
        return self._columns.claim_uses(claim) + self._claims.get(claim, 0)

    def cells(self, counted: Tally | HeldTerm) -> Cells:
        return counted.cells if self._pods is None else self._pods.cells(counted)

    def everywhere(self) -> "View":
        """All rows at the same moment."""
        if isinstance(self.rows, slice) and self.count == self._columns.size:
            return self
        if self._everywhere is None:
            self._everywhere = View(
                self._columns,
                now_ns=self.now_ns,
                metrics=self.metrics,
                hypothetical=self._usages,
                laid=self._laid,
                pods=self._pods,
                claims=self._claims,
                promises=self._promises,
                devices=self._devices,
            )
        return self._everywhere

    def nodes_with_image(self, image: str) -> int:
        return self._columns.nodes_with_image.get(image, 0)

    def column(self, kind: ColumnKind) -> Array:
        self.asked.add(kind)
        found: Array = self._columns.array(kind)[self.rows]
        if self._hypothetical and kind.of_usage:
            found = found.copy()
            for place, usage in self._hypothetical.items():
                node = self._columns.nodes[self.row(place)]
                assert node is not None, f"row {self.row(place)} has an overlay and no node"
                found[place] = kind.read(node, usage, self.codes)
        return found

    def values(self, kinds: Iterable[ColumnKind]) -> list[Any]:
        """What the one node in view has in these columns, as Python's own values."""
        assert isinstance(self.rows, slice) and self.count == 1, f"{self.count} nodes are in view"
        if self._hypothetical:
            return [self.column(kind).item() for kind in kinds]
        array, row = self._columns.array, self.rows.start
        return [array(kind).item(row) for kind in kinds]

    def metric(self, name: str) -> tuple[Array, Array]:
        """Values, and where there is a fresh sample."""
        self.whole_answer = False
        column = self.metrics[name]
        values, laid = column.values[self.rows], self._laid.get(name)
        if laid:
            values = values.copy()
            for place, value in self._in_view(laid).items():
                values[place] = value
        return values, column.known(self.now_ns)[self.rows]

    def pairs(self, name: str) -> Pairs:
        """What a metric has between pods, by the last poll."""
        self.whole_answer = False
        return self.metrics[name].pairs

    def members(self, terms: MemberTerms) -> Members | HypotheticalMembers:
        """Where members of gangs are, on all rows, by what they are called."""
        self.whole_answer = False
        members = self._columns.members(terms)
        return members if self._pods is None else self._pods.members(members)

    def row_of_pod(self, uid: PodUid) -> int | None:
        """The row that the pod is placed on, also where an overlay has lifted it off."""
        self.whole_answer = False
        return self._columns.row_of_pod(uid)

    def by_row(self, values: Mapping[int, Number], otherwise: Number, dtype: DTypeLike) -> Array:
        """[count]: what is given by rows."""
        found: Array = np.full(self.count, otherwise, dtype)
        for place, value in self._in_view(values).items():
            found[place] = value
        return found

    def held(self, watch: Watch) -> Array:
        """Where a node crossed the watch's limit and has not recovered."""
        self.whole_answer = False
        return self.metrics[watch.metric].held(watch, self.now_ns)[self.rows]

    def by_name(self, values: Mapping[NodeName, float], otherwise: float) -> Array:
        """float64[count]: what is given by the names of nodes."""
        self.whole_answer = False
        if self.count == 1:
            return np.array([values.get(self._columns.names[self.row(0)], otherwise)], np.float64)
        found: Array = np.full(self._columns.size, otherwise, np.float64)
        for name, value in values.items():
            row = self._columns.row(name)
            if row is not None:
                found[row] = value
        chosen: Array = found[self.rows]
        return chosen

    def row(self, place: int) -> int:
        return self.rows.start + place if isinstance(self.rows, slice) else int(self.rows[place])

    def node_at(self, place: int) -> tuple[Node, Usage] | None:
        """The node and its totals, for the few questions that no column answers; None where the row is free."""
        self.whole_answer = False
        row = self.row(place)
        node = self._columns.nodes[row]
        return None if node is None else (node, self._hypothetical.get(place) or self._columns.usage(row))

    def _in_view(self, by_row: Mapping[int, Value]) -> dict[int, Value]:
        """By place in this view what is given by row."""
        if isinstance(self.rows, slice):
            start, stop = self.rows.start, self.rows.stop
            if stop - start == 1:
                return {0: by_row[start]} if start in by_row else {}
            return {row - start: value for row, value in by_row.items() if start <= row < stop}
        return {place: by_row[row] for place, row in enumerate(self.rows.tolist()) if row in by_row}


def by_code(
    codes: Array, values: Sequence[Value], answer: Callable[[Value], int | bool], dtype: DTypeLike
) -> Array:
    """Ask once a distinct value and gather: the answer for each row of a column of codes into `values`."""
    answers = np.zeros(len(values) + 1, dtype)  # one more, for rows that hold no node and may hold any code
    everything = len(values) <= len(codes)
    asked: Iterable[int] = range(len(values)) if everything else set(codes.tolist())
    for code in asked:
        if code < len(values):
            answers[code] = answer(values[code])
    found: Array = answers[codes]
    return found
