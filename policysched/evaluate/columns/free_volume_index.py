"""Free volumes that would do for claims of one kind, so arranged that each node's smallest is found without a loop over nodes.

Most volumes that are made by hand are of one node: their affinity is one label with its values. Those stand in tables by
the code of the label's value, so that a column of codes is answered by one gather; the others are few kinds of terms, asked
as masks. An arrangement is made once, and a volume that is taken or given back changes the entries of its own values alone.
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
from policysched.model.selectors import LabelSelector, volume_fits_labels
from policysched.model.storage import NodeSelectorTerms, PersistentVolume, PersistentVolumeClaim

Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]

NO_FREE_VOLUME = -1
"""Where a node has no volume."""
_NO_CANDIDATE = np.iinfo(np.int64).max
_CACHED_INDEXES_MAX = 64


class NodeLabelRows(Protocol):
    """The nodes that are asked about."""

    @property
    def count(self) -> int: ...

    @property
    def strings(self) -> Interner[str]: ...

    def label_codes(self, label: str) -> NDArray[np.int32]:
        """The code of each node's value."""
        ...

    def matching_rows(self, terms: NodeSelectorTerms | None) -> Mask:
        """Whose labels a volume's node affinity selects."""
        ...


@dataclass(frozen=True, slots=True)
class _ClaimRequirements:
    """What of a claim decides which free volumes would do."""

    class_name: str
    request_bytes: int | None
    access_modes: frozenset[str]
    block: bool
    attributes_class: str
    selector: LabelSelector | None


class _CodeTable:
    """For one label and one turn: the place of the volume whose turn it is, by the code of the label's value."""

    def __init__(self, turn: int) -> None:
        self.rank = turn
        self._positions: Numbers = np.full(1, _NO_CANDIDATE)

    def put(self, code: int, place: int) -> None:
        if code >= len(self._positions) - 1:
            more = np.full(max(code + 2 - len(self._positions), len(self._positions)), _NO_CANDIDATE)
            self._positions = np.concatenate([self._positions, more])
        self._positions[code] = place

    def gather(self, codes: NDArray[np.int32]) -> Numbers:
        last = len(self._positions) - 1  # stands for every code that no volume names
        found: Numbers = self._positions[np.where((codes >= 0) & (codes < last), codes, last)]
        return found


class _LabelValueIndex:
    """The volumes whose affinity is one label, by its values. `tables[n]` is a table of the n-th best of each value; values that
    no node has yet have no code."""

    def __init__(self) -> None:
        self.positions: dict[str, list[int]] = {}
        self.tables: list[_CodeTable] = []
        self.code_of: dict[str, int] = {}
        self._without_code: list[str] = []
        self._string_count = -1

    def learn_codes(self, strings: Interner[str]) -> Sequence[str]:
        """The values that have a code since the last time."""
        if self._string_count == len(strings):
            return ()
        unknown = list(self.positions) if self._string_count < 0 else self._without_code
        self._string_count = len(strings)
        found = {value: strings.find(value) for value in unknown}
        new = {value: code for value, code in found.items() if code != UNKNOWN}
        self.code_of |= new
        self._without_code = [value for value in unknown if value not in new]
        return list(new)


class FreeVolumeIndex:
    """`volumes` with the best first: those that would do when this was arranged. Which of them are free is followed."""

    def __init__(self, volumes: Sequence[PersistentVolume]) -> None:
        self.volumes = list(volumes)
        self.position_of = {volume.name: place for place, volume in enumerate(self.volumes)}
        self._free = [True] * len(self.volumes)
        self._by_label: dict[str, _LabelValueIndex] = {}
        self._by_terms: dict[NodeSelectorTerms | None, list[int]] = {}
        for place, volume in enumerate(self.volumes):
            label = _single_label(volume.node_affinity_terms)
            if label is None:
                self._by_terms.setdefault(volume.node_affinity_terms, []).append(place)
                continue
            by_value = self._by_label.setdefault(label[0], _LabelValueIndex())
            for value in label[1]:
                by_value.positions.setdefault(value, []).append(place)

    def set_free(self, place: int, *, free: bool) -> None:
        """The volume was taken, or is free again."""
        if self._free[place] == free:
            return
        self._free[place] = free
        label = _single_label(self.volumes[place].node_affinity_terms)
        if label is not None:
            by_value = self._by_label[label[0]]
            for value in label[1]:
                self._update_tables(by_value, value, by_value.tables)

    def best(self, rows: NodeLabelRows, taken: Sequence[Numbers], absent: Collection[int]) -> Numbers:
        """The place of the best volume that each node can reach and that is not `taken` there (places too), or NONE.
        `absent` are given to others on this overlay."""
        best = np.full(rows.count, _NO_CANDIDATE)
        for offered in self._candidates(rows, len(taken) + 1 + len(absent)):
            left = offered
            for one in taken:
                left = np.where(left == one, _NO_CANDIDATE, left)
            for place in absent:
                left = np.where(left == place, _NO_CANDIDATE, left)
            np.minimum(best, left, out=best)
        return np.where(best == _NO_CANDIDATE, NO_FREE_VOLUME, best)

    def best_for_labels(
        self, labels: Mapping[str, str], excluded: Collection[str]
    ) -> PersistentVolume | None:
        """The best that a node with these labels can reach and whose name is not `excluded`."""
        lists: list[Iterable[int]] = []
        for key, by_value in self._by_label.items():
            value = labels.get(key)
            if value is not None:
                lists.append(by_value.positions.get(value, ()))
        lists += [places for terms, places in self._by_terms.items() if volume_fits_labels(terms, labels)]
        firsts = (
            next((one for one in places if self._free[one] and self.volumes[one].name not in excluded), None)
            for places in lists
        )
        best = min((one for one in firsts if one is not None), default=None)
        return None if best is None else self.volumes[best]

    def _candidates(self, rows: NodeLabelRows, depth: int) -> Iterator[Numbers]:
        """Of each kind of affinity the best few of each node."""
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
        for terms, places in self._by_terms.items():
            fits = rows.matching_rows(terms)
            for turn in range(min(depth, len(places)) if fits.any() else 0):
                place = self._nth_free(places, turn)
                if place == _NO_CANDIDATE:
                    break
                yield np.where(fits, place, _NO_CANDIDATE)

    def _update_tables(self, by_value: _LabelValueIndex, value: str, tables: Iterable[_CodeTable]) -> None:
        code = by_value.code_of.get(value)
        if code is not None:
            for table in tables:
                table.put(code, self._nth_free(by_value.positions[value], table.rank))

    def _nth_free(self, places: Sequence[int], turn: int) -> int:
        """The place of the so-manieth of these that is free."""
        for place in places:
            if self._free[place]:
                if not turn:
                    return place
                turn -= 1
        return _NO_CANDIDATE


class FreeVolumeIndexCache:
    """One arrangement for each kind of claim that was asked about lately, brought up to date when it is asked for."""

    def __init__(self, volumes: VolumeCache) -> None:
        self._volumes = volumes
        self._indexes: OrderedDict[_ClaimRequirements, tuple[FreeVolumeIndex, int, int]] = OrderedDict()

    def index_for(self, claim: PersistentVolumeClaim, coding: int) -> FreeVolumeIndex:
        """With everything that is promised on the real cluster. `coding`: codes of labels are good as long as it is."""
        wanted = _ClaimRequirements(
            claim.class_name,
            claim.request_bytes,
            claim.access_modes,
            claim.is_block,
            claim.attributes_class,
            claim.selector,
        )
        log = self._volumes.volume_changes
        kept = self._indexes.get(wanted)
        if kept is not None:
            self._indexes.move_to_end(wanted)
            found, position, coded = kept
            changes = log.since(position) if coded == coding else None
            if changes is not None and self._apply_changes(found, claim, changes):
                self._indexes[wanted] = found, log.version, coding
                return found
        stock = AvailableVolumes(self._volumes)
        suiting = [one for one in stock.free_volumes(claim.class_name) if _is_candidate(one, claim)]
        found = FreeVolumeIndex(suiting)
        self._indexes[wanted] = found, log.version, coding
        if len(self._indexes) > _CACHED_INDEXES_MAX:
            self._indexes.popitem(last=False)
        return found

    def _apply_changes(
        self, known: FreeVolumeIndex, claim: PersistentVolumeClaim, changes: Iterable[str]
    ) -> bool:
        """Take the changes over. False: a volume came that has no place in the arrangement."""
        stock = AvailableVolumes(self._volumes)
        for name in dict.fromkeys(changes):
            volume, place = stock.volume(name), known.position_of.get(name)
            free = (
                volume is not None
                and volume.class_name == claim.class_name
                and volume.claim_ref is None
                and not stock.is_reserved(name)
                and _is_candidate(volume, claim)
            )
            if free and (place is None or not _has_same_position(known.volumes[place], volume)):
                return False
            if place is not None:
                if free:
                    assert volume is not None, f"{name} is free and not there"
                    known.volumes[place] = volume
                known.set_free(place, free=free)
        return True


def _is_candidate(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    return matches_claim_spec(volume, claim) and is_available(volume, claim)


def _has_same_position(one: PersistentVolume, other: PersistentVolume | None) -> bool:
    return other is not None and (one.capacity_bytes, one.node_affinity_terms) == (
        other.capacity_bytes,
        other.node_affinity_terms,
    )


def _single_label(required: NodeSelectorTerms | None) -> tuple[str, tuple[str, ...]] | None:
    if required is None or len(required) != 1 or len(required[0].expressions) != 1:
        return None
    one = required[0].expressions[0]
    return (one.key, tuple(dict.fromkeys(one.values))) if one.operator == "In" else None
