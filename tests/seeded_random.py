"""Random choices from one seed, for generated clusters and workloads."""

from collections.abc import Sequence
from random import Random
from typing import TypeVar

Item = TypeVar("Item")


class SeededRandom(Random):
    def one_in(self, count: int) -> bool:
        return self.randrange(count) == 0

    def some(self, items: Sequence[Item], most: int, *, least: int = 0) -> list[Item]:
        return self.sample(items, self.randint(least, min(most, len(items))))
