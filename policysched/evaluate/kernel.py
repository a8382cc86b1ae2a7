"""What a built-in is to the plan: bound to one pod, it answers for all rows of a view at once.

A module of `builtins.kernels` has `bind_filter(pod, params, around)`, `bind_score(pod, params, around)` or both; None says that the built-in
has nothing to do for this pod, as kube-scheduler's PreFilter and PreScore do with Skip. What is bound keeps nothing of
a node: it is asked again for the rows that changed.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import Flag, auto
from typing import Protocol

import numpy as np

from policysched.cluster.pod_sets import Siblings
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.view import View
from policysched.lang.ir.program import ParamValue

MAX_SCORE = 100
Params = Mapping[str, ParamValue]


@dataclass(frozen=True, slots=True)
class Around:
    """What other objects of the cluster say of the pod, as far as its plan reads it. Pods that share an evaluation agree
    on it. `siblings`: None as well where the pod has constraints of its own. Of a pod that asks for extended resources:
    `gives_devices`, the policy gives devices where classes stand for these, and `left_over`, a claim that was made for that is still there."""

    siblings: Siblings | None = None
    gives_devices: bool = False
    left_over: bool = False


NOTHING_AROUND = Around()


class Touch(Flag):
    """What can change an answer: the node, the pods on it, facts about all nodes, volumes, devices and claims, samples, the clock."""

    NOTHING = 0
    NODE = auto()
    USAGE = auto()
    CLUSTER = auto()
    SAMPLES = auto()
    TIME = auto()
    VOLUMES = auto()


class FilterKernel(Protocol):
    touch: Touch

    def refused(self, view: View) -> Array:
        """bool[view.count]: the rows that are refused."""
        ...

    def reasons(self, view: View) -> Sequence[tuple[str, Array]]:
        """Each text that the built-in has for a refusal, in its order, and bool[view.count]: where it applies."""
        ...

    def unresolvable(self, view: View) -> Array:
        """bool[view.count]: where evicting pods would not help. Only asked of refused rows."""
        ...

    def ahead(self, view: View) -> Array | None:
        """bool[view.count]: refusals that are found before any other rule looks at the node. Mostly None."""
        ...

    def beforehand(self, view: View) -> str | None:
        """Why the pod is refused whatever the node; then every row is refused for it. Mostly None."""
        ...

    def fingerprint(self, view: View) -> Hashable:
        """The facts about the whole cluster that a refusal reads, where `touch` says CLUSTER or VOLUMES. If they differ,
        every row has to be asked again. `()`: none, and whichever pods go there will be none."""
        ...

    def apart(self, view: View) -> bool:
        """Whether pods that come to a node or leave it change nothing for another."""
        ...


class Normalizer(Protocol):
    """From raw values to scores from 0 to 100."""

    local: bool
    """Whether a score depends on its own row alone."""

    def facts(self, raw: Array, taking_part: Array) -> Hashable:
        """What of all candidates the scores depend on. `taking_part` is a mask, not empty."""
        ...

    def scores(self, raw: Array, facts: Hashable) -> Array:
        """int64 like `raw`; rows that take no part may hold anything from 0 to 100."""
        ...


class ScoreKernel(Protocol):
    touch: Touch
    normalizer: Normalizer

    def raw(self, view: View) -> Array:
        """int64[view.count], or as many rows of what its normalizer makes one number of: what is counted."""
        ...

    def skips(self, view: View) -> bool:
        """Whether, as the cluster stands, there is nothing to score."""
        ...

    def shown(self, raw: Array, facts: Hashable) -> Array:
        """int64[view.count]: what was counted, as one number; `facts` are the normalizer's."""
        ...

    def fingerprint(self, view: View) -> Hashable:
        """The facts about the whole cluster that `raw` read. If they differ, every row has to be asked again."""
        ...


class Local:
    """The raw value is the score."""

    local = True

    def facts(self, raw: Array, taking_part: Array) -> Hashable:
        return ()

    def scores(self, raw: Array, facts: Hashable) -> Array:
        return raw


class ByMaximum:
    """`floor(100 * raw / max)` over the candidates, 0 where the maximum is 0; reversed: 100 less that.

    Source: `DefaultNormalizeScore` in kubernetes' `pkg/scheduler/framework/plugins/helper`.
    """

    local = False

    def __init__(self, *, reverse: bool) -> None:
        self._reverse = reverse

    def facts(self, raw: Array, taking_part: Array) -> Hashable:
        return int(np.max(raw, where=taking_part, initial=0))

    def scores(self, raw: Array, facts: Hashable) -> Array:
        assert isinstance(facts, int)
        share = raw * 0 if facts == 0 else np.clip(raw * MAX_SCORE // facts, 0, MAX_SCORE)
        return MAX_SCORE - share if self._reverse else share


class PlainFilter:
    """A built-in with one reason, which evicting does not cure unless the class says so."""

    touch = Touch.NODE
    reason = ""
    resolvable = False

    def refused(self, view: View) -> Array:
        raise AssertionError(f"{type(self).__name__} does not say whom it refuses")

    def reasons(self, view: View) -> Sequence[tuple[str, Array]]:
        return ((self.reason, self.refused(view)),)

    def unresolvable(self, view: View) -> Array:
        return np.full(view.count, not self.resolvable)

    def ahead(self, view: View) -> Array | None:
        return None

    def beforehand(self, view: View) -> str | None:
        return None

    def fingerprint(self, view: View) -> Hashable:
        return ()

    def apart(self, view: View) -> bool:
        return not self.touch & Touch.CLUSTER or self.fingerprint(view) == ()


class PlainScore:
    """A score that reads nothing of the cluster as a whole."""

    touch = Touch.NODE
    normalizer: Normalizer = Local()

    def skips(self, view: View) -> bool:
        return False

    def shown(self, raw: Array, facts: Hashable) -> Array:
        return raw

    def fingerprint(self, view: View) -> Hashable:
        return ()
