"""`FreeVolumeIndex`: the best free volume of each node for a claim, without a loop over nodes.

Most statically provisioned volumes belong to one node: their affinity is one label with its values.
These are in tables by the code of the label's value, so that a column of codes is one gather. Other
affinities are few, and are evaluated as masks. An index is built once; a volume that is taken or
released updates the entries of its own values.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from policysched.cluster.volumes.availability import AvailableVolumes
from policysched.cluster.volumes.binder import is_available, matches_claim_spec
from policysched.cluster.volumes.volume_cache import VolumeCache
from policysched.evaluate.columns.interner import UNKNOWN, Interner
from policysched.model.selectors import LabelSelector, SelectorByKey, volume_fits_labels
from policysched.model.storage import NodeSelectorTerms, PersistentVolume, PersistentVolumeClaim

Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]

NO_FREE_VOLUME = -1
"""The node has no volume."""
_NO_CANDIDATE = np.iinfo(np.int64).max
_CACHED_INDEXES_MAX = 64


class NodeLabelRows(Protocol):
    """The nodes of a lookup."""

    @property
    def count(self) -> int: ...

    @property
    def strings(self) -> Interner[str]: ...

    def label_codes(self, label: str) -> NDArray[np.int32]:
        """The code of each node's value."""
        ...

    def matching_rows(self, terms: NodeSelectorTerms | None) -> Mask:
        """The nodes that a volume's node affinity selects."""
        ...


@dataclass(frozen=True, slots=True)
class _ClaimRequirements:
    """The fields of a claim that decide which free volumes match."""

    class_name: str
    request_bytes: int | None
    access_modes: frozenset[str]
    block: bool
    attributes_class: str
    selector: LabelSelector | None


class _CodeTable:
    """For one label and one rank: the position of the volume of that rank, by the code of the label's value."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self._positions: Numbers = np.full(1, _NO_CANDIDATE)

    def put(self, code: int, position: int) -> None:
        if code >= len(self._positions) - 1:
            padding = np.full(max(code + 2 - len(self._positions), len(self._positions)), _NO_CANDIDATE)
            self._positions = np.concatenate([self._positions, padding])
        self._positions[code] = position

    def gather(self, codes: NDArray[np.int32]) -> Numbers:
        last = len(self._positions) - 1  # the entry of every code without a volume
        positions: Numbers = self._positions[np.where((codes >= 0) & (codes < last), codes, last)]
        return positions


class _LabelValueIndex:
    """The volumes whose affinity is one label, by its values. `tables[n]` has the n-th best volume of
    each value; values that no node has yet have no code."""

    def __init__(self) -> None:
        self.positions: dict[str, list[int]] = {}
        self.tables: list[_CodeTable] = []
        self.code_of: dict[str, int] = {}
        self._without_code: list[str] = []
        self._string_count = -1

    def learn_codes(self, strings: Interner[str]) -> Sequence[str]:
        """The values that got a code since the last call."""
        if self._string_count == len(strings):
            return ()
        unknown = list(self.positions) if self._string_count < 0 else self._without_code
        self._string_count = len(strings)
        codes = {value: strings.find(value) for value in unknown}
        new = {value: code for value, code in codes.items() if code != UNKNOWN}
        self.code_of |= new
        self._without_code = [value for value in unknown if value not in new]
        return list(new)


class FreeVolumeIndex:
    """`volumes` that matched when the index was built, best first; `set_free` tracks which are free. `selector`: that of
    the claims."""

    selector: SelectorByKey | None = None

    def __init__(self, volumes: Sequence[PersistentVolume]) -> None:
        self.volumes = list(volumes)
        self.position_of = {volume.name: position for position, volume in enumerate(self.volumes)}
        self._free = [True] * len(self.volumes)
        self._by_label: dict[str, _LabelValueIndex] = {}
        self._by_terms: dict[NodeSelectorTerms | None, list[int]] = {}
        for position, volume in enumerate(self.volumes):
            label = _single_label(volume.node_affinity_terms)
            if label is None:
                self._by_terms.setdefault(volume.node_affinity_terms, []).append(position)
                continue
            by_value = self._by_label.setdefault(label[0], _LabelValueIndex())
            for value in label[1]:
                by_value.positions.setdefault(value, []).append(position)

    def set_free(self, position: int, *, free: bool) -> None:
        """Mark the volume as taken or free."""
        if self._free[position] == free:
            return
        self._free[position] = free
        label = _single_label(self.volumes[position].node_affinity_terms)
        if label is not None:
            by_value = self._by_label[label[0]]
            for value in label[1]:
                self._update_tables(by_value, value, by_value.tables)

    def best(self, rows: NodeLabelRows, taken: Sequence[Numbers], absent: Collection[int]) -> Numbers:
        """The position of the best volume that each node can reach, or NO_FREE_VOLUME. Leaves out
        `taken`, positions by node, and `absent`, positions reserved on this overlay."""
        best = np.full(rows.count, _NO_CANDIDATE)
        taken_positions = np.array(taken).reshape(len(taken), rows.count)
        for candidates in self._candidates(rows, len(taken) + 1 + len(absent)):
            is_taken = (taken_positions == candidates).any(axis=0)
            remaining = np.where(is_taken, _NO_CANDIDATE, candidates)
            for position in absent:
                remaining = np.where(remaining == position, _NO_CANDIDATE, remaining)
            np.minimum(best, remaining, out=best)
        return np.where(best == _NO_CANDIDATE, NO_FREE_VOLUME, best)

    def best_for_labels(
        self, labels: Mapping[str, str], excluded: Collection[str]
    ) -> PersistentVolume | None:
        """The best volume that a node with these labels can reach and whose name is not `excluded`."""
        lists: list[Iterable[int]] = []
        for key, by_value in self._by_label.items():
            value = labels.get(key)
            if value is not None:
                lists.append(by_value.positions.get(value, ()))
        lists += [
            positions for terms, positions in self._by_terms.items() if volume_fits_labels(terms, labels)
        ]
        firsts = (
            next(
                (
                    position
                    for position in positions
                    if self._free[position] and self.volumes[position].name not in excluded
                ),
                None,
            )
            for positions in lists
        )
        best = min((position for position in firsts if position is not None), default=None)
        return None if best is None else self.volumes[best]

    def _candidates(self, rows: NodeLabelRows, depth: int) -> Iterator[Numbers]:
        """For each affinity, the best `depth` volumes of each node."""
        for key, by_value in self._by_label.items():
            codes = rows.label_codes(key)
            for value in by_value.learn_codes(rows.strings):
                self._update_tables(by_value, value, by_value.tables)
            deepest = max(map(len, by_value.positions.values()), default=0)
            while len(by_value.tables) < min(depth, deepest):
                table = _CodeTable(len(by_value.tables))
                by_value.tables.append(table)
                for value in by_value.code_of:
                    self._update_tables(by_value, value, (table,))
            for table in by_value.tables[:depth]:
                yield table.gather(codes)
        for terms, positions in self._by_terms.items():
            fits = rows.matching_rows(terms)
            for rank in range(min(depth, len(positions)) if fits.any() else 0):
                position = self._nth_free(positions, rank)
                if position == _NO_CANDIDATE:
                    break
                yield np.where(fits, position, _NO_CANDIDATE)

    def _update_tables(self, by_value: _LabelValueIndex, value: str, tables: Iterable[_CodeTable]) -> None:
        code = by_value.code_of.get(value)
        if code is not None:
            for table in tables:
                table.put(code, self._nth_free(by_value.positions[value], table.rank))

    def _nth_free(self, positions: Sequence[int], rank: int) -> int:
        """The `rank`-th free one of these positions, from 0."""
        for position in positions:
            if self._free[position]:
                if not rank:
                    return position
                rank -= 1
        return _NO_CANDIDATE


class FreeVolumeIndexCache:
    """An index for each distinct set of claim requirements used lately, updated on use."""

    def __init__(self, volumes: VolumeCache) -> None:
        self._volumes = volumes
        self._indexes: OrderedDict[_ClaimRequirements, tuple[FreeVolumeIndex, int, int]] = OrderedDict()

    def index_for(self, claim: PersistentVolumeClaim, codes_version: int) -> FreeVolumeIndex:
        """The current index, without volumes reserved on the real cluster. It is rebuilt when
        `codes_version` invalidates the codes of labels."""
        requirements = _ClaimRequirements(
            claim.class_name,
            claim.request_bytes,
            claim.access_modes,
            claim.is_block,
            claim.attributes_class,
            claim.selector,
        )
        log = self._volumes.volume_changes
        cached = self._indexes.get(requirements)
        if cached is not None:
            self._indexes.move_to_end(requirements)
            index, position, index_codes_version = cached
            changes = log.since(position) if index_codes_version == codes_version else None
            if changes is not None and self._apply_changes(index, claim, changes):
                self._indexes[requirements] = index, log.version, codes_version
                return index
        available = AvailableVolumes(self._volumes)
        selector = None if claim.selector is None else SelectorByKey(claim.selector)
        index = FreeVolumeIndex(
            [
                volume
                for volume in available.free_volumes(claim.class_name)
                if matches_claim_spec(volume, claim) and is_available(volume, claim, selector)
            ]
        )
        index.selector = selector
        self._indexes[requirements] = index, log.version, codes_version
        if len(self._indexes) > _CACHED_INDEXES_MAX:
            self._indexes.popitem(last=False)
        return index

    def _apply_changes(
        self, index: FreeVolumeIndex, claim: PersistentVolumeClaim, changes: Iterable[str]
    ) -> bool:
        """Update the index. False: a new volume has no position in it."""
        available = AvailableVolumes(self._volumes)
        for name in dict.fromkeys(changes):
            volume, position = available.volume(name), index.position_of.get(name)
            free = (
                volume is not None
                and volume.class_name == claim.class_name
                and volume.claim_ref is None
                and not available.is_reserved(name)
                and matches_claim_spec(volume, claim)
                and is_available(volume, claim, index.selector)
            )
            if free and (position is None or not _has_same_position(index.volumes[position], volume)):
                return False
            if position is not None:
                if free:
                    assert volume is not None, f"volume {name} is free and does not exist"
                    index.volumes[position] = volume
                index.set_free(position, free=free)
        return True


def _has_same_position(before: PersistentVolume, after: PersistentVolume | None) -> bool:
    return after is not None and (before.capacity_bytes, before.node_affinity_terms) == (
        after.capacity_bytes,
        after.node_affinity_terms,
    )


def _single_label(required: NodeSelectorTerms | None) -> tuple[str, tuple[str, ...]] | None:
    if required is None or len(required) != 1 or len(required[0].expressions) != 1:
        return None
    requirement = required[0].expressions[0]
    if requirement.operator != "In":
        return None
    return requirement.key, tuple(dict.fromkeys(requirement.values))
