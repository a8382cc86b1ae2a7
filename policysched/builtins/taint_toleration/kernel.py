"""Taints against tolerations, asked once a distinct set of taints and gathered.

Source of the formula: kubernetes v1.36 `pkg/scheduler/framework/plugins/tainttoleration`.
"""

import numpy as np

from policysched.evaluate.columns.column_kinds import TaintSet
from policysched.evaluate.columns.columns import Array
from policysched.evaluate.columns.view import View, by_code
from policysched.evaluate.kernel import (
    Around,
    ByMaximum,
    FilterKernel,
    Normalizer,
    Params,
    PlainFilter,
    PlainScore,
    ScoreKernel,
)
from policysched.evaluate.rules.tolerations import tolerated
from policysched.model.objects import Pod, Taint, Toleration

COLUMNS = (TaintSet(),)


def bind_filter(pod: Pod, params: Params, around: Around) -> FilterKernel | None:
    return _Filter(pod.tolerations)


def bind_score(pod: Pod, params: Params, around: Around) -> ScoreKernel | None:
    return _Score(tuple(one for one in pod.tolerations if one.effect in ("", "PreferNoSchedule")))


class _Filter(PlainFilter):
    reason = "node(s) had untolerated taint(s)"

    def __init__(self, tolerations: tuple[Toleration, ...]) -> None:
        self._tolerations = tolerations

    def refused(self, view: View) -> Array:
        return by_code(view.column(TaintSet()), view.codes.taints.values, self._refuses, np.bool_)

    def _refuses(self, taints: tuple[Taint, ...]) -> bool:
        return any(
            taint.effect != "PreferNoSchedule" and not tolerated(self._tolerations, taint) for taint in taints
        )


class _Score(PlainScore):
    """Raw: how many PreferNoSchedule taints are not tolerated; fewer is better."""

    normalizer: Normalizer = ByMaximum(reverse=True)

    def __init__(self, tolerations: tuple[Toleration, ...]) -> None:
        self._tolerations = tolerations

    def raw(self, view: View) -> Array:
        return by_code(view.column(TaintSet()), view.codes.taints.values, self._intolerable, np.int64)

    def _intolerable(self, taints: tuple[Taint, ...]) -> int:
        return sum(
            taint.effect == "PreferNoSchedule" and not tolerated(self._tolerations, taint) for taint in taints
        )
