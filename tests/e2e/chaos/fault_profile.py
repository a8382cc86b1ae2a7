"""The faults of a seed: the probability of each, drawn once, and the draw for each request."""

from dataclasses import dataclass
from enum import Enum
from random import Random
from zlib import crc32


class Fault(Enum):
    """What happens to one request, as seen by the server, or to the process."""

    NONE = "none"
    LOST_BEFORE = "the connection breaks before the server has it"
    LOST_AFTER = "the server acts and its answer is lost"
    LATE = "the connection breaks, and the server gets it some time later"
    TWICE = "the server gets it twice, unless it refuses it"
    SERVER_FAULT = "500 without the server having it"
    THROTTLED = "429 with Retry-After"
    TOO_OLD = "410, for a watch"
    PUT_OFF = "503 with Retry-After of an hour, to everything for a moment"
    FAILING_POD = "500 for every write of some pods"
    FROZEN = "the process stands still for a moment"
    NO_DESCRIPTORS = "the process can open no file and no connection for a moment"
    CLOCK_SET = "the wall clock of the process is set forward or back, by seconds or by an hour"
    WEBHOOK_DENIES = "a webhook denies the binds of the namespace for a moment"
    WEBHOOK_FAILS = "a webhook answers 500 to the binds of the namespace for a moment"
    WEBHOOK_HANGS = "a webhook does not answer the binds of the namespace for a moment"


WRITES = (Fault.LOST_BEFORE, Fault.LOST_AFTER, Fault.LATE, Fault.TWICE, Fault.SERVER_FAULT, Fault.THROTTLED)
READS = (Fault.LOST_BEFORE, Fault.LOST_AFTER, Fault.SERVER_FAULT, Fault.THROTTLED)
WEBHOOK_FAULTS = (Fault.WEBHOOK_DENIES, Fault.WEBHOOK_FAILS, Fault.WEBHOOK_HANGS)
MOMENTS = (Fault.FROZEN, Fault.PUT_OFF, Fault.NO_DESCRIPTORS, *WEBHOOK_FAULTS)
"""One of them is planted in each seed with a profile of its own. `CLOCK_SET` is planted in half of them, too."""
WATCHES = (Fault.LOST_BEFORE, Fault.SERVER_FAULT, Fault.THROTTLED, Fault.TOO_OLD)


@dataclass(frozen=True)
class FaultProfile:
    """Probabilities per request, delays in seconds. `watch_lives_s`: a watch is cut after at most this
    time; `watch_lags_s`: the most by which its events are delayed. `moments`: faults that hold for a
    moment, one after the other, at most `moment_s` each. `planted` occur in every run: the faults do not end before.
    """

    write_faults: dict[Fault, float]
    read_faults: dict[Fault, float]
    watch_faults: dict[Fault, float]
    delay_s: float
    late_s: float
    watch_lives_s: float
    watch_lags_s: float
    failing_pods_share: float = 0.0
    moments: tuple[Fault, ...] = ()
    moment_s: float = 1.5
    planted: tuple[Fault, ...] = ()

    @property
    def binds_may_be_refused(self) -> bool:
        """Whether a bind can end with a refusal: denied, or decided before a stall or a restart and not sent."""
        return not {Fault.WEBHOOK_DENIES, Fault.FROZEN, Fault.CLOCK_SET}.isdisjoint(self.moments)

    def fails(self, pod_path: str) -> bool:
        """Whether every write of the pod fails while there are faults."""
        return crc32(pod_path.encode()) / 2**32 < self.failing_pods_share


STEPPED_CLOCK = FaultProfile(
    write_faults={Fault.SERVER_FAULT: 0.2},
    read_faults={},
    watch_faults={},
    delay_s=0.02,
    late_s=1.0,
    watch_lives_s=10.0,
    watch_lags_s=0.1,
    moments=(Fault.CLOCK_SET,),
    planted=(Fault.CLOCK_SET,),
)
"""Soon breaks a scheduler whose clock follows the wall clock."""

QUIET = FaultProfile({}, {}, {}, delay_s=0.0, late_s=0.0, watch_lives_s=3600.0, watch_lags_s=0.0)

LOST_ANSWERS = FaultProfile(
    write_faults={Fault.LOST_AFTER: 0.35, Fault.LATE: 0.35},
    read_faults={},
    watch_faults={},
    delay_s=0.02,
    late_s=1.0,
    watch_lives_s=10.0,
    watch_lags_s=0.6,
)
"""Soon breaks a scheduler that takes a missing answer for a refusal."""

SHORT_WATCHES = FaultProfile({}, {}, {}, delay_s=0.02, late_s=0.0, watch_lives_s=0.3, watch_lags_s=0.0)
"""Soon breaks a scheduler that does not watch again."""


def profile_of(seed: int) -> FaultProfile:
    """Each fault is absent from about half of the profiles, so that each also occurs alone. Every fourth
    profile is `LOST_ANSWERS`.
    """
    if seed % 4 == 3:
        return LOST_ANSWERS
    rng = Random(f"climate {seed}")

    def probabilities(faults: tuple[Fault, ...], most: float) -> dict[Fault, float]:
        return {fault: rng.uniform(0, most) if rng.random() < 0.5 else 0.0 for fault in faults}

    hostile = Random(f"hostile weather {seed}")
    share = hostile.choice((0.0, 0.2))
    clock = (Fault.CLOCK_SET,) if Random(f"clock {seed}").random() < 0.5 else ()
    planted = MOMENTS[(seed - seed // 4) % len(MOMENTS)]  # every one, in any eight seeds
    others = tuple(fault for fault in MOMENTS if hostile.random() < 0.5 and fault is not planted)
    return FaultProfile(
        failing_pods_share=share,
        moments=(planted, *clock, *others),
        planted=(planted, *clock, *((Fault.FAILING_POD,) if share else ())),
        write_faults=probabilities(WRITES, 0.25),
        read_faults=probabilities(READS, 0.2),
        watch_faults=probabilities(WATCHES, 0.2),
        delay_s=rng.choice((0.0, 0.02, 0.2)),
        late_s=rng.choice((0.2, 1.0, 2.0)),
        watch_lives_s=rng.choice((0.3, 1.0, 10.0)),
        watch_lags_s=rng.choice((0.0, 0.1, 0.6)),
    )


def draw(rng: Random, faults: dict[Fault, float]) -> Fault:
    remaining = rng.random()
    for fault, probability in faults.items():
        remaining -= probability
        if remaining < 0:
            return fault
    return Fault.NONE
