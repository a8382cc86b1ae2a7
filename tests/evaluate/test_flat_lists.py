"""Flat lists: a new list is appended once, equal columns are gathered once, and sums are those of each list alone."""

import numpy as np
import pytest

from policysched.evaluate.columns import packed_lists
from policysched.evaluate.columns.interner import Interner
from policysched.evaluate.columns.packed_lists import GatheredElements, PackedLists
from policysched.evaluate.vector import elements
from policysched.lang.types.kinds import INT, STRING, RecordType, RecordTypeField, Type, TypeKind

CARD = RecordType(
    "card",
    (
        RecordTypeField("health", STRING, "health", None, None),
        RecordTypeField("clock", INT, "clock", None, None),
    ),
)


def list_of(record: RecordType) -> Type:
    return Type(TypeKind.LIST, element=Type(TypeKind.RECORD, record=record))


CARDS = list_of(CARD)


class Column:
    """A column of interned lists."""

    def __init__(self) -> None:
        self.strings = Interner[str]()
        self.lists = Interner[tuple[Type | str, object]]()
        self.flat = PackedLists(CARD, self.lists.values, self.strings)

    def gather(self, *rows: tuple[object, ...] | None) -> GatheredElements:
        codes = [0 if row is None else self.lists.code((CARDS, row)) for row in rows]
        return self.flat.gather(
            "cards", np.array(codes, np.int32), np.array([row is not None for row in rows])
        )

    def elements(self, gathered: GatheredElements) -> list[tuple[int, str | None, int | None]]:
        health, clock = gathered.field(0), gathered.field(1)
        return [
            (
                int(owner),
                self.strings.values[health[0][at]] if health[1][at] else None,
                int(clock[0][at]) if clock[1][at] else None,
            )
            for at, owner in enumerate(gathered.owners)
        ]


def test_elements_are_in_the_order_of_the_rows_and_of_their_lists() -> None:
    column = Column()
    first, second = (("good", 1), ("bad", None)), ((None, 3),)

    gathered = column.gather(second, None, first, (), second)

    assert column.elements(gathered) == [(0, None, 3), (2, "good", 1), (2, "bad", None), (4, None, 3)]
    assert gathered.nonempty.tolist() == [0, 2, 4]
    assert gathered.starts.tolist() == [0, 1, 3]


def test_only_new_lists_are_appended(monkeypatch: pytest.MonkeyPatch) -> None:
    column, appended = Column(), list[object]()
    append = PackedLists._append

    def recording(self: PackedLists, records: tuple[tuple[object, ...], ...]) -> None:
        appended.append(records)
        append(self, records)  # type: ignore[arg-type]

    monkeypatch.setattr(PackedLists, "_append", recording)
    rows = [(("good", number),) for number in range(200)]

    column.gather(*rows)
    column.gather(*rows[1:], (("new", 0),), rows[5])

    assert appended == [*rows, (("new", 0),)]


def test_a_column_is_gathered_again_only_when_its_lists_change() -> None:
    column = Column()
    rows = [(("good", number),) for number in range(packed_lists._CACHED_ROWS_MIN)]

    first, again = column.gather(*rows), column.gather(*rows)
    changed = column.gather(*rows[:-1], (("bad", 7),))

    assert again is first
    assert column.elements(changed)[-1] == (len(rows) - 1, "bad", 7)
    assert column.elements(first)[-1] == (len(rows) - 1, "good", len(rows) - 1)


def test_integer_sums_are_exact_and_saturate_whatever_lists_come_before() -> None:
    column, most = Column(), 2**63 - 1
    gathered = column.gather(
        (("a", most), ("b", most)), (("a", -most), ("b", -most), ("c", -most)), (("a", 3), ("b", 4))
    )

    sums = elements._sum_by_row(gathered, gathered.field(1)[0], None, 3, floating=False)

    assert sums.tolist() == [most, -most - 1, 7]


def test_a_planted_wrapping_sum_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elements, "_EXACT_MAX", np.inf)

    with pytest.raises(AssertionError):
        test_integer_sums_are_exact_and_saturate_whatever_lists_come_before()


def test_no_row_has_elements_before_the_first_list() -> None:
    flat = PackedLists(CARD, [], Interner())

    gathered = flat.gather("cards", np.array([-2, -1]), np.array([False, False]))

    assert (gathered.owners.tolist(), gathered.nonempty.tolist()) == ([], [])


def test_unknown_codes_and_lists_of_another_type_have_no_elements() -> None:
    column = Column()
    other = RecordType("disk", (RecordTypeField("size", INT, "size", None, None),))
    column.lists.code((list_of(other), ((7,),)))
    card = column.lists.code((CARDS, (("a", 1),)))

    gathered = column.flat.gather("cards", np.array([0, card, 9]), np.array([True, True, True]))

    assert gathered.owners.tolist() == [1]
    assert gathered.field(1)[0].tolist() == [1]
