"""How often a pod is reported as pending: rarely where only numbers of its message change."""

from policysched.scheduler import pending_reports
from policysched.scheduler.commands import PendingReason
from policysched.scheduler.limits import SECOND_NS, SchedulerLimits
from policysched.scheduler.pending_reports import PendingReports
from tests.builders import pod

FULL = "0/9 nodes are available: {full} Insufficient cpu, {cordoned} node(s) were unschedulable."


class Told:
    """The reports about one pod, with the second of each."""

    def __init__(self) -> None:
        self.reports = PendingReports(SchedulerLimits())
        self.sent: list[tuple[int, str]] = []

    def tell(self, second: int, message: str, reason: PendingReason = "Unschedulable") -> None:
        self.wait(second)
        now_ns = second * SECOND_NS
        for report in self.reports.report(pod("web"), reason, message, now_ns):
            self.sent.append((second, report.message))

    def wait(self, until_s: int) -> None:
        while (at_ns := self.reports.next_time_ns()) is not None and at_ns <= until_s * SECOND_NS:
            for report in self.reports.due_reports(at_ns, 1):
                self.sent.append((at_ns // SECOND_NS, report.message))

    @property
    def seconds(self) -> list[int]:
        return [second for second, _ in self.sent]


def test_a_count_that_changes_all_the_time_is_reported_at_most_every_five_minutes() -> None:
    told = Told()

    for second in range(2000):
        told.tell(second, f"gang default/train: only {second} of the 5000 needed members exist")
    told.wait(3000)

    assert told.seconds == [0, 10, 30, 70, 150, 310, 610, 910, 1210, 1510, 1810, 2110]
    assert "only 1999 of" in told.sent[-1][1]


def test_later_reports_begin_with_one_that_is_kept_until_the_release() -> None:
    told = Told()
    told.tell(0, "waits")

    told.sent += [
        (0, report.message) for report in told.reports.keep(pod("web"), "SchedulerError", "refused", 0)
    ]
    told.tell(1, "refused", "SchedulerError")
    told.tell(20, "no room")
    told.tell(21, "no room left")
    told.wait(60)
    told.reports.release(pod("web").uid)
    told.wait(70)

    assert [message for _, message in told.sent] == [
        "waits",
        "refused",
        "refused; since then: no room",
        "refused; since then: no room left",
        "no room left",
    ]


def test_what_was_kept_is_dropped_with_a_pod_that_is_placed() -> None:
    told = Told()
    told.reports.keep(pod("web"), "SchedulerError", "refused", 0)
    told.tell(20, "no room")

    told.reports.cancel_deferred(pod("web").uid)
    told.reports.release(pod("web").uid)
    told.wait(100)

    assert told.sent == [(20, "refused; since then: no room")]
    assert not told.reports.kept


def test_the_order_of_reasons_follows_their_counts_and_is_no_other_cause() -> None:
    told = Told()

    told.tell(0, "0/109 nodes are available: 100 Insufficient cpu, 9 node(s) were unschedulable.")
    told.tell(5, "0/109 nodes are available: 10 node(s) were unschedulable, 99 Insufficient cpu.")
    told.wait(60)

    assert told.seconds == [0, 10]


def test_amounts_with_units_are_numbers() -> None:
    told = Told()

    for second in range(60):
        told.tell(second, f'waits for quota team "vision": {second}.5Gi of 64Gi memory used ({second}%)')

    assert told.seconds == [0, 10, 30]


def test_another_cause_is_reported_as_soon_as_before_and_its_counts_start_anew() -> None:
    told = Told()
    for second in range(100):
        told.tell(second, FULL.format(full=second, cordoned=1))

    told.tell(101, 'persistentvolumeclaim "data-1" not found')
    told.tell(111, 'persistentvolumeclaim "data-2" not found')
    told.tell(121, FULL.format(full=1, cordoned=1))
    told.tell(122, FULL.format(full=2, cordoned=1))
    told.wait(300)

    assert told.seconds == [0, 10, 30, 70, 101, 111, 121, 131]


def test_the_same_words_with_another_reason_are_another_cause() -> None:
    told = Told()

    told.tell(0, "1 of 2")
    told.tell(1, "2 of 2", "PolicyPending")

    assert told.seconds == [0, 1]


def test_another_cause_does_not_wait_for_the_time_of_a_deferred_count() -> None:
    told = Told()
    told.tell(0, "1 of 9 exist")
    told.tell(5, "2 of 9 exist")

    told.tell(6, "the namespace may not use the policy")

    assert told.sent == [(0, "1 of 9 exist"), (6, "the namespace may not use the policy")]


def test_a_count_that_is_what_was_reported_again_is_not_repeated() -> None:
    told = Told()
    told.tell(0, "1 of 9 exist")
    told.tell(5, "2 of 9 exist")
    told.tell(7, "1 of 9 exist")
    told.wait(600)

    assert told.seconds == [0]


def test_a_message_that_many_pods_have_is_taken_apart_once() -> None:
    reports, names = PendingReports(SchedulerLimits()), [f"m{number}" for number in range(50)]
    pending_reports._words.cache_clear()

    for at_ns, message in ((0, FULL.format(full=5, cordoned=4)), (1, FULL.format(full=6, cordoned=3))):
        for name in names:
            reports.report(pod(name), "Unschedulable", message, at_ns)

    assert pending_reports._words.cache_info().misses == 2
