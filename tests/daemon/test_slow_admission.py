"""Objects without a namespace that raise one after another: others are scheduled between two new lists."""

from collections.abc import Callable, Iterable
from itertools import pairwise

from policysched.daemon.failed_objects import NAMESPACE_FAILURES_MAX, FailedObjects
from policysched.daemon.slow_admission import FAILURES_MAX, PAUSE_NS
from policysched.model.identifiers import NodeName
from policysched.model.storage import CsiNode
from policysched.scheduler import events as e
from policysched.scheduler.limits import SECOND_NS
from tests.builders import node
from tests.volumes import csi_node, volume

ERROR = OverflowError("planted")
GOOD = [f"good-{number}" for number in range(60)]
BAD = [f"bad-{number}" for number in range(20)]
MIXED = [name for pair in zip(BAD, GOOD[:20], strict=True) for name in pair] + GOOD[20:]


class Cluster:
    """What an app has applied. `raised_ns`: when it was made anew, each time with a new list."""

    def __init__(self, events: Iterable[e.Event], raises: Callable[[e.Event], bool]) -> None:
        self.objects, self.now_ns = FailedObjects(), 0
        self.events, self._raises = list(events), raises
        self.applied: list[e.Event] = []
        self.raised_ns: list[int] = []

    def read(self) -> None:
        """Read the cluster until nothing raises."""
        while True:
            self.objects.begin()
            self.applied = []
            if all(map(self.apply, self.events)):
                return

    def apply(self, event: e.Event) -> bool:
        admitted = self.objects.admit(event, self.now_ns)
        if admitted is None:
            return True
        if self._raises(admitted):
            assert self.objects.note(event, ERROR, self.now_ns)
            self.raised_ns.append(self.now_ns)
            return False
        self.applied.append(admitted)
        return True

    def wait(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now_ns += SECOND_NS
            if not all(map(self.apply, self.objects.take_due(self.now_ns))):
                self.read()


def names(events: Iterable[e.Event]) -> set[str]:
    return {event.node.name for event in events if isinstance(event, e.NodeUpdated)}


def is_bad(event: e.Event) -> bool:
    return isinstance(event, e.NodeUpdated) and event.node.name.startswith("bad")


def test_nodes_that_raise_are_found_with_pauses_and_those_that_were_applied_stay() -> None:
    cluster = Cluster((e.NodeUpdated(node(name)) for name in MIXED), is_bad)

    cluster.read()
    assert cluster.raised_ns == [0] * FAILURES_MAX, "some are found one after another"
    served = names(cluster.applied)
    assert served == set(GOOD[: FAILURES_MAX - 1])
    waiting = len(MIXED) - FAILURES_MAX - len(served)
    assert cluster.objects.counts(0) == {"Node": FAILURES_MAX, "not tried yet": waiting}

    for _ in range(60):
        cluster.wait(60)
        assert served <= names(cluster.applied)
        served = names(cluster.applied)
        if len(cluster.raised_ns) == len(BAD):
            break
    cluster.wait(120)
    assert names(cluster.applied) == set(GOOD)
    later_ns = cluster.raised_ns[FAILURES_MAX - 1 :]
    assert len(later_ns) == len(BAD) - FAILURES_MAX + 1
    assert all(after - before >= PAUSE_NS for before, after in pairwise(later_ns))


def test_without_more_failures_thousands_of_nodes_are_there_after_a_minute() -> None:
    many = [*BAD[:FAILURES_MAX], *(f"good-{number}" for number in range(5_000))]
    cluster = Cluster((e.NodeUpdated(node(name)) for name in many), is_bad)

    cluster.read()
    cluster.wait(100)

    assert len(cluster.applied) == 5_000
    assert len(cluster.raised_ns) == FAILURES_MAX


def test_a_node_that_is_created_again_and_again_has_to_wait() -> None:
    cluster = Cluster((e.NodeUpdated(node(name)) for name in BAD[:FAILURES_MAX]), is_bad)
    cluster.read()

    for number in range(600):
        cluster.apply(e.NodeDeleted(NodeName("bad-0")))
        if not cluster.apply(e.NodeUpdated(node("bad-0"))):
            cluster.read()
        cluster.wait(1)
        assert len(cluster.raised_ns) <= FAILURES_MAX + 1 + number * SECOND_NS // PAUSE_NS


def test_a_node_is_admitted_with_its_csi_node() -> None:
    both = [(e.NodeUpdated(node(name)), e.StorageObjectUpdated(csi_node(name))) for name in MIXED]
    csi_nodes_of_bad = [e.StorageObjectUpdated(csi_node(name)) for name in BAD]
    cluster = Cluster((event for pair in both for event in pair), lambda event: event in csi_nodes_of_bad)

    cluster.read()
    for _ in range(20):
        cluster.wait(30)
        stored = [
            event.storage_object for event in cluster.applied if isinstance(event, e.StorageObjectUpdated)
        ]
        assert {each.name for each in stored if isinstance(each, CsiNode)} == names(cluster.applied)


def test_volumes_count_for_the_namespaces_of_their_claims() -> None:
    of_tenant = [e.StorageObjectUpdated(volume(f"v{number}", claim=f"c{number}")) for number in range(9)]
    other = e.StorageObjectUpdated(volume("free"))
    cluster = Cluster([*of_tenant, other], lambda event: event in of_tenant)

    cluster.read()

    assert len(cluster.raised_ns) == NAMESPACE_FAILURES_MAX
    assert cluster.applied == [other]
    assert "all of a namespace" in cluster.objects.counts(0)
    cluster.apply(e.StorageObjectDeleted("PersistentVolume", "", "v0"))
    assert cluster.objects.counts(0)["PersistentVolume"] == NAMESPACE_FAILURES_MAX - 1
