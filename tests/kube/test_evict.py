"""Evictions on the way to the API server: in which order, what is repeated, and what every answer means."""

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from random import Random
from typing import Any

import orjson
import pytest

from policysched.kube.client.api import MESSAGE_CHARACTERS_MAX, ApiClient
from policysched.kube.client.connectivity import Connectivity
from policysched.kube.client.server_probe import ServerProbe
from policysched.kube.client.transport import ApiRequest, ApiResponse, TransportError
from policysched.kube.write.evict import EvictionOutcome, Evictor
from policysched.model.identifiers import NodeName, PodUid
from policysched.sandbox.faults import FaultRates
from policysched.scheduler.commands import ClearNomination, Evict, Victim
from policysched.scheduler.events import Evicted, EvictionRefused
from tests.kube.world import Script, World, on_virtual_time, running, until, writers

OK = (200, {"kind": "Pod", "metadata": {}})
GONE = (404, {"kind": "Status", "reason": "NotFound", "message": "pods not found"})
OTHER = (409, {"kind": "Status", "reason": "Conflict", "message": "the UID in the precondition"})
DENIED = 'pods "one" is forbidden: User "system:serviceaccount:policysched:policysched" cannot delete resource "pods"'
FORBIDDEN = (403, {"kind": "Status", "reason": "Forbidden", "message": DENIED})
BROKEN = (500, {"kind": "Status", "reason": "InternalError", "message": "etcd"})

BROKEN_ANSWER = (BROKEN[0], orjson.dumps(BROKEN[1]))

ONE = Victim(PodUid("u1"), "default", "one")
TWO = Victim(PodUid("u2"), "default", "two")


def evict(*victims: Victim) -> Evict:
    return Evict(PodUid("u0"), "default", "high", "test", NodeName("a"), victims)


class Bench:
    """An Evictor at work, and its outcomes."""

    def __init__(self, api: ApiClient, may_send: Any = lambda: True, fence: Any = lambda: None) -> None:
        self.outcomes: list[EvictionOutcome] = []
        self.connectivity = Connectivity(lambda: 0.0)
        self.evictor = Evictor(
            api,
            self.outcomes.append,
            random=Random(1),
            connectivity=self.connectivity,
            now_ns=lambda: 1_800_000_000 * 10**9,
            may_send=may_send,
            fence=fence,
        )

    async def outcome(self, command: Evict, within_s: float = 120.0) -> EvictionOutcome:
        async with running(self.evictor.run()):
            self.evictor.put(command)
            await until(lambda: self.outcomes, "the outcome", within_s=within_s)
        (outcome,) = self.outcomes
        return outcome


def sent_requests(script: Script) -> list[tuple[str, str]]:
    return [
        (request.method, request.path.removeprefix("/api/v1/namespaces/default/pods/"))
        for request in script.requests
    ]


def answered(*answers: Any, victims: tuple[Victim, ...] = (ONE, TWO)) -> tuple[EvictionOutcome, Script]:
    script = Script(answers)
    outcomes: list[EvictionOutcome] = []

    async def scenario() -> None:
        outcomes.append(await Bench(ApiClient(script)).outcome(evict(*victims)))

    on_virtual_time(scenario)
    return outcomes[0], script


def test_a_victims_condition_has_the_observed_generation_if_the_pod_has_one() -> None:
    _, script = answered(OK, victims=(replace(ONE, generation=3), TWO))

    marks = [orjson.loads(request.body)["status"] for request in script.requests if request.method == "PATCH"]
    generations = [mark["conditions"][0].get("observedGeneration") for mark in marks if "conditions" in mark]
    assert generations == [3, None]


def test_the_pod_is_nominated_before_each_victim_is_marked_and_deleted() -> None:
    outcome, script = answered(OK)

    assert outcome == Evicted(PodUid("u0"), (ONE.uid, TWO.uid))
    assert sent_requests(script) == [
        ("DELETE", "one"),
        ("PATCH", "high/status"),
        ("PATCH", "one/status"),
        ("DELETE", "one"),
        ("PATCH", "two/status"),
        ("DELETE", "two"),
    ]
    rehearsed, nominated, marked, deleted = (
        orjson.loads(request.body or b"") for request in script.requests[:4]
    )
    assert rehearsed == {**deleted, "dryRun": ["All"]}
    assert nominated == {"metadata": {"uid": "u0"}, "status": {"nominatedNodeName": "a"}}
    (condition,) = marked["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"], condition["message"]) == (
        *("DisruptionTarget", "True", "PreemptionByScheduler"),
        "test: preempting to accommodate a higher priority pod",
    )
    assert deleted["preconditions"] == {"uid": "u1"}
    assert "gracePeriodSeconds" not in deleted, "a victim has the time that it asked for"


def test_no_victim_is_deleted_after_a_stall_of_this_process() -> None:
    """The first one was deleted before it. The preemptor is decided anew."""

    async def scenario() -> None:
        script = Script([OK])

        def is_current() -> bool:
            return ("DELETE", "one") not in sent_requests(script)[1:]  # the first is the dry run

        outcome = await Bench(ApiClient(script), fence=lambda: is_current).outcome(evict(ONE, TWO))

        assert isinstance(outcome, EvictionRefused) and "stalled" in outcome.reason
        assert outcome.victims == (ONE.uid,)
        assert sent_requests(script)[-1] == ("DELETE", "one")

    on_virtual_time(scenario)


def test_a_victim_that_is_deleted_or_replaced_is_skipped() -> None:
    outcome, _ = answered(OK, OK, GONE, OK, OTHER)

    assert outcome == Evicted(PodUid("u0"), ())


def test_nothing_is_evicted_for_a_deleted_pod() -> None:
    outcome, script = answered(OK, GONE)

    assert isinstance(outcome, EvictionRefused) and not outcome.forbidden
    assert sent_requests(script) == [("DELETE", "one"), ("PATCH", "high/status")]


def test_a_forbidden_request_ends_the_eviction_and_reports_the_victims_evicted_so_far() -> None:
    outcome, script = answered(OK, OK, OK, OK, OK, FORBIDDEN)

    assert outcome == EvictionRefused(PodUid("u0"), DENIED, forbidden=True, victims=(ONE.uid,))
    assert sent_requests(script)[-1] == ("DELETE", "two")


def test_a_refused_eviction_also_reports_the_victims_that_were_gone() -> None:
    outcome, _ = answered(OK, OK, GONE, OK, FORBIDDEN)

    assert outcome == EvictionRefused(PodUid("u0"), DENIED, forbidden=True, gone=(ONE.uid,))


def test_without_permission_to_delete_pods_nothing_is_written() -> None:
    outcome, script = answered(FORBIDDEN)

    assert outcome == EvictionRefused(PodUid("u0"), DENIED, forbidden=True)
    assert sent_requests(script) == [("DELETE", "one")]
    assert orjson.loads(script.requests[0].body or b"")["dryRun"] == ["All"]


def test_a_403_of_a_webhook_is_no_lack_of_permissions() -> None:
    """It would stop the evictions of everybody for a while."""
    message = f'admission webhook "pods.example.com" denied the request: {DENIED}'
    outcome, _ = answered((403, {"kind": "Status", "reason": "Forbidden", "message": message}))

    assert outcome == EvictionRefused(PodUid("u0"), message, forbidden=False, refused=ONE.uid)


@pytest.mark.parametrize(
    ("status", "text"),
    [(404, "not found"), (409, "the UID"), (410, "gone"), (422, "metadata.uid: Invalid"), (429, "later")],
)
def test_a_victim_is_not_gone_because_its_webhook_says_so(status: int, text: str) -> None:
    """Whoever evicted it waited for its end for ever, and was never to evict another pod."""
    message = f'admission webhook "pods.example.com" denied the request: {text}{"!" * 1_000_000}'
    denial = (status, {"kind": "Status", "message": message})

    outcome, _ = answered(OK, OK, OK, denial)

    assert isinstance(outcome, EvictionRefused)
    assert (outcome.refused, outcome.victims, outcome.gone) == (ONE.uid, (), ())
    assert outcome.reason == message[:MESSAGE_CHARACTERS_MAX]


def test_a_refusal_names_the_victim_that_the_server_did_not_delete() -> None:
    denial = (403, {"kind": "Status", "reason": "Forbidden", "message": "admission webhook denied it"})
    failing, _ = answered(OK, OK, OK, OK, OK, *[BROKEN] * 100)
    denied, _ = answered(OK, OK, OK, OK, OK, denial)
    nomination, _ = answered(OK, denial)

    assert [each.refused for each in (failing, denied, nomination) if isinstance(each, EvictionRefused)] == [
        *(TWO.uid, TWO.uid, None)
    ]


class DenyingNamespace(Script):
    """A webhook denies each deletion in the namespace `denying`, but for the dry run."""

    async def request(self, request: ApiRequest) -> ApiResponse:
        if (
            request.method == "DELETE"
            and "/namespaces/denying/" in request.path
            and b"dryRun" not in request.body
        ):
            return ApiResponse(403, orjson.dumps({"kind": "Status", "message": "a webhook denied it"}), {})
        return await super().request(request)


def test_no_pod_of_others_is_deleted_again_before_one_of_a_namespace_that_refused() -> None:
    """Whoever evicts both gets no room, so each time the pod of others was deleted in vain."""

    async def scenario() -> None:
        bench = Bench(ApiClient(DenyingNamespace([OK])))
        denying = Victim(PodUid("v"), "denying", "v")
        async with running(bench.evictor.run()):
            for number, victim in enumerate((ONE, TWO)):
                bench.evictor.put(replace(evict(victim, denying), uid=PodUid(f"high-{number}")))
                await until(lambda wanted=number + 1: len(bench.outcomes) == wanted, "the outcome")
        first, second = bench.outcomes
        assert isinstance(first, EvictionRefused) and isinstance(second, EvictionRefused)
        assert (first.refused, first.victims) == (denying.uid, (ONE.uid,))
        assert (second.refused, second.victims) == (denying.uid, ())

    on_virtual_time(scenario)


class HangingNamespace(Script):
    """A webhook answers no write in the namespace `hanging`."""

    async def request(self, request: ApiRequest) -> ApiResponse:
        if "/namespaces/hanging/" in request.path:
            await asyncio.sleep(7)
            raise TransportError("no answer")
        return await super().request(request)


class LateErrors(Script):
    """What the API server says of such a webhook once the time-out of the request is over."""

    async def request(self, request: ApiRequest) -> ApiResponse:
        if "/namespaces/hanging/" in request.path:
            await asyncio.sleep(5)
            return ApiResponse(*BROKEN_ANSWER, {})
        return await super().request(request)


def test_victims_whose_webhook_hangs_delay_no_eviction_of_other_namespaces() -> None:
    async def scenario() -> None:
        bench = Bench(ApiClient(HangingNamespace([OK])))
        async with running(bench.evictor.run()):
            for index in range(20):
                hanging = Victim(PodUid(f"v{index}"), "hanging", f"v{index}")
                bench.evictor.put(replace(evict(hanging), uid=PodUid(f"h{index}")))
                bench.evictor.put(ClearNomination(PodUid(f"c{index}"), "hanging", f"c{index}"))
            await asyncio.sleep(10)
            assert not bench.outcomes
            bench.evictor.put(evict(ONE))
            await until(lambda: bench.outcomes, "the eviction in another namespace", within_s=1)
        assert bench.outcomes == [Evicted(PodUid("u0"), (ONE.uid,))]

    on_virtual_time(scenario)


def test_nothing_is_begun_for_pods_that_are_gone() -> None:
    """Of a pod that came and went each second, a thousand evictions waited after twenty minutes."""

    async def scenario() -> None:
        bench = Bench(ApiClient(HangingNamespace([OK])))
        async with running(bench.evictor.run()):
            for number in range(30):
                uid = PodUid(f"h{number}")
                bench.evictor.put(Evict(uid, "hanging", uid, "test", NodeName("a"), (ONE,)))
                bench.evictor.put(ClearNomination(uid, "hanging", uid))
                await asyncio.sleep(0.1 * (number % 2))  # it may be gone before its turn comes
                bench.evictor.abandon(uid)
            assert bench.evictor.in_flight == bench.evictor._turns._size <= 2
            answered = [each.preemptor for each in bench.outcomes if isinstance(each, EvictionRefused)]
            assert len(answered) == 30 - bench.evictor.in_flight
            await until(lambda: not bench.evictor.in_flight, "those that were begun")
            assert len(bench.outcomes) == 30

    on_virtual_time(scenario)


def test_a_victim_whose_webhook_hangs_is_given_up_soon() -> None:
    """Its preemptor could evict others. Before, it waited for 36 s, for each of three such victims."""

    async def scenario() -> None:
        bench = Bench(ApiClient(LateErrors([OK])))
        hanging = Victim(PodUid("v"), "hanging", "v")
        outcome = await bench.outcome(evict(hanging), within_s=11)  # of the dry run, and of the condition
        assert isinstance(outcome, EvictionRefused) and outcome.refused == hanging.uid

    on_virtual_time(scenario)


class ClosedConnections(Script):
    """What the API server does at the code 5000 of a webhook in the namespace `hanging`. `all_closed`: it is down."""

    all_closed = False

    async def request(self, request: ApiRequest) -> ApiResponse:
        await asyncio.sleep(0.01)
        if self.all_closed or "/namespaces/hanging/" in request.path:
            raise TransportError("connection closed")
        return await super().request(request)


@pytest.mark.parametrize("all_closed", [False, True])
def test_a_victim_whose_webhook_has_the_server_close_connections_is_given_up_soon(all_closed: bool) -> None:
    """Its preemptor waited for 27 s and then chose the same pod again, for ever. Of a server that is down nobody is to blame."""

    async def scenario() -> None:
        script = ClosedConnections([OK])
        script.all_closed = all_closed
        bench = Bench(ApiClient(script))
        hanging = Victim(PodUid("v"), "hanging", "v")
        async with running(ServerProbe(ApiClient(script), bench.connectivity).run()):
            outcome = await bench.outcome(evict(hanging), within_s=30 if all_closed else 6)
        assert isinstance(outcome, EvictionRefused)
        assert outcome.refused == (None if all_closed else hanging.uid)

    on_virtual_time(scenario)


def test_evictions_of_a_hanging_namespace_in_ever_other_ones_are_slow_together() -> None:
    """Each pair of namespaces had to become slow by itself: others waited for 5 s beside 40, for 25 s beside 200."""

    async def scenario() -> None:
        bench = Bench(ApiClient(HangingNamespace([OK])))
        async with running(bench.evictor.run()):
            for index in range(40):
                victim = Victim(PodUid(f"v{index}"), f"namespace-{index}", "v")
                bench.evictor.put(
                    Evict(PodUid(f"h{index}"), "hanging", f"h{index}", "test", NodeName("a"), (victim,))
                )
            await asyncio.sleep(0.1)
            bench.evictor.put(evict(ONE))
            await until(lambda: bench.outcomes, "the eviction in another namespace", within_s=1.5)
        assert bench.outcomes == [Evicted(PodUid("u0"), (ONE.uid,))]

    on_virtual_time(scenario)


class LateNamespace(Script):
    """A webhook answers writes in the namespace `late` after one and a half seconds, elsewhere after a fifth of one."""

    async def request(self, request: ApiRequest) -> ApiResponse:
        await asyncio.sleep(1.5 if "/namespaces/late/" in request.path else 0.2)
        return await super().request(request)


def test_of_the_namespaces_of_a_command_only_the_late_one_becomes_slow() -> None:
    """The last request can be of others, and so can most of them."""
    slow = list[str]()

    async def scenario() -> None:
        bench = Bench(ApiClient(LateNamespace([OK])))
        late = Victim(PodUid("u1"), "late", "one")
        prompt = [Victim(PodUid(f"p{number}"), "prompt", f"p{number}") for number in range(20)]
        await bench.outcome(evict(late, *prompt))
        slow.extend(
            name for name in ("default", "late", "prompt") if name in bench.evictor._turns._slow_lately
        )

    on_virtual_time(scenario)

    assert slow == ["late"]


def test_delete_is_dry_run_once_for_each_namespace_until_it_is_forbidden() -> None:
    elsewhere = replace(TWO, namespace="other")
    script = Script([*[OK] * 10, FORBIDDEN, OK])
    rehearsed: list[list[str]] = []

    async def scenario() -> None:
        bench = Bench(ApiClient(script))
        async with running(bench.evictor.run()):
            for victims in ((ONE, TWO, elsewhere), (ONE,), (ONE,)):
                before, outcomes = len(script.requests), len(bench.outcomes)
                bench.evictor.put(evict(*victims))
                await until(lambda outcomes=outcomes: len(bench.outcomes) > outcomes, "the outcome")  # type: ignore[misc]
                rehearsed.append(
                    [
                        request.path
                        for request in script.requests[before:]
                        if b"dryRun" in (request.body or b"")
                    ]
                )

    on_virtual_time(scenario)

    pods = "/api/v1/namespaces/{}/pods/{}"
    assert rehearsed == [
        [pods.format("default", "one"), pods.format("other", "two")],
        [],
        [pods.format("default", "one")],
    ]


def test_namespaces_that_were_evicted_from_once_are_forgotten() -> None:
    """Else each of a tenant's that come and go stayed for ever."""
    script = Script([OK])
    known: list[int] = []

    async def scenario() -> None:
        bench = Bench(ApiClient(script))
        async with running(bench.evictor.run()):
            for number in range(40):
                bench.evictor.put(evict(Victim(PodUid(f"v{number}"), f"tenant-{number}", "one")))
                await until(lambda number=number: len(bench.outcomes) > number, "the outcome")  # type: ignore[misc]
                await asyncio.sleep(60)
                deletable = bench.evictor._deletable_namespaces
                known.append(sum(f"tenant-{each}" in deletable for each in range(40)))

    on_virtual_time(scenario)

    assert known == [*range(1, 11), *[10] * 30]


def test_a_dry_run_refused_for_another_reason_does_not_prevent_the_delete() -> None:
    unable = (400, {"kind": "Status", "reason": "BadRequest", "message": "webhook does not support dry run"})

    outcome, _ = answered(unable, OK, victims=(ONE,))

    assert outcome == Evicted(PodUid("u0"), (ONE.uid,))


def test_a_request_without_a_response_is_retried_unchanged() -> None:
    outcome, script = answered(OK, OK, OK, TransportError("cut"), BROKEN, OK, victims=(ONE,))

    assert outcome == Evicted(PodUid("u0"), (ONE.uid,))
    assert sent_requests(script)[3:] == [("DELETE", "one")] * 3
    assert len({request.body for request in script.requests[3:]}) == 1


def test_an_eviction_without_a_response_is_given_up_after_a_while() -> None:
    outcome, script = answered(OK, OK, TransportError("cut"), victims=(ONE,))

    assert isinstance(outcome, EvictionRefused) and "no response within 30 s" in outcome.reason
    assert len(script.requests) > 5


def test_no_eviction_is_sent_without_leadership() -> None:
    script = Script([OK])

    async def scenario() -> None:
        outcome = await Bench(ApiClient(script), may_send=lambda: False).outcome(evict(ONE))
        assert isinstance(outcome, EvictionRefused)

    on_virtual_time(scenario)

    assert script.requests == []


def test_nominations_of_one_pod_are_written_in_order() -> None:
    script = Script([OK])

    async def scenario() -> None:
        bench = Bench(ApiClient(script))
        bench.evictor.put(evict())
        bench.evictor.put(ClearNomination(PodUid("u0"), "default", "high"))
        async with running(bench.evictor.run()):
            await until(lambda: not bench.evictor.in_flight, "both")

    on_virtual_time(scenario)

    nodes = [orjson.loads(request.body or b"")["status"]["nominatedNodeName"] for request in script.requests]
    assert nodes == ["a", None]


class BrokenForAWhile(Script):
    async def request(self, request: ApiRequest) -> ApiResponse:
        answer = await super().request(request)
        return answer if asyncio.get_running_loop().time() > 20.0 else ApiResponse(*BROKEN_ANSWER)


def test_a_nomination_is_cleared_although_the_server_has_errors_for_a_while() -> None:
    """Nobody waits for it. It was given up after 5 s, as the write of an eviction (simulation seed 400809)."""
    script = BrokenForAWhile([OK])

    async def scenario() -> None:
        bench = Bench(ApiClient(script))
        async with running(bench.evictor.run()):
            bench.evictor.put(ClearNomination(PodUid("u0"), "default", "high"))
            await until(lambda: not bench.evictor.in_flight, "the write")
            assert asyncio.get_running_loop().time() > 20.0

    on_virtual_time(scenario)


def test_a_nomination_that_is_cleared_again_and_again_while_requests_hang_is_one_command() -> None:
    async def scenario() -> None:
        evictor = Bench(ApiClient(HangingNamespace([OK]))).evictor
        async with running(evictor.run()):
            for _ in range(100):
                evictor.put(ClearNomination(PodUid("h"), "hanging", "h"))
                await asyncio.sleep(0.1)
            assert evictor.in_flight == 2, "one is being sent, and one follows it"

    on_virtual_time(scenario)


def test_over_a_faulty_transport_each_victim_is_evicted_once_and_no_other_pod() -> None:
    bad = FaultRates(
        latency_s=0.01, latency_spread_s=0.1, lost_before_share=0.2, lost_after_share=0.2, duplicate_share=0.1
    )

    async def scenario() -> None:
        world = World()
        high = world.add_pod("high")
        pods = [world.add_pod(f"v{number}") for number in range(10)]
        bystander = world.add_pod("bystander")
        world.local.delete("pods", pods[0], grace_period_s=0)
        world.add_pod("v0")  # another pod of the same name
        victims = [Victim(PodUid(pod["metadata"]["uid"]), "default", pod["metadata"]["name"]) for pod in pods]
        bench = Bench(world.api(bad, seed=3))

        outcome = await bench.outcome(
            Evict(PodUid(high["metadata"]["uid"]), "default", "high", "test", NodeName("a"), tuple(victims)),
            within_s=900,
        )
        await asyncio.sleep(60)

        assert isinstance(outcome, Evicted), outcome
        left = {pod["metadata"]["name"] for pod in world.local.list("pods")}
        assert left == {"high", "v0", bystander["metadata"]["name"]}
        assert world.pod("high")["status"]["nominatedNodeName"] == "a"

    on_virtual_time(scenario)


def test_an_eviction_without_a_node_nominates_no_pod_and_says_why() -> None:
    script = Script([OK, OK, OK])
    command = replace(evict(ONE), node=None, message="gang default/train is incomplete")
    bench = Bench(ApiClient(script))
    on_virtual_time(lambda: _ignored(bench.outcome(command)))

    assert [method for method, _ in sent_requests(script)] == ["DELETE", "PATCH", "DELETE"]
    condition = orjson.loads(script.requests[1].body or b"")["status"]["conditions"][0]
    assert condition["message"] == "test: gang default/train is incomplete"


async def _ignored(outcome: Awaitable[object]) -> None:
    await outcome


@pytest.mark.parametrize("others_succeed", [True, False])
@pytest.mark.parametrize("is_unauthorized", [False, True])
def test_a_server_that_answers_others_is_not_unreachable(others_succeed: bool, is_unauthorized: bool) -> None:
    """With the code 5000 of a webhook, the API server closes the connection: `/readyz` failed for as long as it did. That it
    does not know the scheduler is nothing that a webhook can cause."""

    async def scenario() -> None:
        connectivity = Connectivity(lambda: 0.0)
        closed = Script(
            [
                (401, {"message": "Unauthorized"})
                if is_unauthorized
                else TransportError("the server closed the connection")
            ]
        )
        _, evictor, _ = writers(ApiClient(closed), Random(1), connectivity)
        async with running(evictor.run()):
            evictor.put(evict(ONE))
            for _ in range(100):
                await asyncio.sleep(0.1)
                if others_succeed:
                    connectivity.record_success("binding pods")
        assert closed.requests
        assert connectivity.failures_total > 3
        assert connectivity.unreachable is (is_unauthorized or not others_succeed)

    on_virtual_time(scenario)
