"""Pods already placed that may refuse a newcomer: required anti-affinity, which no built-in covers yet.

kube-scheduler's inter-pod affinity works both ways: a placed pod's required anti-affinity keeps matching pods out of
its topology domain. Until a built-in evaluates it, a pod that any such term selects stays pending, with words that
name the pod that holds the term: never bound wrongly in silence. Terms are few and shared by replicas, so they are
kept by value, under the namespaces in which they select.
"""

from policysched.cluster.objects import AntiAffinityTerm, LabelSelector, ObservedPod, Pod, PodUid, Requirement
from policysched.lang.message import ANTI_AFFINITY_OF_OTHERS

_EVERY_NAMESPACE = None


class PlacedTerms:
    """The required anti-affinity terms of placed pods, and who holds them.

    A term is held from the moment its pod is seen on a node until the pod is gone or finished.
    """

    def __init__(self) -> None:
        self._by_namespace: dict[str | None, dict[AntiAffinityTerm, dict[PodUid, str]]] = {}
        self._held: dict[PodUid, tuple[AntiAffinityTerm, ...]] = {}

    def put(self, seen: ObservedPod) -> None:
        """What the API server says of a pod, placed or not."""
        self.drop(seen.pod.uid)
        if seen.node is None or seen.finished or not seen.pod.anti_affinity:
            return
        terms_once = tuple(dict.fromkeys(seen.pod.anti_affinity))
        self._held[seen.pod.uid] = terms_once
        for term in terms_once:
            for space in _spaces(term):
                terms = self._by_namespace.setdefault(space, {})
                terms.setdefault(term, {})[seen.pod.uid] = seen.pod.full_name

    def drop(self, uid: PodUid) -> None:
        for term in self._held.pop(uid, ()):
            for space in _spaces(term):
                terms = self._by_namespace[space]
                del terms[term][uid]
                if not terms[term]:
                    del terms[term]
                if not terms:
                    del self._by_namespace[space]

    def refusing(self, pod: Pod) -> str | None:
        """Why the pod stays pending, or None where no placed pod's term selects it."""
        if not self._by_namespace:
            return None
        for space in (_EVERY_NAMESPACE, pod.namespace):
            for term, holders in self._by_namespace.get(space, {}).items():
                if selects(term.selector, pod):
                    holder = next(iter(holders.values()))
                    return f"{ANTI_AFFINITY_OF_OTHERS}: {holder}"
        return None


def _spaces(term: AntiAffinityTerm) -> tuple[str | None, ...]:
    return (_EVERY_NAMESPACE,) if term.namespaces is None else tuple(dict.fromkeys(term.namespaces))


def selects(selector: LabelSelector, pod: Pod) -> bool:
    """Whether a metav1.LabelSelector matches the pod's labels."""
    return all(_holds(requirement, pod) for requirement in selector.requirements)


def _holds(requirement: Requirement, pod: Pod) -> bool:
    value = pod.labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value in requirement.values
        case "NotIn":
            return value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt":
            # No label selector has these; the API server refuses them. It may refuse the pod as far as we can tell.
            return True
