"""What a built-in is to the plan: bound to one pod, it answers for all rows of a view at once.

A module of `builtins.kernels` has `specialize_filter(pod, params, around)`, `specialize_score(pod, params, around)` or both; None says that the built-in
has nothing to do for this pod, as kube-scheduler's PreFilter and PreScore do with Skip. What is bound keeps nothing of
a node: it is asked again for the rows that changed.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import Flag, auto
from typing import Protocol

import numpy as np

from policysched.cluster.pod_sets import DefaultSelector
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.view import View
from policysched.lang.ir.rules import BuiltinParamValue

MAX_SCORE = 100
KernelParams = Mapping[str, BuiltinParamValue]


@dataclass(frozen=True, slots=True)
class ClusterContext:
    """What other objects of the cluster say of the pod, as far as its plan reads it. Pods that share an evaluation agree
    on it. `selector_group`: None as well where the pod has constraints of its own. Of a pod that asks for extended resources:
    `allocates_devices`, the policy gives devices where classes stand for these, and `has_stale_claim`, a claim that was made for that is still there."""

    selector_group: DefaultSelector | None = None
    allocates_devices: bool = False
    has_stale_claim: bool = False


EMPTY_CLUSTER_CONTEXT = ClusterContext()


class Dependency(Flag):
    """What can change an answer: the node, the pods on it, facts about all nodes, volumes, devices and claims, samples, the clock."""

    NONE = 0
    NODE = auto()
    USAGE = auto()
    CLUSTER = auto()
    SAMPLES = auto()
    TIME = auto()
    VOLUMES = auto()


class FilterKernel(Protocol):
    depends_on: Dependency

    def refused(self, view: View) -> Array:
        """bool[view.count]: the rows that are refused."""
        ...

    def reasons(self, view: View) -> Sequence[tuple[str, Array]]:
        """Each text that the built-in has for a refusal, in its order, and bool[view.count]: where it applies."""
        ...

    def unresolvable(self, view: View) -> Array:
        """bool[view.count]: where evicting pods would not help. Only asked of refused rows."""
        ...

    def early_reject(self, view: View) -> Array | None:
        """bool[view.count]: refusals that are found before any other rule looks at the node. Mostly None."""
        ...

    def prefilter(self, view: View) -> str | None:
        """Why the pod is refused whatever the node; then every row is refused for it. Mostly None."""
        ...

    def fingerprint(self, view: View) -> Hashable:
        """The facts about the whole cluster that a refusal reads, where `depends_on` says CLUSTER or VOLUMES. If they differ,
        every row has to be asked again. `()`: none, and whichever pods go there will be none."""
        ...

    def is_node_local(self, view: View) -> bool:
        """Whether pods that come to a node or leave it change nothing for another."""
        ...


class Normalizer(Protocol):
    """From raw values to scores from 0 to 100."""

    node_local: bool
    """Whether a score depends on its own row alone."""

    def candidate_stats(self, raw: Array, taking_part: Array) -> Hashable:
        """What of all candidates the scores depend on. `taking_part` is a mask, not empty."""
        ...

    def normalize(self, raw: Array, facts: Hashable) -> Array:
        """int64 like `raw`; rows that take no part may hold anything from 0 to 100."""
        ...


class ScoreKernel(Protocol):
    depends_on: Dependency
    normalizer: Normalizer

    def raw(self, view: View) -> Array:
        """int64[view.count], or as many rows of what its normalizer makes one number of: what is counted."""
        ...

    def skip(self, view: View) -> bool:
        """Whether, as the cluster stands, there is nothing to score."""
        ...

    def display_raw(self, raw: Array, facts: Hashable) -> Array:
        """int64[view.count]: what was counted, as one number; `candidate_stats` are the normalizer's."""
        ...

    def fingerprint(self, view: View) -> Hashable:
        """The facts about the whole cluster that `raw` read. If they differ, every row has to be asked again."""
        ...


class IdentityNormalizer:
    """The raw value is the score."""

    node_local = True

    def candidate_stats(self, raw: Array, taking_part: Array) -> Hashable:
        return ()

    def normalize(self, raw: Array, facts: Hashable) -> Array:
        return raw


class DefaultNormalizer:
    """`floor(100 * raw / max)` over the candidates, 0 where the maximum is 0; reversed: 100 less that.

    Source: `DefaultNormalizeScore` in kubernetes' `pkg/scheduler/framework/plugins/helper`.
    """

    node_local = False

    def __init__(self, *, reverse: bool) -> None:
        self._reverse = reverse

    def candidate_stats(self, raw: Array, taking_part: Array) -> Hashable:
        return int(np.max(raw, where=taking_part, initial=0))

    def normalize(self, raw: Array, facts: Hashable) -> Array:
        assert isinstance(facts, int)
        share = raw * 0 if facts == 0 else np.clip(raw * MAX_SCORE // facts, 0, MAX_SCORE)
        return MAX_SCORE - share if self._reverse else share


class FilterKernelBase:
    """A built-in with one reason, which evicting does not cure unless the class says so."""

    depends_on = Dependency.NODE
    reason = ""
    resolvable = False

    def refused(self, view: View) -> Array:
        raise AssertionError(f"{type(self).__name__} does not say whom it refuses")

    def reasons(self, view: View) -> Sequence[tuple[str, Array]]:
        return ((self.reason, self.refused(view)),)

    def unresolvable(self, view: View) -> Array:
        return np.full(view.count, not self.resolvable)

    def early_reject(self, view: View) -> Array | None:
        return None

    def prefilter(self, view: View) -> str | None:
        return None

    def fingerprint(self, view: View) -> Hashable:
        return ()

    def is_node_local(self, view: View) -> bool:
        return not self.depends_on & Dependency.CLUSTER or self.fingerprint(view) == ()


class ScoreKernelBase:
    """A score that reads nothing of the cluster as a whole."""

    depends_on = Dependency.NODE
    normalizer: Normalizer = IdentityNormalizer()

    def skip(self, view: View) -> bool:
        return False

    def display_raw(self, raw: Array, facts: Hashable) -> Array:
        return raw

    def fingerprint(self, view: View) -> Hashable:
        return ()
