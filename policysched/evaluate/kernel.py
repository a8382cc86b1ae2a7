"""The interface of built-in kernels: specialized for one pod, a kernel answers for all rows of a
view.

A module `builtins.NAME.kernel` has `specialize_filter(pod, params, cluster_context)`,
`specialize_score(pod, params, cluster_context)` or both. None means that the built-in has nothing
to do for this pod, like Skip from kube-scheduler's PreFilter and PreScore. A kernel keeps nothing
about nodes: it is called again for the rows that changed.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import Flag, auto
from typing import Protocol

import numpy as np

from policysched.cluster.selector_owners import DefaultSelector
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.view import View
from policysched.evaluate.verdict import PrebindRequirements
from policysched.lang.ir.rules import BuiltinParamValue
from policysched.model.nodes import Node
from policysched.model.pods import Pod

MAX_SCORE = 100
KernelParams = Mapping[str, BuiltinParamValue]


@dataclass(frozen=True, slots=True)
class ClusterContext:
    """What other objects of the cluster determine about the pod, as far as its plan reads it. Pods
    that share an evaluation agree on it.

    `selector_group` is None also for a pod with constraints of its own. For a pod that requests
    extended resources: `allocates_devices`, the policy allocates devices where a DeviceClass maps
    the resource, and `has_stale_claim`, a claim made for that still exists.
    """

    selector_group: DefaultSelector | None = None
    allocates_devices: bool = False
    has_stale_claim: bool = False


EMPTY_CLUSTER_CONTEXT = ClusterContext()


class Dependency(Flag):
    """What a result depends on: the node, its pods, facts about all nodes, samples, the clock, or
    volumes, devices and claims.
    """

    NONE = 0
    NODE = auto()
    USAGE = auto()
    CLUSTER = auto()
    SAMPLES = auto()
    TIME = auto()
    VOLUMES = auto()


class FilterKernel(Protocol):
    depends_on: Dependency

    def rejected(self, view: View) -> Array:
        """bool[view.count]: the rejected rows."""
        ...

    def reasons(self, view: View) -> Sequence[tuple[str, Array]]:
        """The built-in's reasons in order, each with bool[view.count]: the rows that it applies to."""
        ...

    def unresolvable(self, view: View) -> Array:
        """bool[view.count]: where evicting pods would not help. Only read for rejected rows."""
        ...

    def early_reject(self, view: View) -> Array | None:
        """bool[view.count]: rejections that precede all other rules. None for most built-ins."""
        ...

    def prefilter(self, view: View) -> str | None:
        """The message where the pod is rejected on every node, whose rows are all rejected then. None
        for most built-ins.
        """
        ...

    def repeated_on_new_node(self, view: View) -> Array:
        """bool[view.count]: rejections by what belongs to the kind of the node, so that a new one of the kind is
        rejected too. Only read for rejected rows."""
        ...

    def attempt_errors(self, view: View) -> Sequence[tuple[str, Array]]:
        """Errors that stop the attempt unless another rule rejects their nodes before, each with
        bool[view.count]: its rows, which are rejected. Empty for most built-ins.
        """
        ...

    def fingerprint(self, view: View) -> Hashable:
        """The cluster-wide facts that a rejection reads, where `depends_on` has CLUSTER or VOLUMES;
        when they change, all rows are reevaluated. `()`: there are none, and no pod that is
        placed can add one.
        """
        ...

    def is_node_local(self, view: View) -> bool:
        """Whether a pod that comes to a node or leaves it changes nothing for other nodes."""
        ...

    def alone(self, view: View, base: View) -> "FilterKernel | None":
        """What judges each node of the overlay of `view`, which has more pods than `base`, as if of those only the pods on
        this node were there. None: that takes an overlay for each node."""
        ...

    def shortfall(self, view: View) -> Mapping[str, Array]:
        """By resource, int64[view.count]: how much more must be free for the pod (`pods`: in pods); 0 or less where
        enough is free. Empty for a filter that does not account resources."""
        ...

    def prebind_requirements(self, pod: Pod, node: Node, view: View) -> PrebindRequirements | None:
        """What to do for the pod before it is bound to a node that this filter accepts. `view` holds only that node."""
        ...


class Normalizer(Protocol):
    """Maps raw values to scores from 0 to 100."""

    node_local: bool
    """Whether a score depends on its own row alone."""

    def candidate_stats(self, raw: Array, scored: Array) -> Hashable:
        """The statistics of the candidates that the scores depend on. `scored`: a mask that is not
        empty.
        """
        ...

    def normalize(self, raw: Array, stats: Hashable) -> Array:
        """int64 like `raw`; rows that are not scored may hold anything from 0 to 100."""
        ...


class ScoreKernel(Protocol):
    depends_on: Dependency
    normalizer: Normalizer

    def raw(self, view: View) -> Array:
        """int64[view.count], or one column per value that the normalizer combines."""
        ...

    def skip(self, view: View) -> bool:
        """Whether there is nothing to score on the present cluster."""
        ...

    def display_raw(self, raw: Array, stats: Hashable) -> Array:
        """int64[view.count]: the raw value as one number; `stats` are the normalizer's."""
        ...

    def fingerprint(self, view: View) -> Hashable:
        """The cluster-wide facts that `raw` reads; when they change, all rows are reevaluated."""
        ...


class IdentityNormalizer:
    """The raw value is the score."""

    node_local = True

    def candidate_stats(self, raw: Array, scored: Array) -> Hashable:
        return ()

    def normalize(self, raw: Array, stats: Hashable) -> Array:
        return raw


class DefaultNormalizer:
    """`floor(100 * raw / max)` over the candidates, 0 where the maximum is 0; reversed: 100 less that.

    Source: `DefaultNormalizeScore` in kubernetes' `pkg/scheduler/framework/plugins/helper`.
    """

    node_local = False

    def __init__(self, *, reverse: bool) -> None:
        self._reverse = reverse

    def candidate_stats(self, raw: Array, scored: Array) -> Hashable:
        return int(np.max(raw, where=scored, initial=0))

    def normalize(self, raw: Array, stats: Hashable) -> Array:
        assert isinstance(stats, int)
        share = raw * 0 if stats == 0 else np.clip(raw * MAX_SCORE // stats, 0, MAX_SCORE)
        return MAX_SCORE - share if self._reverse else share


def shortfall_reason(resource: str) -> str:
    """The reason for which a filter rejects a node where the resource falls short."""
    return "Too many pods" if resource == "pods" else f"Insufficient {resource}"


class FilterKernelBase:
    """A filter with one reason, which eviction does not resolve unless the class says so."""

    depends_on = Dependency.NODE
    reason = ""
    resolvable = False

    def rejected(self, view: View) -> Array:
        raise AssertionError(f"{type(self).__name__} does not implement rejected()")

    def reasons(self, view: View) -> Sequence[tuple[str, Array]]:
        return ((self.reason, self.rejected(view)),)

    def unresolvable(self, view: View) -> Array:
        return np.full(view.count, not self.resolvable)

    def early_reject(self, view: View) -> Array | None:
        return None

    def prefilter(self, view: View) -> str | None:
        return None

    def repeated_on_new_node(self, view: View) -> Array:
        return np.zeros(view.count, np.bool_)

    def attempt_errors(self, view: View) -> Sequence[tuple[str, Array]]:
        return ()

    def fingerprint(self, view: View) -> Hashable:
        return ()

    def is_node_local(self, view: View) -> bool:
        return not self.depends_on & Dependency.CLUSTER or self.fingerprint(view) == ()

    def alone(self, view: View, base: View) -> FilterKernel | None:
        is_same = self.is_node_local(view) or self.fingerprint(view) == self.fingerprint(base)
        return self if is_same else None

    def shortfall(self, view: View) -> Mapping[str, Array]:
        return {}

    def prebind_requirements(self, pod: Pod, node: Node, view: View) -> PrebindRequirements | None:
        return None


class ScoreKernelBase:
    """A score that reads no cluster-wide facts."""

    depends_on = Dependency.NODE
    normalizer: Normalizer = IdentityNormalizer()

    def skip(self, view: View) -> bool:
        return False

    def display_raw(self, raw: Array, stats: Hashable) -> Array:
        return raw

    def fingerprint(self, view: View) -> Hashable:
        return ()
