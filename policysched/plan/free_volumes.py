"""Free volumes that would do for a claim, so arranged that each node's smallest is found without a loop over nodes.

Most volumes that are made by hand are of one node: their affinity is one label with its values. Those are looked up by
the node's value of that label; the others are few kinds of terms, asked as masks.
"""

from collections.abc import Sequence

import numpy as np

from policysched.cluster.storage import PersistentVolume, Terms
from policysched.plan.column_kinds import Text
from policysched.plan.columns import Array
from policysched.plan.view import View
from policysched.plan.volume_terms import terms_fit

NONE = -1
"""Where a node has no volume."""
_BEHIND_ALL = np.iinfo(np.int64).max


class FreeVolumes:
    """`volumes` with the best first. `most`: how many claims of one pod may want one."""

    def __init__(self, volumes: Sequence[PersistentVolume], most: int) -> None:
        self.volumes = volumes
        self._by_label: dict[str, dict[str, list[int]]] = {}
        self._by_terms: dict[Terms | None, list[int]] = {}
        for place, volume in enumerate(volumes):
            label = _one_label(volume.required)
            if label is None:
                _add(self._by_terms.setdefault(volume.required, []), place, most)
                continue
            key, values = label
            table = self._by_label.setdefault(key, {})
            for value in values:
                _add(table.setdefault(value, []), place, most)

    def best(self, view: View, taken: Sequence[Array]) -> Array:
        """int64[view.count]: the place of the best volume that the node can reach and that is not `taken` there (places too),
        or NONE."""
        best = np.full(view.count, _BEHIND_ALL)
        for offered in self._offers(view, len(taken) + 1):
            free = offered != NONE
            for one in taken:
                free &= offered != one
            np.minimum(best, np.where(free, offered, _BEHIND_ALL), out=best)
        return np.where(best == _BEHIND_ALL, NONE, best)

    def _offers(self, view: View, depth: int) -> Sequence[Array]:
        """Of each kind of affinity the best few of each node."""
        found: list[Array] = []
        for key, table in self._by_label.items():
            codes = view.column(Text("labels", key)).tolist()
            texts = view.codes.strings.values
            lists = [table.get(texts[code], ()) if 0 <= code < len(texts) else () for code in codes]
            found += [
                np.array([one[turn] if turn < len(one) else NONE for one in lists], np.int64)
                for turn in range(depth)
            ]
        for terms, places in self._by_terms.items():
            fits = terms_fit(terms, view)
            found += [np.where(fits, place, NONE) for place in places[:depth]]
        return found


def _one_label(required: Terms | None) -> tuple[str, tuple[str, ...]] | None:
    if required is None or len(required) != 1 or len(required[0].expressions) != 1:
        return None
    one = required[0].expressions[0]
    return (one.key, tuple(dict.fromkeys(one.values))) if one.operator == "In" else None


def _add(places: list[int], place: int, most: int) -> None:
    if len(places) < most:
        places.append(place)
