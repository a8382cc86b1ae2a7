"""Random CEL selectors, well-typed for the most part, of the functions and macros that policysched adds to its CEL runtime."""

from collections.abc import Callable
from itertools import count

from policysched.cluster.devices.cel_formats import NAMES as FORMATS
from tests.seeded_random import SeededRandom

TEXTS = (
    "", "a", "b1", "ab-1", "A.b", "x/y", "a1b22c", "é1", "abc.def", "-a", "a-", "2020-02-30", "2020-02-29",
    "2020-02-29T10:00:00Z", "aGk=", "550e8400-e29b-41d4-a716-446655440000", "http://h/p?q=1",
)  # fmt: skip
PATTERNS = ("[0-9]+", "a|ab", "[0-9]*", "^a", "b$", "(a)(b)?", "(?i)A", r"\\d", ".", "x*", r"\\bb", "a+?")

Variables = tuple[tuple[str, str], ...]
"""Names and kinds in scope."""


def draw_selector(random: SeededRandom) -> str:
    return _Draw(random).truth(random.randint(2, 4), ())


class _Draw:
    """One method for each kind of value; `depth` is what is left for its parts."""

    def __init__(self, random: SeededRandom) -> None:
        self._random = random
        self._numbers = count(1)

    def truth(self, depth: int, scope: Variables) -> str:
        if depth <= 0:
            return self._random.choice(("true", "false"))
        inner = depth - 1
        return self._one_of(
            lambda: self._quantifier(inner, scope),
            lambda: f"{self.number(inner, scope)} {self._of('== < >=')} {self.number(inner, scope)}",
            lambda: f"{self.numbers(inner, scope)} == {self.numbers(inner, scope)}",
            lambda: f"{self.texts(inner, scope)} == {self.texts(inner, scope)}",
            lambda: f"{self.mapping(inner, scope)} == {self.mapping(inner, scope)}",
            lambda: f"({self.truth(inner, scope)} {self._of('&& ||')} {self.truth(inner, scope)})",
            lambda: f"sets.intersects({self.texts(inner, scope)}, {self.texts(inner, scope)})",
            lambda: f"{self.numbers(inner, scope)}.includes({self.number(inner, scope)})",
            lambda: f"{self.texts(inner, scope)}.isSorted()",
            lambda: f"{self._format()}.validate({self.text(inner, scope)}).hasValue()",
        )

    def number(self, depth: int, scope: Variables) -> str:
        if depth <= 0:
            return self._leaf("number", scope, str(self._random.randint(-2, 4)))
        inner = depth - 1
        find = self._of("indexOf lastIndexOf")
        return self._one_of(
            lambda: f"{self.numbers(inner, scope)}.{find}({self.number(inner, scope)})",
            lambda: f"{self.texts(inner, scope)}.{find}({self.text(inner, scope)})",
            lambda: f"{self.text(inner, scope)}.{find}({self.text(inner, scope)})",
            lambda: f"{self.numbers(inner, scope)}.{self._of('size sum max')}()",
            lambda: f"({self.number(inner, scope)} + {self.number(inner, scope)})",
            lambda: f"{self.numbers(inner, scope)}.first().orValue({self.number(0, scope)})",
            lambda: f"{self.mapping(inner, scope)}.size()",
        )

    def text(self, depth: int, scope: Variables) -> str:
        if depth <= 0:
            return self._leaf("text", scope, f"'{self._random.choice(TEXTS)}'")
        inner = depth - 1
        return self._one_of(
            lambda: f"{self.text(inner, scope)}.find('{self._random.choice(PATTERNS)}')",
            lambda: f"{self.texts(inner, scope)}.join('-')",
            lambda: f"{self.text(inner, scope)}.replace('a', 'b')",
            lambda: f"'%s'.format([{self._scalar(inner, scope)}])",
        )

    def numbers(self, depth: int, scope: Variables) -> str:
        if depth <= 0:
            listed = ", ".join(self.number(0, scope) for _ in range(self._random.randint(0, 4)))
            return self._leaf("numbers", scope, f"[{listed}]")
        inner = depth - 1
        return self._one_of(
            lambda: self._transform("transformList", self.numbers, inner, scope, self.number),
            lambda: self._sorted(self.numbers, "number", inner, scope),
            lambda: f"{self.numbers(inner, scope)}.{self._of('sort distinct reverse')}()",
            lambda: f"[{self.numbers(inner, scope)}, {self.numbers(inner, scope)}].flatten()",
            lambda: f"optional.unwrap([optional.of({self.number(inner, scope)}), optional.none()])",
            lambda: f"{self.numbers(inner, scope)}.slice(0, {self.number(inner, scope)})",
        )

    def texts(self, depth: int, scope: Variables) -> str:
        if depth <= 0:
            listed = ", ".join(self.text(0, scope) for _ in range(self._random.randint(0, 3)))
            return self._leaf("texts", scope, f"[{listed}]")
        inner = depth - 1
        pattern = self._random.choice(PATTERNS)
        return self._one_of(
            lambda: self._sorted(self.texts, "text", inner, scope),
            lambda: f"{self.text(inner, scope)}.findAll('{pattern}')",
            lambda: f"{self.text(inner, scope)}.findAll('{pattern}', {self.number(inner, scope)})",
            lambda: f"{self._format()}.validate({self.text(inner, scope)}).orValue([])",
        )

    def mapping(self, depth: int, scope: Variables) -> str:
        if depth <= 0:
            return "{0: 5, 2: 7}"
        inner = depth - 1

        def entry(depth: int, scope: Variables) -> str:
            return f"{{{self.number(depth, scope)}: {self.number(depth, scope)}}}"

        return self._one_of(
            lambda: self._transform("transformMap", self.mapping, inner, scope, self.number),
            lambda: self._transform("transformMapEntry", self.numbers, inner, scope, entry),
        )

    def _transform(
        self,
        macro: str,
        items: Callable[[int, Variables], str],
        depth: int,
        scope: Variables,
        result: Callable[[int, Variables], str],
    ) -> str:
        key, value = self._variable(), self._variable()
        inside = (*scope, (key, "number"), (value, "number"))
        kept = f"{self.truth(depth, inside)}, " if self._random.one_in(3) else ""
        return f"{items(depth, scope)}.{macro}({key}, {value}, {kept}{result(depth, inside)})"

    def _quantifier(self, depth: int, scope: Variables) -> str:
        key, value = self._variable(), self._variable()
        items = self._random.choice((self.numbers, self.mapping))(depth, scope)
        condition = self.truth(depth, (*scope, (key, "number"), (value, "number")))
        return f"{items}.{self._of('all exists existsOne')}({key}, {value}, {condition})"

    def _sorted(self, items: Callable[[int, Variables], str], kind: str, depth: int, scope: Variables) -> str:
        variable = self._variable()
        return f"{items(depth, scope)}.sortBy({variable}, {self._scalar(depth, (*scope, (variable, kind)))})"

    def _scalar(self, depth: int, scope: Variables) -> str:
        return self._random.choice((self.text, self.number, self.truth))(depth, scope)

    def _format(self) -> str:
        name = self._random.choice(FORMATS)
        return self._random.choice((f"format.{name}()", f"format.named('{name}').value()"))

    def _leaf(self, kind: str, scope: Variables, constant: str) -> str:
        return self._random.choice([constant, *(name for name, of in scope if of == kind)])

    def _variable(self) -> str:
        return f"v{next(self._numbers)}"

    def _of(self, words: str) -> str:
        return self._random.choice(words.split())

    def _one_of(self, *draws: Callable[[], str]) -> str:
        return self._random.choice(draws)()
