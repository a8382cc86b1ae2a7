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

from policysched.cluster.volumes.availability import Stock
from policysched.cluster.volumes.claims import is_available, suits_in_kind
from policysched.cluster.volumes.volume_cache import Volumes
from policysched.evaluate.columns.interner import UNKNOWN, Interner
from policysched.model.objects import LabelSelector
from policysched.model.selectors import volume_fits_labels
from policysched.model.storage import PersistentVolume, PersistentVolumeClaim, Terms

Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]

NONE = -1
"""Where a node has no volume."""
_BEHIND_ALL = np.iinfo(np.int64).max
_KINDS_MAX = 64


class Rows(Protocol):
    """The nodes that are asked about."""

    @property
    def count(self) -> int: ...

    @property
    def strings(self) -> Interner[str]: ...

    def codes_of(self, label: str) -> NDArray[np.int32]:
        """The code of each node's value."""
        ...

    def fits(self, terms: Terms | None) -> Mask:
        """Whose labels a volume's node affinity selects."""
        ...


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What of a claim decides which free volumes would do."""

    class_name: str
    request_bytes: int | None
    access_modes: frozenset[str]
    block: bool
    attributes_class: str
    selector: LabelSelector | None


class _Table:
    """For one label and one turn: the place of the volume whose turn it is, by the code of the label's value."""

    def __init__(self, turn: int) -> None:
        self.turn = turn
        self._places: Numbers = np.full(1, _BEHIND_ALL)

    def put(self, code: int, place: int) -> None:
        if code >= len(self._places) - 1:
            more = np.full(max(code + 2 - len(self._places), len(self._places)), _BEHIND_ALL)
            self._places = np.concatenate([self._places, more])
        self._places[code] = place

    def gather(self, codes: NDArray[np.int32]) -> Numbers:
        last = len(self._places) - 1  # stands for every code that no volume names
        found: Numbers = self._places[np.where((codes >= 0) & (codes < last), codes, last)]
        return found


class _ByValue:
    """The volumes whose affinity is one label, by its values. `turns[n]` is a table of the n-th best of each value; values that
    no node has yet have no code."""

    def __init__(self) -> None:
        self.places: dict[str, list[int]] = {}
        self.turns: list[_Table] = []
        self.code_of: dict[str, int] = {}
        self._without_code: list[str] = []
        self._strings_seen = -1

    def learn_codes(self, strings: Interner[str]) -> Sequence[str]:
        """The values that have a code since the last time."""
        if self._strings_seen == len(strings):
            return ()
        unknown = list(self.places) if self._strings_seen < 0 else self._without_code
        self._strings_seen = len(strings)
        found = {value: strings.find(value) for value in unknown}
        new = {value: code for value, code in found.items() if code != UNKNOWN}
        self.code_of |= new
        self._without_code = [value for value in unknown if value not in new]
        return list(new)


class FreeVolumes:
    """`volumes` with the best first: those that would do when this was arranged. Which of them are free is followed."""

    def __init__(self, volumes: Sequence[PersistentVolume]) -> None:
        self.volumes = list(volumes)
        self.place_of = {volume.name: place for place, volume in enumerate(self.volumes)}
        self._free = [True] * len(self.volumes)
        self._by_label: dict[str, _ByValue] = {}
        self._by_terms: dict[Terms | None, list[int]] = {}
        for place, volume in enumerate(self.volumes):
            label = _one_label(volume.required)
            if label is None:
                self._by_terms.setdefault(volume.required, []).append(place)
                continue
            by_value = self._by_label.setdefault(label[0], _ByValue())
            for value in label[1]:
                by_value.places.setdefault(value, []).append(place)

    def note(self, place: int, *, free: bool) -> None:
        """The volume was taken, or is free again."""
        if self._free[place] == free:
            return
        self._free[place] = free
        label = _one_label(self.volumes[place].required)
        if label is not None:
            by_value = self._by_label[label[0]]
            for value in label[1]:
                self._fill_in(by_value, value, by_value.turns)

    def best(self, rows: Rows, taken: Sequence[Numbers], absent: Collection[int]) -> Numbers:
        """The place of the best volume that each node can reach and that is not `taken` there (places too), or NONE.
        `absent` are given to others on this overlay."""
        best = np.full(rows.count, _BEHIND_ALL)
        for offered in self._offers(rows, len(taken) + 1 + len(absent)):
            left = offered
            for one in taken:
                left = np.where(left == one, _BEHIND_ALL, left)
            for place in absent:
                left = np.where(left == place, _BEHIND_ALL, left)
            np.minimum(best, left, out=best)
        return np.where(best == _BEHIND_ALL, NONE, best)

    def first_for(self, labels: Mapping[str, str], excluded: Collection[str]) -> PersistentVolume | None:
        """The best that a node with these labels can reach and whose name is not `excluded`."""
        lists: list[Iterable[int]] = []
        for key, by_value in self._by_label.items():
            value = labels.get(key)
            if value is not None:
                lists.append(by_value.places.get(value, ()))
        lists += [places for terms, places in self._by_terms.items() if volume_fits_labels(terms, labels)]
        firsts = (
            next((one for one in places if self._free[one] and self.volumes[one].name not in excluded), None)
            for places in lists
        )
        best = min((one for one in firsts if one is not None), default=None)
        return None if best is None else self.volumes[best]

    def _offers(self, rows: Rows, depth: int) -> Iterator[Numbers]:
        """Of each kind of affinity the best few of each node."""
        for key, by_value in self._by_label.items():
            codes = rows.codes_of(key)
            for value in by_value.learn_codes(rows.strings):
                self._fill_in(by_value, value, by_value.turns)
            deepest = max(map(len, by_value.places.values()), default=0)
            while len(by_value.turns) < min(depth, deepest):
                table = _Table(len(by_value.turns))
                by_value.turns.append(table)
                for value in by_value.code_of:
                    self._fill_in(by_value, value, (table,))
            for table in by_value.turns[:depth]:
                yield table.gather(codes)
        for terms, places in self._by_terms.items():
            fits = rows.fits(terms)
            for turn in range(min(depth, len(places)) if fits.any() else 0):
                place = self._in_turn(places, turn)
                if place == _BEHIND_ALL:
                    break
                yield np.where(fits, place, _BEHIND_ALL)

    def _fill_in(self, by_value: _ByValue, value: str, tables: Iterable[_Table]) -> None:
        code = by_value.code_of.get(value)
        if code is not None:
            for table in tables:
                table.put(code, self._in_turn(by_value.places[value], table.turn))

    def _in_turn(self, places: Sequence[int], turn: int) -> int:
        """The place of the so-manieth of these that is free."""
        for place in places:
            if self._free[place]:
                if not turn:
                    return place
                turn -= 1
        return _BEHIND_ALL


class KeptFreeVolumes:
    """One arrangement for each kind of claim that was asked about lately, brought up to date when it is asked for."""

    def __init__(self, volumes: Volumes) -> None:
        self._volumes = volumes
        self._kept: OrderedDict[_Wanted, tuple[FreeVolumes, int, int]] = OrderedDict()

    def of(self, claim: PersistentVolumeClaim, coding: int) -> FreeVolumes:
        """With everything that is promised on the real cluster. `coding`: codes of labels are good as long as it is."""
        wanted = _Wanted(
            claim.class_name,
            claim.request_bytes,
            claim.access_modes,
            claim.block,
            claim.attributes_class,
            claim.selector,
        )
        log = self._volumes.volume_changes
        kept = self._kept.get(wanted)
        if kept is not None:
            self._kept.move_to_end(wanted)
            found, position, coded = kept
            changes = log.since(position) if coded == coding else None
            if changes is not None and self._follow(found, claim, changes):
                self._kept[wanted] = found, log.end, coding
                return found
        stock = Stock(self._volumes)
        suiting = [one for one in stock.free(claim.class_name) if _would_do(one, claim)]
        found = FreeVolumes(suiting)
        self._kept[wanted] = found, log.end, coding
        if len(self._kept) > _KINDS_MAX:
            self._kept.popitem(last=False)
        return found

    def _follow(self, known: FreeVolumes, claim: PersistentVolumeClaim, changes: Iterable[str]) -> bool:
        """Take the changes over. False: a volume came that has no place in the arrangement."""
        stock = Stock(self._volumes)
        for name in dict.fromkeys(changes):
            volume, place = stock.volume(name), known.place_of.get(name)
            free = (
                volume is not None
                and volume.class_name == claim.class_name
                and volume.claim is None
                and not stock.is_promised(name)
                and _would_do(volume, claim)
            )
            if free and (place is None or not _same_place(known.volumes[place], volume)):
                return False
            if place is not None:
                if free:
                    assert volume is not None, f"{name} is free and not there"
                    known.volumes[place] = volume
                known.note(place, free=free)
        return True


def _would_do(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    return suits_in_kind(volume, claim) and is_available(volume, claim)


def _same_place(one: PersistentVolume, other: PersistentVolume | None) -> bool:
    return other is not None and (one.capacity_bytes, one.required) == (other.capacity_bytes, other.required)


def _one_label(required: Terms | None) -> tuple[str, tuple[str, ...]] | None:
    if required is None or len(required) != 1 or len(required[0].expressions) != 1:
        return None
    one = required[0].expressions[0]
    return (one.key, tuple(dict.fromkeys(one.values))) if one.operator == "In" else None
