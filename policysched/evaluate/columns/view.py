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

from policysched.cluster.devices.allocation_cache import DeviceOverlay
from policysched.cluster.devices.availability import AvailableDevices
from policysched.cluster.samples import PairSamples
from policysched.cluster.usage import NodeUsage
from policysched.cluster.volumes.availability import AvailableVolumes
from policysched.cluster.volumes.reservations import VolumeReservations
from policysched.evaluate.columns.attached_volumes import attached_to
from policysched.evaluate.columns.column_kinds import ColumnKind, Interners
from policysched.evaluate.columns.columns import Array, Columns
from policysched.evaluate.columns.device_refusals import DeviceRefusal, DeviceRefusalCodes
from policysched.evaluate.columns.free_volume_index import FreeVolumeIndex
from policysched.evaluate.columns.gang_members import GangMembers, GangMemberSpec, HypotheticalGangMembers
from policysched.evaluate.columns.metric_column import MetricColumn
from policysched.evaluate.columns.placed_pods import (
    ExistingPodTerm,
    HypotheticalPlacedPods,
    PlacedPods,
    PodTally,
    RowCounts,
)
from policysched.evaluate.columns.storage_capacity import StorageCapacityTable
from policysched.lang.ir.arithmetic import Number
from policysched.lang.ir.expr import RecoveryCondition
from policysched.model.identifiers import NodeName, PodUid, VolumeClaimKey
from policysched.model.nodes import Node
from policysched.model.storage import CsiVolume, PersistentVolumeClaim

Value = TypeVar("Value")


class View:
    """`count` rows; `rows` are their places in the columns. `column(kind)` is an array of `count`, not to be changed.

    `now_ns` is the clock and `metrics` the policy's samples as columns: a view is of one moment. `metric_overrides` are the values of metrics
    on rows where an overlay changed them. `columns_read` collects the columns that
    were looked at, `reads_only_columns` stays True while nothing else was: then equal values give equal answers.
    """

    __slots__ = (
        "_all_rows",
        "_claim_use_deltas",
        "_columns",
        "_device_reservations",
        "_metric_overrides",
        "_overlay_pods",
        "_overlay_usages",
        "_overlay_usages_by_row",
        "_volume_reservations",
        "columns_read",
        "count",
        "metrics",
        "now_ns",
        "reads_only_columns",
        "rows",
    )

    def __init__(
        self,
        columns: Columns,
        rows: Sequence[int] | None = None,
        *,
        now_ns: int = 0,
        metrics: Mapping[str, MetricColumn] | None = None,
        overlay_usages: Mapping[int, NodeUsage] | None = None,
        metric_overrides: Mapping[str, Mapping[int, Number]] | None = None,
        overlay_pods: HypotheticalPlacedPods | None = None,
        claim_use_deltas: Mapping[VolumeClaimKey, int] | None = None,
        volume_reservations: VolumeReservations | None = None,
        device_reservations: DeviceOverlay | None = None,
    ) -> None:
        self._columns = columns
        self._metric_overrides = metric_overrides or {}
        self._overlay_usages_by_row = overlay_usages
        self._overlay_pods = overlay_pods
        self._claim_use_deltas = claim_use_deltas or {}
        self._volume_reservations = volume_reservations
        self._device_reservations = device_reservations
        self._all_rows: View | None = None
        self.now_ns = now_ns
        self.columns_read: set[ColumnKind] = set()
        self.reads_only_columns = True
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
        self._overlay_usages = {} if not overlay_usages else self._by_position(overlay_usages)

    @property
    def codes(self) -> Interners:
        return self._columns.codes

    @property
    def codes_version(self) -> int:
        """Codes of one value are equal as long as this is."""
        return self._columns.codes_version

    @property
    def node_count(self) -> int:
        """All nodes of the cluster, in view or not."""
        return self._columns.node_count

    @property
    def topology_version(self) -> int:
        """Moves when a node comes, goes, or changes its labels or taints."""
        self.reads_only_columns = False
        return self._columns.topology_version

    @property
    def placed_pods(self) -> PlacedPods:
        """What can be asked about the pods on all rows; `row_counts` has the answers, the overlay's included."""
        self.reads_only_columns = False
        if self._overlay_pods is not None:
            self._overlay_pods.apply_pending_changes()
        return self._columns.placed_pods

    @property
    def available_volumes(self) -> AvailableVolumes:
        """Volumes and claims, with what the overlay has promised."""
        self.reads_only_columns = False
        stock = self._columns.available_volumes
        return stock if self._volume_reservations is None else stock.with_overlay(self._volume_reservations)

    def free_volumes(self, claim: PersistentVolumeClaim) -> tuple[FreeVolumeIndex, list[int]]:
        """Those that would do for the claim, and the places of those that the overlay has promised."""
        self.reads_only_columns = False
        found = self._columns.free_volumes.index_for(claim, self.codes_version)
        promised = () if self._volume_reservations is None else self._volume_reservations.by_key
        return found, [
            found.position_of[one] for one in promised if isinstance(one, str) and one in found.position_of
        ]

    def storage_capacity(self, class_name: str) -> StorageCapacityTable:
        self.reads_only_columns = False
        return self._columns.storage_capacity.table_for(
            class_name, self.available_volumes, self.codes.strings, self.codes_version
        )

    def attached_volume_counts(self, driver: str, own: Collection[CsiVolume]) -> tuple[Array, Array]:
        """int64[count]: how many volumes of a CSI driver are attached, the overlay's included, and how many of a pod's `own` (of
        this driver) no pod of the row has attached."""
        self.reads_only_columns = False
        known = self._columns.attached_volumes
        counts = known.counts(driver)[self.rows]
        new = np.full(self._columns.size, len(own), np.int64)
        for mount in own:
            new[list(known.rows_with_mount(mount))] -= 1
        new = new[self.rows]
        if self._overlay_usages:
            counts = counts.copy()
            for place, usage in self._overlay_usages.items():
                node = self._columns.nodes[self.row(place)]
                assert node is not None, f"row {self.row(place)} has an overlay and no node"
                there = attached_to(node, usage.pods.values(), self._columns.available_volumes)
                counts[place] = there.counts.get(driver, 0)
                new[place] = sum(mount not in there.pod_mounts for mount in own)
        return counts, new

    @property
    def available_devices(self) -> AvailableDevices:
        """Devices and claims for them, with what the overlay has promised."""
        self.reads_only_columns = False
        stock = self._columns.available_devices
        return stock if self._device_reservations is None else stock.with_overlay(self._device_reservations)

    def device_refusals(
        self,
        text: Hashable,
        stamp: Hashable,
        ask: Callable[[Node, AvailableDevices], DeviceRefusal | None],
    ) -> DeviceRefusalCodes:
        """What nodes say of claims of this text, by row of the view, with what the overlay has promised."""
        self.reads_only_columns = False
        columns, laid = self._columns, self._device_reservations
        stock = columns.available_devices
        found = columns.device_refusals.column_for(columns, text, stamp, lambda node: ask(node, stock))
        if laid is None or not (laid.node_changes or laid.shared_changes):
            return replace(found, codes=found.codes[self.rows])
        found, stock = deepcopy(found), stock.with_overlay(laid)
        rows = (
            [columns.row(name) for name in laid.node_changes]
            if not laid.shared_changes
            else range(columns.size)
        )
        for row in rows:
            node = None if row is None else columns.nodes[row]
            if row is not None and node is not None:
                found.codes[row] = found.code(ask(node, stock))
        return replace(found, codes=found.codes[self.rows])

    def claim_uses(self, claim: VolumeClaimKey) -> int:
        """How many volumes of placed pods are this claim, the overlay's included."""
        self.reads_only_columns = False
        return self._columns.claim_uses(claim) + self._claim_use_deltas.get(claim, 0)

    def row_counts(self, counted: PodTally | ExistingPodTerm) -> RowCounts:
        return counted.row_counts if self._overlay_pods is None else self._overlay_pods.row_counts(counted)

    def all_rows(self) -> "View":
        """All rows at the same moment."""
        if isinstance(self.rows, slice) and self.count == self._columns.size:
            return self
        if self._all_rows is None:
            self._all_rows = View(
                self._columns,
                now_ns=self.now_ns,
                metrics=self.metrics,
                overlay_usages=self._overlay_usages_by_row,
                metric_overrides=self._metric_overrides,
                overlay_pods=self._overlay_pods,
                claim_use_deltas=self._claim_use_deltas,
                volume_reservations=self._volume_reservations,
                device_reservations=self._device_reservations,
            )
        return self._all_rows

    def nodes_with_image(self, image: str) -> int:
        return self._columns.nodes_with_image.get(image, 0)

    def column(self, kind: ColumnKind) -> Array:
        self.columns_read.add(kind)
        found: Array = self._columns.array(kind)[self.rows]
        if self._overlay_usages and kind.reads_usage:
            found = found.copy()
            for place, usage in self._overlay_usages.items():
                node = self._columns.nodes[self.row(place)]
                assert node is not None, f"row {self.row(place)} has an overlay and no node"
                found[place] = kind.read(node, usage, self.codes)
        return found

    def values(self, kinds: Iterable[ColumnKind]) -> list[Any]:
        """What the one node in view has in these columns, as Python's own values."""
        assert isinstance(self.rows, slice) and self.count == 1, f"{self.count} nodes are in view"
        if self._overlay_usages:
            return [self.column(kind).item() for kind in kinds]
        array, row = self._columns.array, self.rows.start
        return [array(kind).item(row) for kind in kinds]

    def metric(self, name: str) -> tuple[Array, Array]:
        """Values, and where there is a fresh sample."""
        self.reads_only_columns = False
        column = self.metrics[name]
        values, laid = column.values[self.rows], self._metric_overrides.get(name)
        if laid:
            values = values.copy()
            for place, value in self._by_position(laid).items():
                values[place] = value
        return values, column.known(self.now_ns)[self.rows]

    def pairs(self, name: str) -> PairSamples:
        """What a metric has between pods, by the last poll."""
        self.reads_only_columns = False
        return self.metrics[name].pairs

    def gang_members(self, terms: GangMemberSpec) -> GangMembers | HypotheticalGangMembers:
        """Where members of gangs are, on all rows, by what they are called."""
        self.reads_only_columns = False
        members = self._columns.gang_members(terms)
        return members if self._overlay_pods is None else self._overlay_pods.gang_members(members)

    def row_of_pod(self, uid: PodUid) -> int | None:
        """The row that the pod is placed on, also where an overlay has lifted it off."""
        self.reads_only_columns = False
        return self._columns.row_of_pod(uid)

    def from_row_values(self, values: Mapping[int, Number], otherwise: Number, dtype: DTypeLike) -> Array:
        """[count]: what is given by rows."""
        found: Array = np.full(self.count, otherwise, dtype)
        for place, value in self._by_position(values).items():
            found[place] = value
        return found

    def awaiting_recovery(self, watch: RecoveryCondition) -> Array:
        """Where a node crossed the watch's limit and has not recovered."""
        self.reads_only_columns = False
        return self.metrics[watch.metric].awaiting_recovery(watch, self.now_ns)[self.rows]

    def from_node_values(self, values: Mapping[NodeName, float], otherwise: float) -> Array:
        """float64[count]: what is given by the names of nodes."""
        self.reads_only_columns = False
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

    def node_at(self, place: int) -> tuple[Node, NodeUsage] | None:
        """The node and its totals, for the few questions that no column answers; None where the row is free."""
        self.reads_only_columns = False
        row = self.row(place)
        node = self._columns.nodes[row]
        return None if node is None else (node, self._overlay_usages.get(place) or self._columns.usage(row))

    def _by_position(self, by_row: Mapping[int, Value]) -> dict[int, Value]:
        """By place in this view what is given by row."""
        if isinstance(self.rows, slice):
            start, stop = self.rows.start, self.rows.stop
            if stop - start == 1:
                return {0: by_row[start]} if start in by_row else {}
            return {row - start: value for row, value in by_row.items() if start <= row < stop}
        return {place: by_row[row] for place, row in enumerate(self.rows.tolist()) if row in by_row}


def map_codes(
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
