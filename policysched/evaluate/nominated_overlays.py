"""Overlays with nominated pods that are kept between decisions.

Most decisions in a row have the same nominated pods, and to add hundreds of them to an overlay and remove them again takes
milliseconds. So an overlay with all of them is kept, and follows the cluster. It serves where the pods on a node change
nothing for other nodes (`nominated_rows`), and for each of the nominated pods themselves, too.
"""

from collections.abc import Callable, Collection

from policysched.evaluate.columns.overlay import Overlay
from policysched.model.identifiers import NodeName, PodUid
from policysched.model.pods import Pod

_KEPT_MAX = 4
_NominatedPods = Collection[tuple[Pod, NodeName]]
_ById = dict[PodUid, tuple[Pod, NodeName]]


class NominatedOverlays:
    """The overlays of the last few sets of nominated pods: those that compete with a pod depend on its priority."""

    def __init__(self, new_overlay: Callable[[], Overlay]) -> None:
        self._new_overlay = new_overlay
        self._kept: list[tuple[_ById, Overlay]] = []  # the last used one first

    def find(
        self, pod: Pod, nominated_node: NodeName | None, nominated_pods: _NominatedPods, base: Overlay | None
    ) -> tuple[Overlay, Overlay | None, int | None] | None:
        """An overlay for some of the pods that are nominated beside this one, and one with all of them, which is only read and
        only until the cluster changes; no second one if there is a `base`. It has the pod itself, too, if that is nominated: the
        third value is its row there. None: there are no pods."""
        if not nominated_pods:
            return None
        overlay = base or self._new_overlay()
        all_pods = {
            other.uid: (other, node)
            for other, node in nominated_pods
            if overlay.may_add(other.uid, node)  # its node can be gone
        }
        if base is not None or len(all_pods) < len(nominated_pods):
            return overlay, None, None
        if nominated_node is not None and overlay.may_add(pod.uid, nominated_node):
            all_pods[pod.uid] = pod, nominated_node
        with_all = self._with_all(all_pods)
        return overlay, with_all, with_all.row_of_added(pod.uid)

    def _with_all(self, wanted: _ById) -> Overlay:
        found = next((overlay for pods, overlay in self._kept if pods == wanted), None)
        others = [kept for kept in self._kept if kept[1] is not found]
        if found is None or not found.follow():
            found = self._new_overlay()
            for pod, node in wanted.values():
                found.add_pod(pod, node)
        self._kept = [(wanted, found), *others[: _KEPT_MAX - 1]]
        return found
