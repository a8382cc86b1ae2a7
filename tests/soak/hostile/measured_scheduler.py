"""The change of the scheduler's process that makes it one to be measured."""

from collections.abc import Callable
from dataclasses import dataclass

from tests.e2e.forked_worker import start_interpreters


@dataclass(frozen=True, slots=True)
class MeasuredScheduler:
    """Starts the processes that check policies as users' schedulers do, and makes one more change. Can be pickled."""

    change: Callable[[], None]

    def __call__(self) -> None:
        start_interpreters()
        self.change()
