"""Matching of tolerations and taints. Source: `Toleration.ToleratesTaint` in k8s.io/api/core/v1."""

from collections.abc import Iterable

from policysched.model.nodes import Taint
from policysched.model.pods import Toleration


class TolerationIndex:
    """A pod's tolerations, so that a taint costs a few lookups however many there are."""

    def __init__(self, tolerations: Iterable[Toleration]) -> None:
        self._exists: set[tuple[str, str]] = set()
        self._equal: set[tuple[str, str, str]] = set()
        for toleration in tolerations:
            if toleration.operator in ("", "Equal"):
                self._equal.add((toleration.key, toleration.effect, toleration.value))
            elif toleration.operator == "Exists":
                self._exists.add((toleration.key, toleration.effect))

    def tolerates(self, taint: Taint) -> bool:
        """An empty effect or key matches all; only `Equal` compares values."""
        return any(
            (key, effect) in self._exists or (key, effect, taint.value) in self._equal
            for key in (taint.key, "")
            for effect in (taint.effect, "")
        )
