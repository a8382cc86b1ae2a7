"""The decay of a kept value (`half_life` of a `state`)."""

import math
from dataclasses import dataclass

STEPS_PER_HALF_LIFE = 64
_STEPS_MAX = 20 * STEPS_PER_HALF_LIFE


@dataclass(frozen=True, slots=True)
class Decay:
    """The difference from `start` halves every `half_life_ns`, in 64 steps; after 20 half-lives the value is `start`.

    Steps are at multiples of `step_ns` since 1970, so that all processes take them at the same time and an evaluation
    holds for a whole step.
    """

    start: float
    half_life_ns: int

    @property
    def step_ns(self) -> int:
        return self.half_life_ns // STEPS_PER_HALF_LIFE

    def value_at(self, value: float, updated_ns: int, now_ns: int) -> float:
        """What is left at `now_ns` of a value of the time `updated_ns`."""
        steps = now_ns // self.step_ns - updated_ns // self.step_ns
        if steps <= 0:
            return value
        if steps >= _STEPS_MAX:
            return self.start
        return self.start + (value - self.start) * math.exp2(-steps / STEPS_PER_HALF_LIFE)

    def next_step_ns(self, now_ns: int) -> int:
        return (now_ns // self.step_ns + 1) * self.step_ns
