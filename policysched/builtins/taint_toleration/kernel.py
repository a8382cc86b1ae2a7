"""Taints and tolerations, matched once for each distinct set of taints.

Source of the formula: kubernetes v1.37 `pkg/scheduler/framework/plugins/tainttoleration`.
"""

import numpy as np

from policysched.builtins.tolerations import TolerationIndex
from policysched.evaluate.columns.column_kinds import TaintSetColumn
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.view import View, map_codes
from policysched.evaluate.kernel import (
    ClusterContext,
    DefaultNormalizer,
    FilterKernel,
    FilterKernelBase,
    KernelParams,
    Normalizer,
    ScoreKernel,
    ScoreKernelBase,
)
from policysched.model.nodes import Taint
from policysched.model.pods import Pod, Toleration

COLUMNS = (TaintSetColumn(),)
_OF_ONE_NODE = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
"""Taints that Kubernetes sets by the state of a node, such as not-ready."""


def specialize_filter(pod: Pod, params: KernelParams, cluster_context: ClusterContext) -> FilterKernel | None:
    return _Filter(pod.tolerations)


def specialize_score(pod: Pod, params: KernelParams, cluster_context: ClusterContext) -> ScoreKernel | None:
    return _Score(
        tuple(toleration for toleration in pod.tolerations if toleration.effect in ("", "PreferNoSchedule"))
    )


class _Filter(FilterKernelBase):
    reason = "node(s) had untolerated taint(s)"

    def __init__(self, tolerations: tuple[Toleration, ...]) -> None:
        self._tolerations = TolerationIndex(tolerations)

    def rejected(self, view: View) -> Array:
        return map_codes(
            view.column(TaintSetColumn()), view.codes.taints.values, self._has_untolerated, np.bool_
        )

    def repeated_on_new_node(self, view: View) -> Array:
        return map_codes(
            view.column(TaintSetColumn()),
            view.codes.taints.values,
            lambda taints: self._has_untolerated(
                tuple(taint for taint in taints if not taint.key.startswith(_OF_ONE_NODE))
            ),
            np.bool_,
        )

    def _has_untolerated(self, taints: tuple[Taint, ...]) -> bool:
        return any(
            taint.effect != "PreferNoSchedule" and not self._tolerations.tolerates(taint) for taint in taints
        )


class _Score(ScoreKernelBase):
    """Raw: the number of PreferNoSchedule taints that are not tolerated; fewer is better."""

    normalizer: Normalizer = DefaultNormalizer(reverse=True)

    def __init__(self, tolerations: tuple[Toleration, ...]) -> None:
        self._tolerations = TolerationIndex(tolerations)

    def raw(self, view: View) -> Array:
        return map_codes(
            view.column(TaintSetColumn()), view.codes.taints.values, self._count_untolerated, np.int64
        )

    def _count_untolerated(self, taints: tuple[Taint, ...]) -> int:
        return sum(
            taint.effect == "PreferNoSchedule" and not self._tolerations.tolerates(taint) for taint in taints
        )
