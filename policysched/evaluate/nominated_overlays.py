"""Overlays with nominated pods that are kept between decisions.

Most decisions in a row have the same nominated pods, and to add hundreds of them to an overlay and remove them again takes
milliseconds. So an overlay with all of them is kept, and follows the cluster. It serves where the pods on a node change
nothing for other nodes (`nominated_rows`).
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from policysched.evaluate.columns.overlay import Overlay
from policysched.model.identifiers import NodeName
from policysched.model.pods import Pod

_KEPT_MAX = 4
_NominatedPods = Collection[tuple[Pod, NodeName]]


@dataclass(slots=True)
class _Kept:
    """`overlay` None: these pods were asked for once."""

    pods: list[tuple[Pod, NodeName]]
    overlay: Overlay | None = None


class NominatedOverlays:
    """The overlays of the last few sets of nominated pods: those that compete with a pod depend on its priority."""

    def __init__(self, new_overlay: Callable[[], Overlay]) -> None:
        self._new_overlay = new_overlay
        self._kept: list[_Kept] = []  # the last used one first

    def find(
        self, nominated_pods: _NominatedPods, base: Overlay | None, *, keep: bool
    ) -> tuple[Overlay, Overlay | None] | None:
        """An overlay for some of the pods, and one with all of them, which is only read and only until the cluster changes.
        That is made for the second decision with the same pods, on no `base` and with `keep`. None: there are no pods."""
        if not nominated_pods:
            return None
        return base or self._new_overlay(), self._with_all(nominated_pods) if keep and base is None else None

    def _with_all(self, nominated_pods: _NominatedPods) -> Overlay | None:
        wanted = list(nominated_pods)
        found = next((kept for kept in self._kept if kept.pods == wanted), None)
        others = [kept for kept in self._kept if kept is not found]
        self._kept = [found or _Kept(wanted), *others[: _KEPT_MAX - 1]]
        if found is None or len({pod.uid for pod, _ in wanted}) < len(wanted):
            return None
        if found.overlay is None or not found.overlay.follow():
            found.overlay = self._new_overlay()
            for pod, node in wanted:
                found.overlay.add_pod(pod, node)
        return found.overlay
