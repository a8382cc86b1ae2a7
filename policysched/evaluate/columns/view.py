"""`View`: the columns over some rows, which kernels and expressions read.

A view is of every row (slices of the columns, nothing is copied) or of some, and includes the
changes of an overlay if there is one.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike

from policysched.cluster.devices.availability import AvailableDevices
from policysched.cluster.devices.device_overlay import DeviceOverlay
from policysched.cluster.metric_samples import PairSamples
from policysched.cluster.node_usage import NodeUsage
from policysched.cluster.volumes.availability import AvailableVolumes
from policysched.cluster.volumes.reservations import VolumeReservations
from policysched.evaluate.columns.column_kinds import ColumnKind
from policysched.evaluate.columns.columns import Array, Columns
from policysched.evaluate.columns.device_rejections import DeviceRejectionCodes, DeviceRejections
from policysched.evaluate.columns.free_volume_index import MatchingVolumes
from policysched.evaluate.columns.gang_members import GangMembers, GangMemberSpec, HypotheticalGangMembers
from policysched.evaluate.columns.metric_column import MetricColumn
from policysched.evaluate.columns.placed_pods import (
    HypotheticalPlacedPods,
    PlacedPods,
)
from policysched.evaluate.columns.pod_query import PodTotalSpec
from policysched.evaluate.columns.pod_totals import HypotheticalPodTotals, PodTotals
from policysched.evaluate.columns.row_counts import RowCounts
from policysched.evaluate.columns.shared_interners import Interners
from policysched.evaluate.columns.storage_capacity import StorageCapacityTable
from policysched.evaluate.columns.tallies import PodCount
from policysched.lang.ir.arithmetic import Number
from policysched.lang.ir.recovery_condition import RecoveryCondition
from policysched.model.affinity import PodSelector
from policysched.model.identifiers import NodeName, PodUid, VolumeClaimKey
from policysched.model.nodes import Node
from policysched.model.storage import CsiVolume, PersistentVolumeClaim

Value = TypeVar("Value")
_FEW_ROWS_MAX = 4  # up to this many changed rows are read from their totals, not from an array


class View:
    """`count` rows at one moment; `rows` are their rows in the columns. `column(kind)` is a read-only
    array of `count`.

    `now_ns` is the clock and `metrics` the policy's samples as columns. `metric_overrides` are the
    values of metrics that an overlay changes, by row. `columns_read` collects the columns that were
    read; `reads_only_columns` stays true while nothing else was, so that equal values give equal
    results.
    """

    __slots__ = (
        "_all_rows",
        "_claim_use_deltas",
        "_columns",
        "_device_reservations",
        "_metric_overrides",
        "_overlay_array",
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
        overlay_array: Callable[[ColumnKind], Array] | None = None,
        metric_overrides: Mapping[str, Mapping[int, Number]] | None = None,
        overlay_pods: HypotheticalPlacedPods | None = None,
        claim_use_deltas: Mapping[VolumeClaimKey, int] | None = None,
        volume_reservations: VolumeReservations | None = None,
        device_reservations: DeviceOverlay | None = None,
    ) -> None:
        self._columns = columns
        self._metric_overrides = metric_overrides or {}
        self._overlay_usages_by_row = overlay_usages
        self._overlay_array = overlay_array
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
        """Codes are comparable while this does not change."""
        return self._columns.codes_version

    @property
    def node_count(self) -> int:
        """The number of nodes of the cluster, in view or not."""
        return self._columns.node_count

    @property
    def topology_version(self) -> int:
        """Changes when a node is added or deleted, or changes its labels or taints."""
        self.reads_only_columns = False
        return self._columns.topology_version

    @property
    def placed_pods(self) -> PlacedPods:
        """The pods on all rows, for lookups; `row_counts` has the counts, including the overlay."""
        self.reads_only_columns = False
        if self._overlay_pods is not None:
            self._overlay_pods.apply_pending_changes()
        return self._columns.placed_pods

    @property
    def available_volumes(self) -> AvailableVolumes:
        """Volumes and claims, including the overlay's reservations."""
        self.reads_only_columns = False
        available = self._columns.available_volumes
        if self._volume_reservations is None:
            return available
        return available.with_overlay(self._volume_reservations)

    def free_volumes(self, claim: PersistentVolumeClaim) -> MatchingVolumes:
        """The volumes that match the claim, without those reserved on the overlay."""
        self.reads_only_columns = False
        reserved = () if self._volume_reservations is None else self._volume_reservations.by_key
        return self._columns.free_volumes.volumes_for(claim, self.codes_version, reserved)

    def storage_capacity(self, class_name: str) -> StorageCapacityTable:
        self.reads_only_columns = False
        return self._columns.storage_capacity.table_for(
            class_name, self.available_volumes, self.codes.strings, self.codes_version
        )

    def attached_volume_counts(self, driver: str, own_volumes: Collection[CsiVolume]) -> tuple[Array, Array]:
        """int64[count] each: how many volumes of a CSI driver are attached, and how many of the pod's
        `own_volumes` of the driver no pod of the row has attached. Includes the overlay."""
        self.reads_only_columns = False
        attached = self._columns.attached_volumes
        counts = attached.counts(driver)[self.rows]
        new = np.full(self._columns.size, len(own_volumes), np.int64)
        for mount in own_volumes:
            new[list(attached.rows_with_mount(mount))] -= 1
        new = new[self.rows]
        if self._overlay_usages:
            counts = counts.copy()
            for position, usage in self._overlay_usages.items():
                counts[position], new[position] = attached.with_pods(
                    self.row(position), usage.pods.values(), driver, own_volumes
                )
        return counts, new

    @property
    def available_devices(self) -> AvailableDevices:
        """Devices and resource claims, including the overlay's reservations."""
        self.reads_only_columns = False
        available = self._columns.available_devices
        if self._device_reservations is None:
            return available
        return available.with_overlay(self._device_reservations)

    def device_rejections(
        self,
        spec: Hashable,
        revision: Hashable,
        rejections_in: Callable[[AvailableDevices], DeviceRejections],
    ) -> DeviceRejectionCodes:
        """The rejections by row of the view, including the overlay's reservations. Cached by
        the claims' `spec` until `revision` changes. `rejections_in` computes those of a cluster."""
        self.reads_only_columns = False
        columns, overlay = self._columns, self._device_reservations
        available = columns.available_devices
        rejections = columns.device_rejections.column_for(
            columns, spec, revision, available.stamp, rejections_in(available)
        )
        if overlay is not None and (overlay.node_changes or overlay.shared_changes):
            on_overlay = rejections_in(available.with_overlay(overlay))
            rejections = columns.device_rejections.column_on(
                overlay, columns, spec, revision, rejections, on_overlay
            )
        return replace(rejections, codes=rejections.codes[self.rows])

    def claim_uses(self, claim: VolumeClaimKey) -> int:
        """How many volumes of placed pods use the claim, including the overlay."""
        self.reads_only_columns = False
        return self._columns.claim_uses(claim) + self._claim_use_deltas.get(claim, 0)

    def row_counts(self, counted: PodCount) -> RowCounts:
        return counted.row_counts if self._overlay_pods is None else self._overlay_pods.row_counts(counted)

    def pods_version(self) -> Hashable:
        """Changes with every pod that is added or removed, including the overlay's."""
        self.reads_only_columns = False
        return self.placed_pods.pods_version, 0 if self._overlay_pods is None else self._overlay_pods.version

    def selected_weights(self, weighted: Iterable[tuple[PodSelector, int]], *, if_unknown: bool) -> Array:
        """float64 for all rows: the sum over a row's pods of the weights of the selectors that select them. `if_unknown`: see
        `PodMatcher`."""
        placed = self.placed_pods
        by_class = placed.weights_by_class(weighted, if_unknown=if_unknown)
        by_row = placed.weights_by_row(by_class)
        if self._overlay_pods is not None:
            self._overlay_pods.add_weights(by_row, by_class)
        return by_row[: self._columns.size]

    def all_rows(self) -> "View":
        """The view of all rows at the same moment."""
        if isinstance(self.rows, slice) and self.count == self._columns.size:
            return self
        if self._all_rows is None:
            self._all_rows = View(
                self._columns,
                now_ns=self.now_ns,
                metrics=self.metrics,
                overlay_usages=self._overlay_usages_by_row,
                overlay_array=self._overlay_array,
                metric_overrides=self._metric_overrides,
                overlay_pods=self._overlay_pods,
                claim_use_deltas=self._claim_use_deltas,
                volume_reservations=self._volume_reservations,
                device_reservations=self._device_reservations,
            )
        return self._all_rows

    def has_label_key(self, key: str) -> bool:
        """Whether any node of the cluster has such a label. Changes with `topology_version` alone."""
        self.reads_only_columns = False
        return key in self._columns.nodes_with_label

    def has_resource(self, resource: str) -> bool:
        """Whether any node of the cluster has some of the resource."""
        if resource in self._columns.nodes_with_resource:
            return True
        self.reads_only_columns = False
        return False

    def nodes_with_image(self, image: str) -> int:
        return self._columns.nodes_with_image.get(image, 0)

    def column(self, kind: ColumnKind) -> Array:
        self.columns_read.add(kind)
        if len(self._overlay_usages) > _FEW_ROWS_MAX and kind.reads_usage and self._overlay_array is not None:
            return self._overlay_array(kind)[self.rows]
        column: Array = self._columns.array(kind)[self.rows]
        if self._overlay_usages and kind.reads_usage:
            column = column.copy()
            for position, usage in self._overlay_usages.items():
                node = self._columns.nodes[self.row(position)]
                assert node is not None, f"row {self.row(position)} has an overlay and no node"
                column[position] = kind.read(node, usage, self.codes)
        return column

    def values(self, kinds: Iterable[ColumnKind]) -> list[Any]:
        """The values of a view of one row as Python scalars."""
        assert isinstance(self.rows, slice) and self.count == 1, f"the view has {self.count} rows"
        if self._overlay_usages:
            return [self.column(kind).item() for kind in kinds]
        array, row = self._columns.array, self.rows.start
        return [array(kind).item(row) for kind in kinds]

    def metric(self, name: str) -> tuple[Array, Array]:
        """Values, and the mask of rows with a fresh sample."""
        self.reads_only_columns = False
        column = self.metrics[name]
        values, overrides = column.values[self.rows], self._metric_overrides.get(name)
        if overrides:
            values = values.copy()
            for position, value in self._by_position(overrides).items():
                values[position] = value
        return values, column.known(self.now_ns)[self.rows]

    def pairs(self, name: str) -> PairSamples:
        """The values of a metric between pods, as of the last poll."""
        self.reads_only_columns = False
        return self.metrics[name].pairs

    def gang_members(self, spec: GangMemberSpec) -> GangMembers | HypotheticalGangMembers:
        """The members of gangs on all rows, by member name."""
        self.reads_only_columns = False
        members = self._columns.gang_members(spec)
        return members if self._overlay_pods is None else self._overlay_pods.gang_members(members)

    @property
    def is_hypothetical(self) -> bool:
        """Whether pods are added to the columns, or removed."""
        return self._overlay_pods is not None

    def pod_totals(self, spec: PodTotalSpec) -> PodTotals | HypotheticalPodTotals:
        """Totals over the placed pods of all rows."""
        self.reads_only_columns = False
        totals = self._columns.placed_totals.get(spec)
        return (
            totals
            if self._overlay_pods is None
            else self._overlay_pods.pod_totals(totals, self._columns.nodes)
        )

    def row_of_pod(self, uid: PodUid) -> int | None:
        """The row that the pod is placed on, even if the overlay removed it."""
        self.reads_only_columns = False
        return self._columns.row_of_pod(uid)

    def from_row_values(self, values: Mapping[int, Number], otherwise: Number, dtype: DTypeLike) -> Array:
        """[count]: values by row of the columns as an array of the view."""
        array: Array = np.full(self.count, otherwise, dtype)
        for position, value in self._by_position(values).items():
            array[position] = value
        return array

    def awaiting_recovery(self, condition: RecoveryCondition) -> Array:
        """The mask of nodes that crossed the condition's limit and have not recovered."""
        self.reads_only_columns = False
        return self.metrics[condition.metric].awaiting_recovery(condition, self.now_ns)[self.rows]

    def from_node_values(self, values: Mapping[NodeName, float], otherwise: float) -> Array:
        """float64[count]: values by node name as an array of the view."""
        self.reads_only_columns = False
        if self.count == 1:
            return np.array([values.get(self._columns.names[self.row(0)], otherwise)], np.float64)
        by_row: Array = np.full(self._columns.size, otherwise, np.float64)
        for name, value in values.items():
            row = self._columns.row(name)
            if row is not None:
                by_row[row] = value
        by_position: Array = by_row[self.rows]
        return by_position

    def row(self, position: int) -> int:
        return self.rows.start + position if isinstance(self.rows, slice) else int(self.rows[position])

    def node_at(self, position: int) -> tuple[Node, NodeUsage] | None:
        """The node and its totals, for the few reads that no column serves; None: the row is free."""
        self.reads_only_columns = False
        row = self.row(position)
        node = self._columns.nodes[row]
        if node is None:
            return None
        return node, self._overlay_usages.get(position) or self._columns.usage(row)

    def _by_position(self, by_row: Mapping[int, Value]) -> Mapping[int, Value]:
        """Values by row of the columns, keyed by position in this view. Not copied if both are the same: a gang of
        thousands would copy its overlay for each member."""
        if isinstance(self.rows, slice):
            start, stop = self.rows.start, self.rows.stop
            if stop - start == 1:
                return {0: by_row[start]} if start in by_row else {}
            if start == 0 and stop == self._columns.size:
                return by_row
            return {row - start: value for row, value in by_row.items() if start <= row < stop}
        return {position: by_row[row] for position, row in enumerate(self.rows.tolist()) if row in by_row}


def map_codes(
    codes: Array, values: Sequence[Value], function: Callable[[Value], int | bool], dtype: DTypeLike
) -> Array:
    """Evaluate the function once per distinct value of a column of codes into `values`, and gather by row."""
    results = np.zeros(len(values) + 1, dtype)  # one more for free rows, which may have any code
    use_all = len(values) <= len(codes)
    needed: Iterable[int] = range(len(values)) if use_all else set(codes.tolist())
    for code in needed:
        if code < len(values):
            results[code] = function(values[code])
    by_row: Array = results[codes]
    return by_row
