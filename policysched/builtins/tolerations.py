"""Matching of tolerations and taints. Source: `Toleration.ToleratesTaint` in k8s.io/api/core/v1."""

from collections.abc import Iterable

from policysched.model.nodes import Taint
from policysched.model.pods import Toleration


def tolerated(tolerations: Iterable[Toleration], taint: Taint) -> bool:
    return any(_tolerates(toleration, taint) for toleration in tolerations)


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    """An empty effect or key matches all; only `Equal` compares values."""
    if toleration.effect not in ("", taint.effect) or toleration.key not in ("", taint.key):
        return False
    if toleration.operator in ("", "Equal"):
        return toleration.value == taint.value
    return toleration.operator == "Exists"
