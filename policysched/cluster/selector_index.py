"""Which of many label selectors select certain labels.

Each selector has a bit, so that all of them are compared with a label at once. Its value rules out some, and counts as found for those
that require the key to be present:

    selected = all ── ruled out by the value of a label ── required keys that were not found

A comparison takes as long as the selectors have keys in common with the labels, however many there are. Each key and value takes a
bit for each selector, so an index has limits. Selectors beyond them are left out, and then nobody is told which ones select.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from policysched.model.selectors import LabelSelector, SelectorByKey

SELECTORS_MAX, PARTS_MAX = 8_192, 32_768
"""Of an index: selectors, and their keys and values together, which take 100 MB. A tenant writes a thousand keys in 15 KB."""


@dataclass(slots=True)
class _Key:
    """What selectors require of one label key: a set of selectors is the sum of their bits."""

    present: int = 0
    absent: int = 0
    restricted: int = 0
    """Those that allow only certain values, by `allowed`."""
    allowed: dict[str, int] = field(default_factory=dict)
    forbidden: dict[str, int] = field(default_factory=dict)


class SelectorIndex:
    """Selectors by name."""

    def __init__(self) -> None:
        self._selectors: dict[str, tuple[int, LabelSelector]] = {}  # with the number of the bit
        self._left_out: dict[str, LabelSelector] = {}
        self._parts = 0
        self._names: dict[int, str] = {}
        self._free: list[int] = []
        self._all = 0
        self._keys: dict[str, _Key] = {}
        self._required: list[int] = []
        """How many keys each selector requires: the selectors whose number has this binary digit, the lowest first."""

    def __len__(self) -> int:
        return len(self._selectors) + len(self._left_out)

    def put(self, name: str, selector: LabelSelector) -> None:
        """Adds a selector, or replaces the one of its name."""
        self.remove(name)
        parts = _parts(selector)
        if self._has_room(parts):
            self._add(name, selector, parts)
        else:
            self._left_out[name] = selector

    def remove(self, name: str) -> None:
        """A name that does not exist is ignored."""
        self._left_out.pop(name, None)
        if name not in self._selectors:
            return
        number, selector = self._selectors.pop(name)
        del self._names[number]
        self._free.append(number)
        self._parts -= _parts(selector)
        self._toggle(number, SelectorByKey(selector))
        while self._left_out:
            name, selector = next(reversed(self._left_out.items()))
            parts = _parts(selector)
            if not self._has_room(parts):
                break
            del self._left_out[name]
            self._add(name, selector, parts)

    def _has_room(self, parts: int) -> bool:
        return len(self._selectors) < SELECTORS_MAX and self._parts + parts <= PARTS_MAX

    def _add(self, name: str, selector: LabelSelector, parts: int) -> None:
        number = self._free.pop() if self._free else len(self._names)
        self._names[number] = name
        self._selectors[name] = number, selector
        self._parts += parts
        self._toggle(number, SelectorByKey(selector))

    def _toggle(self, number: int, selector: SelectorByKey) -> None:
        bit = 1 << number
        self._all ^= bit
        for key in selector.present:
            self._key(key).present ^= bit
        for key in selector.absent:
            self._key(key).absent ^= bit
        for key, values in selector.allowed.items():
            self._key(key).restricted ^= bit
            _toggle_values(self._key(key).allowed, values, bit)
        for key, values in selector.forbidden.items():
            _toggle_values(self._key(key).forbidden, values, bit)
        for key in selector.all_keys():
            of = self._keys[key]
            if not (of.present or of.absent or of.forbidden):
                del self._keys[key]
        required = len(selector.present)
        self._required += [0] * (required.bit_length() - len(self._required))
        for digit in range(required.bit_length()):
            self._required[digit] ^= bit * (required >> digit & 1)

    def _key(self, key: str) -> _Key:
        return self._keys.setdefault(key, _Key())

    def selecting(self, labels: Mapping[str, str], names_max: int, keys_max: int) -> list[str] | None:
        """The selectors of these labels. None: more than `names_max`, or they require something of more than `keys_max` keys, or some
        are left out."""
        common = self._common(labels, keys_max)
        selected = 0 if common is None else self._selected(labels, common)
        if common is None or selected.bit_count() > names_max:
            return None
        names: list[str] = []
        while selected:
            number = selected.bit_length() - 1
            names.append(self._names[number])
            selected ^= 1 << number
        return names

    def required_keys(self, labels: Mapping[str, str], keys_max: int) -> list[str] | None:
        """The keys that the selectors of these labels require to be present. None: as above."""
        common = self._common(labels, keys_max)
        if common is None:
            return None
        selected = self._selected(labels, common)
        return [key for key in common if self._keys[key].present & selected]

    def _common(self, labels: Mapping[str, str], keys_max: int) -> set[str] | None:
        """The keys of the labels that selectors require something of."""
        common = labels.keys() & self._keys.keys()
        return None if self._left_out or len(common) > keys_max else common

    def _selected(self, labels: Mapping[str, str], common: Iterable[str]) -> int:
        ruled_out, found = 0, [0] * len(self._required)
        for key in common:
            of, value = self._keys[key], labels[key]
            ruled_out |= of.absent | of.forbidden.get(value, 0) | of.restricted & ~of.allowed.get(value, 0)
            carry = of.present
            for digit, before in enumerate(found):
                if not carry:
                    break
                found[digit], carry = before ^ carry, before & carry
        for digit, required in enumerate(self._required):
            ruled_out |= found[digit] ^ required
        return self._all & ~ruled_out


def _parts(selector: LabelSelector) -> int:
    return sum(max(1, len(requirement.values)) for requirement in selector.requirements)


def _toggle_values(by_value: dict[str, int], values: Iterable[str], bit: int) -> None:
    for value in values:
        if selectors := by_value.pop(value, 0) ^ bit:
            by_value[value] = bit if selectors == bit else selectors  # thousands of values share one number
