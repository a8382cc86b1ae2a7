"""A seed's climate: how often each fault comes, drawn once; and the dice that decide of each request."""

from dataclasses import dataclass
from enum import Enum
from random import Random


class Fault(Enum):
    """What befalls one request. The names say what the server saw of it."""

    NONE = "none"
    LOST_BEFORE = "the connection breaks before the server has it"
    LOST_AFTER = "the server acts and its answer is lost"
    LATE = "the connection breaks, and the server gets it some time later"
    TWICE = "the server gets it twice"
    SERVER_FAULT = "500 without the server having it"
    THROTTLED = "429 with Retry-After"
    TOO_OLD = "410, for a watch"


WRITES = (Fault.LOST_BEFORE, Fault.LOST_AFTER, Fault.LATE, Fault.TWICE, Fault.SERVER_FAULT, Fault.THROTTLED)
READS = (Fault.LOST_BEFORE, Fault.LOST_AFTER, Fault.SERVER_FAULT, Fault.THROTTLED)
WATCHES = (Fault.LOST_BEFORE, Fault.SERVER_FAULT, Fault.THROTTLED, Fault.TOO_OLD)


@dataclass(frozen=True)
class Climate:
    """Probabilities a request; seconds for what waits. `watch_lives_s`: a watch is cut after at most this long;
    `watch_lags_s`: its news come at most so late."""

    write_faults: dict[Fault, float]
    read_faults: dict[Fault, float]
    watch_faults: dict[Fault, float]
    delay_s: float
    late_s: float
    watch_lives_s: float
    watch_lags_s: float


ANSWERS_ARE_LOST = Climate(
    write_faults={Fault.LOST_AFTER: 0.35, Fault.LATE: 0.35},
    read_faults={},
    watch_faults={},
    delay_s=0.02,
    late_s=1.0,
    watch_lives_s=10.0,
    watch_lags_s=0.6,
)
"""Where a scheduler that takes silence for a refusal soon goes wrong."""


def climate(seed: int) -> Climate:
    """Each fault is absent in about half of the climates, so that each is also seen alone. Each fourth is the one in which
    answers are lost."""
    if seed % 4 == 3:
        return ANSWERS_ARE_LOST
    dice = Random(f"climate {seed}")

    def some(faults: tuple[Fault, ...], most: float) -> dict[Fault, float]:
        return {fault: dice.uniform(0, most) if dice.random() < 0.5 else 0.0 for fault in faults}

    return Climate(
        write_faults=some(WRITES, 0.25),
        read_faults=some(READS, 0.2),
        watch_faults=some(WATCHES, 0.2),
        delay_s=dice.choice((0.0, 0.02, 0.2)),
        late_s=dice.choice((0.2, 1.0, 2.0)),
        watch_lives_s=dice.choice((0.3, 1.0, 10.0)),
        watch_lags_s=dice.choice((0.0, 0.1, 0.6)),
    )


def draw(dice: Random, faults: dict[Fault, float]) -> Fault:
    at = dice.random()
    for fault, probability in faults.items():
        at -= probability
        if at < 0:
            return fault
    return Fault.NONE
