"""Lists laid out flat: what is new is appended once, what is the same is not laid out again, and answers are those of each list alone."""

import numpy as np
import pytest

from policysched.evaluate.columns import flat_lists
from policysched.evaluate.columns.flat_lists import FlatLists, GatheredLists
from policysched.evaluate.columns.interner import Interner
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
    """Rows with lists, as columns have them."""

    def __init__(self) -> None:
        self.strings = Interner[str]()
        self.lists = Interner[tuple[Type | str, object]]()
        self.flat = FlatLists(CARD, self.lists.values, self.strings)

    def laid(self, *rows: tuple[object, ...] | None) -> GatheredLists:
        codes = [0 if row is None else self.lists.code((CARDS, row)) for row in rows]
        return self.flat.gather(
            "cards", np.array(codes, np.int32), np.array([row is not None for row in rows])
        )

    def words(self, laid: GatheredLists) -> list[tuple[int, str | None, int | None]]:
        health, clock = laid.field(0), laid.field(1)
        return [
            (
                int(owner),
                self.strings.values[health[0][at]] if health[1][at] else None,
                int(clock[0][at]) if clock[1][at] else None,
            )
            for at, owner in enumerate(laid.owners)
        ]


def test_elements_stand_in_the_order_of_the_rows_and_of_their_lists() -> None:
    column = Column()
    one, two = (("good", 1), ("bad", None)), ((None, 3),)

    laid = column.laid(two, None, one, (), two)

    assert column.words(laid) == [(0, None, 3), (2, "good", 1), (2, "bad", None), (4, None, 3)]
    assert laid.nonempty.tolist() == [0, 2, 4]
    assert laid.starts.tolist() == [0, 1, 3]


def test_a_list_that_is_new_is_appended_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    column, appended = Column(), list[object]()
    append = FlatLists._append

    def noted(self: FlatLists, listed: tuple[tuple[object, ...], ...]) -> None:
        appended.append(listed)
        append(self, listed)  # type: ignore[arg-type]

    monkeypatch.setattr(FlatLists, "_append", noted)
    rows = [(("good", number),) for number in range(200)]

    column.laid(*rows)
    column.laid(*rows[1:], (("new", 0),), rows[5])

    assert appended == [*rows, (("new", 0),)]


def test_a_column_with_the_same_lists_is_not_laid_out_again_and_a_changed_one_is() -> None:
    column = Column()
    rows = [(("good", number),) for number in range(flat_lists._CACHED_ROWS_MIN)]

    first, again = column.laid(*rows), column.laid(*rows)
    changed = column.laid(*rows[:-1], (("bad", 7),))

    assert again is first
    assert column.words(changed)[-1] == (len(rows) - 1, "bad", 7)
    assert column.words(first)[-1] == (len(rows) - 1, "good", len(rows) - 1)


def test_whole_numbers_are_added_exactly_and_held_at_the_ends_whatever_stands_before_them() -> None:
    column, most = Column(), 2**63 - 1
    laid = column.laid(
        (("a", most), ("b", most)), (("a", -most), ("b", -most), ("c", -most)), (("a", 3), ("b", 4))
    )

    sums = elements._sum_by_row(laid, laid.field(1)[0], None, 3, floating=False)

    assert sums.tolist() == [most, -most - 1, 7]


def test_planted_sums_that_wrap_around_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elements, "_EXACT_MAX", np.inf)

    with pytest.raises(AssertionError):
        test_whole_numbers_are_added_exactly_and_held_at_the_ends_whatever_stands_before_them()


def test_where_no_list_has_been_seen_yet_no_row_has_elements() -> None:
    flat = FlatLists(CARD, [], Interner())

    found = flat.gather("cards", np.array([-2, -1]), np.array([False, False]))

    assert (found.owners.tolist(), found.nonempty.tolist()) == ([], [])


def test_codes_that_are_nobodys_or_of_lists_of_another_type_have_no_elements() -> None:
    column = Column()
    other = RecordType("disk", (RecordTypeField("size", INT, "size", None, None),))
    column.lists.code((list_of(other), ((7,),)))
    card = column.lists.code((CARDS, (("a", 1),)))

    found = column.flat.gather("cards", np.array([0, card, 9]), np.array([True, True, True]))

    assert found.owners.tolist() == [1]
    assert found.field(1)[0].tolist() == [1]
