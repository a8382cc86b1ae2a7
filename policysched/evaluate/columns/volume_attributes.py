"""What a claim is compared with instead of with each volume of an index: one volume of each kind, and volumes by their labels."""

from collections.abc import Callable, Sequence
from copy import copy

import numpy as np

from policysched.evaluate.columns.volume_positions import Mask
from policysched.model.selectors import SelectorByKey
from policysched.model.storage import PersistentVolume


class VolumeKinds:
    """A claim without a selector matches all volumes of a kind, whatever their sizes and affinities. It is compared with one of
    each kind, because tenants can ask for any number of attributes classes."""

    def __init__(self, count: int) -> None:
        self._examples: list[PersistentVolume] = []
        self._code_of: dict[tuple[object, ...], int] = {}
        self._codes = np.zeros(count, np.int64)  # by position

    def put(self, position: int, volume: PersistentVolume) -> None:
        self._codes[position] = self._code(volume)

    def with_volume(self, at: int, volume: PersistentVolume) -> "VolumeKinds":
        """The positions from `at` on are one higher, and `at` is that of a new volume."""
        kinds = copy(self)
        kinds._codes = np.insert(self._codes, at, self._code(volume))
        return kinds

    def matching(self, matches: Callable[[PersistentVolume], bool]) -> Mask:
        return np.array([matches(volume) for volume in self._examples], np.bool_)[self._codes]

    def _code(self, volume: PersistentVolume) -> int:
        kind = volume.is_block, volume.attributes_class, volume.deleting, volume.phase, volume.access_modes
        code = self._code_of.setdefault(kind, len(self._examples))
        if code == len(self._examples):
            self._examples.append(volume)
        return code


class VolumeLabels:
    """The positions of volumes by their labels. The time of a selector grows with its requirements and values."""

    def __init__(self, volumes: Sequence[PersistentVolume]) -> None:
        self._count = len(volumes)
        by_key: dict[str, list[int]] = {}
        by_value: dict[tuple[str, str], list[int]] = {}
        for position, volume in enumerate(volumes):
            for key, value in volume.labels.items():
                by_key.setdefault(key, []).append(position)
                by_value.setdefault((key, value), []).append(position)
        self._by_key = {key: np.array(positions) for key, positions in by_key.items()}
        self._by_value = {label: np.array(positions) for label, positions in by_value.items()}

    def selected(self, selector: SelectorByKey) -> Mask:
        selected = np.ones(self._count, np.bool_)
        for key in selector.present:
            allowed = selector.allowed.get(key)
            labels = () if allowed is None else [(key, value) for value in allowed]
            having = [self._by_key.get(key)] if allowed is None else map(self._by_value.get, labels)
            kept = np.zeros(self._count, np.bool_)
            for positions in having:
                if positions is not None:
                    kept[positions] = True
            selected &= kept
        forbidden = ((key, value) for key, values in selector.forbidden.items() for value in values)
        for positions in (*map(self._by_key.get, selector.absent), *map(self._by_value.get, forbidden)):
            if positions is not None:
                selected[positions] = False
        return selected
