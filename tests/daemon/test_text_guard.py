"""The limits on the time of each text, on a virtual processor clock: who is charged for what, and who goes on."""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

import pytest

from policysched.daemon.check_worker import REPEAT_S, CpuTimeGuard
from policysched.lang.check.limits import TextLimitExceeded

TEXT_S, ALL_S = 2.0, 6.0
TICK_S = 0.125


class Processor:
    """A processor clock and the timer that interrupts what runs on it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self._at_s, self._interval_s = float("inf"), 0.0
        self._handler: Callable[[int, None], None] = lambda *_: None
        monkeypatch.setattr(time, "process_time", lambda: self.now_s)
        monkeypatch.setattr(signal, "setitimer", self._set_timer)
        monkeypatch.setattr(signal, "signal", lambda _, handler: setattr(self, "_handler", handler))

    def _set_timer(self, _which: int, seconds: float, interval_s: float = 0.0) -> tuple[float, float]:
        before = (0.0, 0.0) if self._at_s == float("inf") else (self._at_s - self.now_s, self._interval_s)
        self._at_s = self.now_s + seconds if seconds else float("inf")
        self._interval_s = interval_s
        return before

    def run(self, seconds: float) -> None:
        """Raises when the timer goes off, and leaves the rest undone."""
        ends_s = self.now_s + seconds
        if ends_s < self._at_s:
            self.now_s = ends_s
            return
        self.now_s, self._at_s = self._at_s, self._at_s + self._interval_s
        self._handler(0, None)


@dataclass(slots=True)
class Text:
    """`before` and `after` are its own time, around the texts that it includes."""

    before_s: float
    included: list["Text"]
    after_s: float
    started: bool = False
    own_s: float = 0.0
    exceeded: str | None = None


def random_text(rng: Random, depth: int = 2) -> Text:
    """Times are whole ticks, and no sum of them is a limit."""
    included = [random_text(rng, depth - 1) for _ in range(rng.randint(0, 2))] if depth else []
    times = [rng.randint(0, 12) * TICK_S + TICK_S / 64 for _ in range(2)]
    return Text(times[0], included, times[1])


def check(text: Text, guard: CpuTimeGuard, processor: Processor) -> None:
    """As the checker does: a text that exceeds its limit is rejected, and the one that includes it goes on."""
    text.started = True

    def own(seconds: float) -> None:
        began_s = processor.now_s
        try:
            processor.run(seconds)
        finally:
            text.own_s += processor.now_s - began_s

    try:
        with guard(""):
            own(text.before_s)
            for other in text.included:
                check(other, guard, processor)
            own(text.after_s)
    except TextLimitExceeded as error:
        text.exceeded = str(error)


def all_texts(texts: list[Text]) -> Iterator[Text]:
    for text in texts:
        yield text
        yield from all_texts(text.included)


def check_limits(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng, processor = Random(number), Processor(monkeypatch)
    guard = CpuTimeGuard(timeout_s=ALL_S, text_timeout_s=TEXT_S)
    texts = [random_text(rng) for _ in range(3)]

    for text in texts:
        check(text, guard, processor)

    assert processor.now_s <= ALL_S + REPEAT_S, f"all texts took {processor.now_s} s"
    for text in all_texts(texts):
        own_s = text.before_s + text.after_s
        assert text.own_s <= TEXT_S + 1e-6, f"a text took {text.own_s} s"
        if text.exceeded is None:
            assert not text.started or own_s <= TEXT_S, f"a text of {own_s} s was not rejected"
        elif "this text" in text.exceeded:
            assert own_s > TEXT_S, f"a text of {own_s} s was rejected for its own time"
        else:
            assert processor.now_s >= ALL_S, f"texts are rejected for all after {processor.now_s} s"


def test_a_text_is_charged_for_its_own_time_and_all_texts_for_theirs() -> None:
    for number in range(400):
        with pytest.MonkeyPatch.context() as patch:
            check_limits(number, patch)


# ── planted bugs ───────────────────────────────────────────────────────────────────────────────────────────────────────


@contextlib.contextmanager
def _included_texts_are_charged_to_the_first(self: CpuTimeGuard, key: str) -> Iterator[None]:
    del key
    if signal.setitimer(signal.ITIMER_VIRTUAL, 0)[0]:
        signal.setitimer(signal.ITIMER_VIRTUAL, self._text_timeout_s, REPEAT_S)
        yield
        return
    self._start_timer(self._text_timeout_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _nobody_is_limited_after_an_include(self: CpuTimeGuard, after_s: float) -> float:
    signal.setitimer(signal.ITIMER_VIRTUAL, min(after_s, self._text_timeout_s), REPEAT_S)
    return 0.0


def _each_start_is_a_full_one(self: CpuTimeGuard, _after_s: float) -> float:
    left_s = max(1e-6, min(self._text_timeout_s, self._ends_s - time.process_time()))
    return signal.setitimer(signal.ITIMER_VIRTUAL, left_s, REPEAT_S)[0]


def _all_texts_have_no_limit(self: CpuTimeGuard, after_s: float) -> float:
    return signal.setitimer(signal.ITIMER_VIRTUAL, max(after_s, 1e-6), REPEAT_S)[0]


@pytest.mark.parametrize(
    ("part", "planted"),
    [
        ("__call__", _included_texts_are_charged_to_the_first),
        ("_start_timer", _nobody_is_limited_after_an_include),
        ("_start_timer", _each_start_is_a_full_one),
        ("_start_timer", _all_texts_have_no_limit),
    ],
)
def test_a_planted_mistake_of_the_guard_is_found(
    part: str, planted: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CpuTimeGuard, part, planted)

    with pytest.raises(AssertionError):
        test_a_text_is_charged_for_its_own_time_and_all_texts_for_theirs()
