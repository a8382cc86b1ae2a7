"""Which pods a pod may evict: the policy's `preemption` clause, and the operator's ceiling for all policies. Which
gangs they break."""

from collections.abc import Collection, Hashable, Mapping
from fnmatch import translate
from re import match

from policysched.cluster.cache import ClusterCache
from policysched.lang.ir.program import Program
from policysched.model.identifiers import PodUid
from policysched.model.namespaces import Namespace
from policysched.model.pods import Pod, QueuedPodInfo
from policysched.scheduler.policy_permissions import VictimCeiling
from tests.reference.context import pod_context
from tests.reference.expressions import value
from tests.reference.values import MISSING


def selected_by_policy(
    program: Program,
    preemptor: Pod,
    namespace: Namespace | None,
    victim: Pod,
    *,
    facts: QueuedPodInfo,
    now_ns: int,
    cache: ClusterCache | None = None,
) -> bool:
    """Whether the policy lets the pod evict the victim. A missing condition counts as false."""
    if victim.priority >= preemptor.priority:
        return False
    clause = program.preemption
    if clause.mode == "where":
        assert clause.victims is not None
        context = pod_context(program, preemptor, namespace, now_ns=now_ns, facts=facts, cache=cache)
        return value(clause.victims, context._replace(victim=victim)) is True
    return clause.mode == "any" or (clause.mode == "own" and victim.scheduler == preemptor.scheduler)


def goes_first(
    program: Program,
    preemptor: Pod,
    namespace: Namespace | None,
    pod: Pod,
    other: Pod,
    *,
    facts: QueuedPodInfo,
    now_ns: int,
) -> bool:
    """Whether the policy's `order` puts the victim `one` before `other`: by the first key in which they differ. A missing
    value goes last."""
    context = pod_context(program, preemptor, namespace, now_ns=now_ns, facts=facts, cache=None)
    for key in program.preemption.order:
        of_one, of_other = (value(key.value, context._replace(victim=victim)) for victim in (pod, other))
        if of_one == of_other:
            continue
        if of_one is MISSING or of_other is MISSING:
            return of_other is MISSING
        return of_one > of_other if key.descending else of_one < of_other  # type: ignore[operator]
    return False


def protected_by_settings(ceiling: VictimCeiling, victim: Pod, namespace: Namespace | None) -> bool:
    """Whether no policy may evict the pod, which is in this namespace."""
    classes = set[str]()
    if victim.namespace == "kube-system":
        classes.add("kube-system")
    if "kubernetes.io/config.mirror" in victim.annotations:
        classes.add("static-pods")
    if victim.owner_kind == "DaemonSet" and victim.owner_api.split("/")[0] == "apps":
        classes.add("daemonset-pods")
    if classes & ceiling.protected:
        return True
    if ceiling.priority_max is not None and victim.priority > ceiling.priority_max:
        return True
    names, wanted = ceiling.namespaces.names, dict(ceiling.namespaces.labels)
    if names and not [name for name in names if match(translate(name), victim.namespace)]:
        return True
    labels = dict(namespace.labels) if namespace is not None else {}
    return wanted != {key: labels[key] for key in wanted if key in labels}


def gangs_left_below_minimum(
    members: Mapping[Hashable, Collection[PodUid]],
    minima: Mapping[Hashable, int],
    victims: Collection[PodUid],
) -> list[Hashable]:
    """The gangs of which these victims leave some members, and fewer than the minimum. `members`: those that run."""
    broken = []
    for gang, uids in members.items():
        staying = [uid for uid in uids if uid not in victims]
        if 0 < len(staying) < minima[gang] and len(staying) < len(uids):
            broken.append(gang)
    return broken
