"""`FreeVolumeIndex`: the best free volume of each node for a claim, without a loop over nodes.

An index has the volumes of a class, smallest first; which of them a claim matches is a mask. Most
statically provisioned volumes belong to one node: their affinity is one label with its values, or
selects few nodes. Pairs of such a value or node and a volume are one sorted array, so that the best
volume of each node is one binary search. Other affinities are few, and are evaluated as masks.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from policysched.cluster.volumes.availability import AvailableVolumes
from policysched.cluster.volumes.binder import is_available, matches_claim_spec
from policysched.cluster.volumes.volume_cache import VolumeCache, by_size
from policysched.evaluate.columns.interner import Interner
from policysched.evaluate.columns.volume_attributes import VolumeKinds, VolumeLabels
from policysched.evaluate.columns.volume_positions import (
    NO_CANDIDATE,
    LabelValueIndex,
    Mask,
    Numbers,
    Pairs,
    lists_moved_up,
    moved_up,
)
from policysched.model.selectors import LabelSelector, SelectorByKey, volume_fits_labels
from policysched.model.storage import NodeSelectorTerms, PersistentVolume, PersistentVolumeClaim

NO_FREE_VOLUME = -1
"""No free volume matches on the node."""
_CACHED_MATCHES_MAX = 64
_FEW_ROWS_MAX = 16
_INSERTED_MAX = 8
"""Of new volumes at once: each takes a tenth of the time in which the index is built."""
_VOLUMES_PER_STEP = 1_000
"""To index so many takes 3 ms."""
_KEPT_MIN = 64
"""An index is built again when it has more volumes than these and twice those that are free: the rest are gone."""


class NodeLabelRows(Protocol):
    """The nodes of a lookup."""

    @property
    def rows(self) -> Numbers:
        """Their rows."""
        ...

    @property
    def strings(self) -> Interner[str]: ...

    @property
    def topology_version(self) -> int:
        """Changes with the labels of any node."""
        ...

    def label_codes(self, label: str) -> NDArray[np.int32]:
        """The code of each node's value."""
        ...

    def matching_rows(self, terms: NodeSelectorTerms | None) -> Mask:
        """Of all rows, those that a volume's node affinity selects."""
        ...


@dataclass(frozen=True, slots=True)
class _ClaimRequirements:
    """The fields of a claim, besides its size, that decide which free volumes match."""

    access_modes: frozenset[str]
    block: bool
    attributes_class: str
    selector: LabelSelector | None


@dataclass(slots=True)
class _Matches:
    """The volumes of an index that claims with equal requirements match, whether or not they are free."""

    claim: PersistentVolumeClaim
    selector: SelectorByKey | None
    mask: Mask = field(init=False)

    def with_volume(self, at: int, volume: PersistentVolume) -> "_Matches":
        matches = _Matches(self.claim, self.selector)
        matches.mask = np.insert(self.mask, at, self.matches(volume))
        return matches

    def matches(self, volume: PersistentVolume) -> bool:
        return matches_claim_spec(volume, self.claim) and is_available(volume, self.claim, self.selector)


class FreeVolumeIndex:
    """`volumes` of a class without a claim when the index was built, smallest first; `set_free` tracks which are free. Each is
    to be `add`ed before the first query."""

    def __init__(self, volumes: Sequence[PersistentVolume]) -> None:
        self.volumes = list(volumes)
        self.position_of = {volume.name: position for position, volume in enumerate(self.volumes)}
        self.capacities = np.array([volume.capacity_bytes for volume in self.volumes], np.int64)
        self.free = np.ones(len(self.volumes), np.bool_)
        self._by_label: dict[str, LabelValueIndex] = {}
        self._by_terms: dict[NodeSelectorTerms | None, list[int]] = {}
        # Other affinities, by the labels of nodes at `_terms_version`: pairs for those of few rows, masks for the rest.
        self._terms_version: int | None = None
        self._few_rows = Pairs((), (), 1)
        self._many_rows: list[tuple[Mask, Numbers]] = []
        self._matches: OrderedDict[_ClaimRequirements, _Matches] = OrderedDict()
        self._kinds = VolumeKinds(len(self.volumes))
        self._labels: VolumeLabels | None = None

    def add(self, position: int, *, free: bool) -> None:
        """In the order of the positions."""
        volume = self.volumes[position]
        self._kinds.put(position, volume)
        self.free[position] = free
        label = _single_label(volume.node_affinity_terms)
        if label is None:
            self._by_terms.setdefault(volume.node_affinity_terms, []).append(position)
        else:
            self._by_label.setdefault(label[0], LabelValueIndex()).add(label[1], position)

    def set_free(self, position: int, *, free: bool) -> None:
        """Mark the volume as taken or free."""
        self.free[position] = free

    def put(self, position: int, volume: PersistentVolume) -> None:
        """Replace the volume by another version with the same size and affinity."""
        if volume.labels != self.volumes[position].labels:
            self._labels = None
        self.volumes[position] = volume
        self._kinds.put(position, volume)
        for matches in self._matches.values():
            matches.mask[position] = matches.matches(volume)

    def with_volume(self, volume: PersistentVolume) -> "FreeVolumeIndex":
        """A copy with one more volume, which is free: 3 ms for 10,000. Positions in this one stay as they are."""
        at = bisect_left(self.volumes, by_size(volume), key=by_size)
        label, values = _single_label(volume.node_affinity_terms) or (None, ())
        index = copy(self)
        index.volumes = [*self.volumes[:at], volume, *self.volumes[at:]]
        index.position_of = {each.name: position for position, each in enumerate(index.volumes)}
        index.capacities = np.insert(self.capacities, at, volume.capacity_bytes)
        index.free = np.insert(self.free, at, True)
        index._kinds = self._kinds.with_volume(at, volume)
        index._by_label = {
            key: by_value.moved_up(at, values if key == label else ())
            for key, by_value in self._by_label.items()
        }
        if label is not None and label not in index._by_label:
            index._by_label[label] = LabelValueIndex()
            index._by_label[label].add(values, at)
        index._by_terms = lists_moved_up(self._by_terms, at)
        index._few_rows = self._few_rows.moved_up(at)
        index._many_rows = [(fits, moved_up(positions, at)) for fits, positions in self._many_rows]
        if label is None:
            insort(index._by_terms.setdefault(volume.node_affinity_terms, []), at)
            index._terms_version = None
        index._matches = OrderedDict(
            (requirements, matches.with_volume(at, volume)) for requirements, matches in self._matches.items()
        )
        index._labels = None
        return index

    def forget_matches(self) -> None:
        """Compare the volumes with claims again."""
        self._matches.clear()

    def matching(self, claim: PersistentVolumeClaim) -> Mask:
        """The volumes that the claim matches apart from its size, whether or not they are free. Read-only."""
        requirements = _ClaimRequirements(
            claim.access_modes, claim.is_block, claim.attributes_class, claim.selector
        )
        matches = self._matches.get(requirements)
        if matches is None:
            matches = self._matches[requirements] = self._compare(claim)
            if len(self._matches) > _CACHED_MATCHES_MAX:
                self._matches.popitem(last=False)
        self._matches.move_to_end(requirements)
        return matches.mask

    def _compare(self, claim: PersistentVolumeClaim) -> _Matches:
        selector = None if claim.selector is None else SelectorByKey(claim.selector)
        matches = _Matches(replace(claim, request_bytes=None), selector)
        if selector is None:
            matches.mask = self._kinds.matching(matches.matches)
        else:
            self.read_labels()
            assert self._labels is not None
            matches.mask = self.matching(replace(claim, selector=None)) & self._labels.selected(selector)
        return matches

    def read_labels(self) -> bool:
        """For selectors, in one piece: 8 ms for 10,000 volumes. Returns whether they were to be read."""
        if self._labels is not None:
            return False
        self._labels = VolumeLabels(self.volumes)
        return True

    def candidates(self, rows: NodeLabelRows, usable: Mask) -> Iterator["_Candidates"]:
        """The usable volumes of each affinity."""
        stride = len(self.volumes) + 1
        for key, by_value in self._by_label.items():
            codes = rows.label_codes(key).astype(np.int64)
            pairs = by_value.pairs(rows.strings, stride)
            yield _CandidatesByCode(pairs, pairs.among(usable), codes)
        if self._terms_version != rows.topology_version:
            self._match_terms(rows, stride)
        yield _CandidatesByCode(self._few_rows, self._few_rows.among(usable), rows.rows)
        for fits, positions in self._many_rows:
            yield _CandidatesByMask(fits[rows.rows], positions[usable[positions]])

    def _match_terms(self, rows: NodeLabelRows, stride: int) -> None:
        self._terms_version = rows.topology_version
        few: list[tuple[int, int]] = []
        self._many_rows = []
        for terms, positions in self._by_terms.items():
            fits = rows.matching_rows(terms)
            matching = np.flatnonzero(fits).tolist()
            if len(matching) > _FEW_ROWS_MAX:
                self._many_rows.append((fits, np.array(positions, np.int64)))
            else:
                few += [(row, position) for row in matching for position in positions]
        self._few_rows = Pairs([row for row, _ in few], [position for _, position in few], stride)

    def reachable(self, labels: Mapping[str, str]) -> Numbers:
        """The positions of the volumes that a node with these labels can reach."""
        positions: list[int] = []
        for key, by_value in self._by_label.items():
            value = labels.get(key)
            if value is not None:
                positions += by_value.positions.get(value, ())
        for terms, of_terms in self._by_terms.items():
            if volume_fits_labels(terms, labels):
                positions += of_terms
        return np.array(sorted(positions), np.int64)


@dataclass(frozen=True, slots=True)
class _CandidatesByCode:
    pairs: Pairs
    usable: Numbers
    codes: Numbers

    def first(self, least: Numbers, rows: Numbers) -> Numbers:
        """The first position of each of these rows from `least` on."""
        return self.pairs.first(self.usable, self.codes[rows], least)


@dataclass(frozen=True, slots=True)
class _CandidatesByMask:
    fits: Mask
    positions: Numbers

    def first(self, least: Numbers, rows: Numbers) -> Numbers:
        padded = np.append(self.positions, NO_CANDIDATE)
        result: Numbers = np.where(
            self.fits[rows], padded[np.searchsorted(self.positions, least)], NO_CANDIDATE
        )
        return result


_Candidates = _CandidatesByCode | _CandidatesByMask


@dataclass(frozen=True, slots=True)
class MatchingVolumes:
    """The volumes of an index that a claim matches: those `usable` from the position `least` on."""

    index: FreeVolumeIndex
    usable: Mask
    least: int

    def best(
        self, rows: NodeLabelRows, taken: Sequence[tuple["MatchingVolumes", Numbers]], looking: Mask
    ) -> Numbers:
        """int64 by row: the position of the best volume that the node can reach, or NO_FREE_VOLUME. Leaves out the
        volumes that smaller claims of the pod have `taken`, by row, and the rows where `looking` is false."""
        best = np.full(len(rows.rows), NO_FREE_VOLUME)
        left = np.flatnonzero(looking)
        least = np.full(len(left), self.least, np.int64)
        same_class = [(other, positions) for other, positions in taken if other.index is self.index]
        for other, positions in same_class[-1:]:
            if not np.any(self.usable & ~other.usable):  # all before the one that it took are taken
                least = np.maximum(least, positions[left] + 1)
        candidates = list(self.index.candidates(rows, self.usable))
        of_others = np.array([positions[left] for _, positions in same_class]).reshape(
            len(same_class), len(left)
        )
        while len(left):
            found = np.full(len(left), NO_CANDIDATE)
            for each in candidates:
                np.minimum(found, each.first(least, left), out=found)
            best[left] = np.where(found == NO_CANDIDATE, NO_FREE_VOLUME, found)
            is_taken = (of_others == found).any(axis=0)
            if not is_taken.all():
                left, of_others = left[is_taken], of_others[:, is_taken]
            least = found[is_taken] + 1
        return best

    def best_of(self, reachable: Numbers, excluded: Collection[str]) -> PersistentVolume | None:
        """The best volume among these positions whose name is not `excluded`."""
        candidates = reachable[self.usable[reachable] & (reachable >= self.least)]
        volumes = (self.index.volumes[position] for position in candidates)
        return next((volume for volume in volumes if volume.name not in excluded), None)


class FreeVolumeIndexCache:
    """An index for each class, updated on use."""

    def __init__(self, volumes: VolumeCache) -> None:
        self._volumes = volumes
        self._indexes: dict[str, tuple[FreeVolumeIndex, int, int]] = {}
        self._building: dict[str, Iterator[None]] = {}

    def volumes_for(
        self, claim: PersistentVolumeClaim, codes_version: int, reserved: Collection[object]
    ) -> MatchingVolumes:
        """The volumes for the claim, without those reserved on the real cluster or named in `reserved`."""
        index = self._index_for(claim.class_name, codes_version)
        usable = index.free & index.matching(claim)
        for name in reserved:
            position = index.position_of.get(name) if isinstance(name, str) else None
            if position is not None:
                usable[position] = False
        return MatchingVolumes(
            index, usable, int(np.searchsorted(index.capacities, claim.request_bytes or 0))
        )

    def build_slice(self, claims: Iterable[PersistentVolumeClaim], codes_version: int) -> bool:
        """Build a part of what `volumes_for` the claims would build in one piece, where that takes long. Returns whether something
        may be left. What changes while the last part is built is left to `volumes_for`, so that this ends."""
        selects = dict[str, bool]()
        for claim in claims:
            selects[claim.class_name] = selects.get(claim.class_name, False) or claim.selector is not None
        for class_name, has_selectors in selects.items():
            if len(self._volumes.unclaimed_volumes(class_name)) <= _VOLUMES_PER_STEP:
                continue
            index = None if class_name in self._building else self._current_index(class_name, codes_version)
            if index is not None:
                if has_selectors and index.read_labels():
                    return True
                continue
            if class_name not in self._building:
                self._building[class_name] = self._build(
                    class_name, codes_version, has_selectors=has_selectors
                )
            steps = self._building[class_name]
            if next(steps, self) is not self:
                return True
            del self._building[class_name]
        return False

    def _index_for(self, class_name: str, codes_version: int) -> FreeVolumeIndex:
        index = self._current_index(class_name, codes_version)
        if index is not None:
            return index
        for _ in self._build(class_name, codes_version):
            pass
        return self._indexes[class_name][0] if class_name in self._indexes else FreeVolumeIndex(())

    def _current_index(self, class_name: str, codes_version: int) -> FreeVolumeIndex | None:
        """None: it is to be built, as there is none, or `codes_version` invalidates the codes of labels."""
        if class_name not in self._indexes:
            return None
        log = self._volumes.volume_changes
        index, position, index_codes_version = self._indexes[class_name]
        changes = log.since(position) if index_codes_version == codes_version else None
        changed = None if changes is None else self._changed(index, class_name, changes)
        if changed is not None:
            self._indexes[class_name] = changed, log.version, codes_version
        return changed

    def _build(self, class_name: str, codes_version: int, *, has_selectors: bool = False) -> Iterator[None]:
        """The index of the volumes of now, which takes over at the end. It follows later changes as any other."""
        available, version = AvailableVolumes(self._volumes), self._volumes.volume_changes.version
        index = FreeVolumeIndex(self._volumes.unclaimed_volumes(class_name))
        self._indexes.pop(class_name, None)
        for position, volume in enumerate(index.volumes):
            if position % _VOLUMES_PER_STEP == 0:
                yield
            index.add(position, free=not available.is_reserved(volume.name))
        if has_selectors:
            yield
            index.read_labels()
            yield
        if index.volumes:  # a tenant can name any class
            self._indexes[class_name] = index, version, codes_version

    def _changed(
        self, index: FreeVolumeIndex, class_name: str, changes: Sequence[str]
    ) -> FreeVolumeIndex | None:
        """The updated index. None: to build it again takes less time, or less memory."""
        available, inserted = AvailableVolumes(self._volumes), 0
        kept_max = _KEPT_MIN + 2 * len(self._volumes.unclaimed_volumes(class_name))
        if len(changes) > len(index.volumes) // _CACHED_MATCHES_MAX:
            index.forget_matches()  # all at once is faster
        for name in changes:
            volume, position = available.volume(name), index.position_of.get(name)
            if volume is None or volume.class_name != class_name or volume.claim_ref is not None:
                if position is not None:
                    index.set_free(position, free=False)
                continue
            if position is None:
                inserted += 1
                if inserted > _INSERTED_MAX or len(index.volumes) >= kept_max:
                    return None
                index = index.with_volume(volume)
                position = index.position_of[name]
            elif not _has_same_position(index.volumes[position], volume):
                return None
            elif volume is not index.volumes[position]:
                index.put(position, volume)
            index.set_free(position, free=not available.is_reserved(name))
        return index


def _has_same_position(before: PersistentVolume, after: PersistentVolume) -> bool:
    return (before.capacity_bytes, before.node_affinity_terms) == (
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
