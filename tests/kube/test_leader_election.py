"""At most one process leads, whatever faults the transport has, and none decides while a bind of the previous leader may still take effect."""

import asyncio
import logging
from random import Random
from typing import Any
from unittest.mock import patch

import pytest

from policysched.config.settings import NamespacedName
from policysched.daemon.last_good_store import is_first_start
from policysched.kube.client.api import ApiClient
from policysched.kube.client.transport import ApiRequest, ApiResponse, TransportError
from policysched.kube.leader_election import LeaderElector, LeadershipStatus, LeaseSettings
from policysched.sandbox.faults import FaultRates
from policysched.sandbox.transport import MemoryTransport
from tests.kube.world import Failing, World, on_virtual_time, running, until
from tests.simulation.virtual_time import VirtualTimeLoop

LOSSY = FaultRates(
    latency_s=0.05, latency_spread_s=0.3, lost_before_share=0.2, lost_after_share=0.2, late_share=0.1
)


LAST_GOOD = NamespacedName("kube-system", "policies-last-good")


def elector(world: World, name: str, transport: MemoryTransport, seed: int = 0) -> LeaderElector:
    api = ApiClient(transport)
    return LeaderElector(
        api,
        LeaseSettings(),
        identity=name,
        monotonic_s=world.loop.time,
        now_ns=world.now_ns,
        random=Random(f"{name}{seed}"),
        first_start=lambda: is_first_start(api, LAST_GOOD, 4.0),
    )


def lease(world: World) -> dict[str, Any]:
    lease = world.local.get("leases", "kube-system", "policysched")
    assert lease is not None
    return lease


async def storm(seed: int) -> None:
    """Three of us, transports that fail and are unavailable for a while; checked every 50 ms which leads."""
    world, rng = World(), Random(seed)
    transports = [world.transport(LOSSY, seed * 10 + number) for number in range(3)]
    electors = [elector(world, f"e{number}", transport, seed) for number, transport in enumerate(transports)]
    led: set[int] = set()
    async with running(*(elector.run() for elector in electors)):
        for _ in range(4000):
            leading = [number for number, elector in enumerate(electors) if elector.leads()]
            assert len(leading) <= 1, f"{leading} lead at {world.loop.time()}"
            led.update(leading)
            if rng.random() < 0.01:
                rng.choice(transports).refuse_for(rng.random() * 40)
            await asyncio.sleep(0.05)
    assert led, "nobody ever led"


@pytest.mark.parametrize("seed", range(5))
def test_two_electors_never_lead_at_once(seed: int) -> None:
    on_virtual_time(lambda: storm(seed))


def test_planted_elector_that_forgets_its_deadline_is_detected() -> None:
    """The planted bug: the renew deadline does not end the leadership."""

    def forgets_the_deadline(self: LeaderElector) -> bool:
        return self.status is LeadershipStatus.LEADING

    with patch.object(LeaderElector, "leads", forgets_the_deadline), pytest.raises(AssertionError):
        for seed in range(5):
            with patch.object(LeaderElector, "_renew_until_lost", _never_gives_up):
                on_virtual_time(lambda seed=seed: storm(seed))  # type: ignore[misc]


async def _never_gives_up(self: LeaderElector) -> None:
    await asyncio.sleep(3600)


def test_the_lease_has_the_fields_that_other_clients_read() -> None:
    async def scenario() -> None:
        world = World()
        leader = elector(world, "one", world.transport())

        async with running(leader.run()):
            await until(leader.leads, "one to lead")
            await asyncio.sleep(5)

        spec = lease(world)["spec"]
        assert spec["holderIdentity"] == "one"
        assert spec["leaseDurationSeconds"] == 15
        assert spec["leaseTransitions"] == 0
        assert spec["acquireTime"] == "2026-01-01T00:00:00.000000Z"
        assert spec["renewTime"] > "2026-01-01T00:00:04"

    on_virtual_time(scenario)


def test_a_successor_leads_within_the_lease_duration_and_waits_before_it_decides() -> None:
    async def scenario() -> None:
        world = World()
        one, two = elector(world, "one", world.transport()), elector(world, "two", world.transport())
        first = asyncio.ensure_future(one.run())
        await until(one.may_decide, "one to decide")
        async with running(two.run()):
            await asyncio.sleep(4)
            first.cancel()
            died_s = world.loop.time()

            await until(two.leads, "two to lead")
            leads_s = world.loop.time() - died_s
            await until(two.may_decide, "two to decide")
            decides_s = world.loop.time() - died_s

        assert 12 < leads_s < 18
        assert decides_s - leads_s >= 5.0  # the life of a bind request
        assert lease(world)["spec"]["leaseTransitions"] == 1

    on_virtual_time(scenario)


@pytest.mark.parametrize("nothing_in_flight", [True, False])
def test_a_clean_stop_releases_the_lease_only_if_no_bind_is_in_flight(nothing_in_flight: bool) -> None:
    async def scenario() -> None:
        world = World()
        one, two = elector(world, "one", world.transport()), elector(world, "two", world.transport())
        first = asyncio.ensure_future(one.run())
        await until(one.may_decide, "one to decide")
        async with running(two.run()):
            await asyncio.sleep(4)
            first.cancel()
            await one.release(nothing_in_flight=nothing_in_flight)
            stopped_s = world.loop.time()
            assert not one.leads()

            await until(two.may_decide, "two to decide")

        waited_s = world.loop.time() - stopped_s
        assert (waited_s < 3) if nothing_in_flight else (waited_s > 15)

    on_virtual_time(scenario)


def test_a_leader_that_stops_before_it_may_decide_leaves_the_wait_to_the_next_one() -> None:
    """It waits for writes of the leader before, which its own stop does not end."""

    async def scenario() -> None:
        world = World()
        dead = elector(world, "dead", world.transport())
        first = asyncio.ensure_future(dead.run())
        await until(dead.may_decide, "the first to decide")
        first.cancel()
        stopped = elector(world, "stopped", world.transport())
        second = asyncio.ensure_future(stopped.run())
        await until(stopped.leads, "the second to lead")
        assert stopped.decides_in_s() > 5

        second.cancel()
        await stopped.release(nothing_in_flight=True)

        asked_s = world.loop.time()
        third = elector(world, "third", world.transport())
        async with running(third.run()):
            await until(third.leads, "the third to lead")
            assert world.loop.time() - asked_s < 3, "the lease is released"
            assert third.decides_in_s() > 5

    on_virtual_time(scenario)


def test_after_a_lease_released_by_another_client_the_elector_still_waits() -> None:
    async def scenario() -> None:
        world = World()
        leader = elector(world, "one", world.transport())
        first = asyncio.ensure_future(leader.run())
        await until(leader.may_decide, "one to decide")
        first.cancel()
        await leader.release(nothing_in_flight=True)
        # A stock kube-scheduler took it and released it again; it keeps annotations that it does not know.
        world.local.update(
            "leases",
            lease(world),
            lambda obj: {**obj, "spec": {**obj["spec"], "holderIdentity": "", "leaseTransitions": 1}},
        )

        two = elector(world, "two", world.transport())
        async with running(two.run()):
            await until(two.leads, "two to lead")
            assert two.decides_in_s() > 5

    on_virtual_time(scenario)


def test_a_lease_that_never_had_a_holder_is_acquired_without_waiting() -> None:
    async def scenario() -> None:
        world = World()
        world.local.create("leases", "kube-system", {"metadata": {"name": "policysched"}, "spec": {}})
        await asyncio.sleep(90)
        leader = elector(world, "one", world.transport())

        async with running(leader.run()):
            await until(leader.leads, "one to lead")

            assert leader.may_decide()

    on_virtual_time(scenario)


@pytest.mark.parametrize("with_lease", [False, True])
@pytest.mark.parametrize(
    ("last_good", "waits"),
    [
        ({}, False),
        ({"data": {"a.policy": "policy a version 1"}}, True),
        ({"binaryData": {"a": "eA=="}}, True),
        (None, True),
    ],
)
def test_only_the_first_start_of_a_configuration_decides_at_once(
    last_good: dict[str, Any] | None, *, with_lease: bool, waits: bool
) -> None:
    """Without a lease, or with one created a moment ago, an earlier leader may have bound a moment ago."""

    async def scenario() -> None:
        world = World()
        if with_lease:
            world.local.create("leases", "kube-system", {"metadata": {"name": "policysched"}, "spec": {}})
        if last_good is not None:
            metadata = {"metadata": {"name": LAST_GOOD.name}}
            world.local.create("configmaps", LAST_GOOD.namespace, {**metadata, **last_good})
        leader = elector(world, "one", world.transport())

        async with running(leader.run()):
            await until(leader.leads, "one to lead")

            assert leader.may_decide() is not waits
            await until(leader.may_decide, "one to decide")

    on_virtual_time(scenario)


class _NoConfigMaps(MemoryTransport):
    async def request(self, request: ApiRequest) -> ApiResponse:
        if "configmaps" in request.path:
            raise TransportError("reset")
        return await super().request(request)


def test_the_first_start_waits_if_the_last_known_good_policies_cannot_be_read() -> None:
    async def scenario() -> None:
        world = World()
        world.local.create("configmaps", LAST_GOOD.namespace, {"metadata": {"name": LAST_GOOD.name}})
        leader = elector(world, "one", _NoConfigMaps(world.server))

        async with running(leader.run()):
            await until(leader.leads, "one to lead")

            assert leader.decides_in_s() > 5

    on_virtual_time(scenario)


def test_leadership_ends_at_the_renew_deadline_if_the_server_hangs() -> None:
    async def scenario() -> None:
        world = World()
        transport = world.transport(FaultRates())
        leader = elector(world, "one", transport)
        async with running(leader.run()):
            await until(leader.may_decide, "one to decide")
            hangs_s = world.loop.time()
            transport._faults.rates = FaultRates(lost_before_share=1.0)

            await until(lambda: not leader.leads(), "the end of it")
            assert world.loop.time() - hangs_s <= 10.0
            await until(lambda: leader.status is LeadershipStatus.LOST, "it to be said", within_s=1)

    on_virtual_time(scenario)


@pytest.mark.parametrize("seed", range(3))
def test_status_500_for_half_the_requests_does_not_end_leadership(seed: int) -> None:
    async def scenario() -> None:
        world = World()
        leader = elector(world, "one", Failing(world, 0.5, seed), seed)
        async with running(leader.run()):
            await until(leader.leads, "one to lead")

            for _ in range(3600):
                await asyncio.sleep(1)
                assert leader.leads(), f"it lost the Lease after {world.loop.time():.0f} s"

    on_virtual_time(scenario)


class Silent(MemoryTransport):
    """The server acts on every write and nobody hears of it, but where it refuses."""

    async def request(self, request: ApiRequest) -> ApiResponse:
        answer = await super().request(request)
        if request.method == "PUT" and answer.status == 200 and self.begun:
            raise TransportError("the answer is lost")
        return answer

    begun = False


class Forgetful(dict[str, float]):
    """The planted bug: of a renewal that got no answer nothing is known."""

    def __setitem__(self, _key: str, _value: float) -> None:
        pass


@pytest.mark.parametrize("forgets", [False, True])
def test_a_leader_whose_renewals_arrive_without_a_response_keeps_leading(*, forgets: bool) -> None:
    async def scenario() -> None:
        world = World()
        transport = Silent(world.server)
        leader = elector(world, "one", transport)
        if forgets:
            leader._unanswered_renewals_s = Forgetful()
        async with running(leader.run()):
            await until(leader.leads, "one to lead")
            transport.begun = True

            led = []
            for _ in range(600):
                await asyncio.sleep(1)
                led.append(leader.leads())

            assert all(led) is not forgets

    on_virtual_time(scenario)


class UnresponsiveServer(MemoryTransport):
    """Answers nothing once `begun`. A thousand requests mean that no time passes between two tries."""

    request_count, begun = 0, False

    async def request(self, request: ApiRequest) -> ApiResponse:
        if not self.begun:
            return await super().request(request)
        self.request_count += 1
        assert self.request_count < 1000, "no time passes between two tries"
        await asyncio.sleep(3600)
        raise TransportError("no answer came")


def test_leadership_ends_without_responses_even_if_the_rest_is_below_clock_resolution() -> None:
    async def scenario() -> None:
        world = World()
        transport = UnresponsiveServer(world.server)
        leader = elector(world, "one", transport)
        async with running(leader.run()):
            await until(leader.leads, "one to lead")
            transport.begun = True
            a_rounding_s = 1e-12
            end_s = leader._leads_until_s - a_rounding_s
            leader._monotonic_s = lambda: min(world.loop.time(), end_s)

            await until(lambda: leader.status is LeadershipStatus.LOST, "one to give up")

    on_virtual_time(scenario)


def test_a_renewal_is_a_single_request_without_concurrent_writers() -> None:
    async def scenario() -> None:
        world = World()
        transport = Failing(world, 0.0, 0)
        leader = elector(world, "one", transport)
        async with running(leader.run()):
            await until(leader.leads, "one to lead")
            transport.requests.clear()
            await asyncio.sleep(9)
            quiet = list(transport.requests)
            world.local.update("leases", lease(world), _annotated)
            await asyncio.sleep(2)

            assert leader.leads()
            assert quiet == ["PUT"] * 4
            assert transport.requests[4:] == ["PUT", "GET", "PUT"]

    on_virtual_time(scenario)


def _annotated(obj: dict[str, Any]) -> dict[str, Any]:
    return {**obj, "metadata": {**obj["metadata"], "annotations": {"seen": "by somebody"}}}


def test_a_lease_deleted_under_the_leader_ends_its_leadership_before_its_successor_decides() -> None:
    async def scenario() -> None:
        world = World()
        first, two = elector(world, "one", world.transport()), elector(world, "two", world.transport())
        async with running(first.run(), two.run()):
            await until(lambda: first.may_decide() or two.may_decide(), "one of them to decide")
            before, after = (first, two) if first.leads() else (two, first)
            world.local.delete("leases", lease(world))

            await until(lambda: after.leads(), "the other to lead")
            await until(after.may_decide, "the other to decide")

            assert before.status is LeadershipStatus.LOST

    on_virtual_time(scenario)


# ── what is said ───────────────────────────────────────────────────────────────────────────────────────────────────


def said(caplog: pytest.LogCaptureFixture, level: str) -> list[str]:
    """What electors said on that level, each with the holder or the cause that it names."""
    return [
        f"{record.getMessage()} ({vars(record).get('holder') or vars(record).get('error') or ''})"
        for record in caplog.records
        if record.levelname == level and record.name == "policysched.kube.leader_election"
    ]


def test_a_standby_logs_the_leader_once_and_again_when_it_changes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "policysched.kube.leader_election")

    async def scenario() -> None:
        world = World()
        one, three = elector(world, "one", world.transport()), elector(world, "three", world.transport())
        first = asyncio.ensure_future(one.run())
        await until(one.leads, "one to lead")
        caplog.clear()
        async with running(three.run()):
            await asyncio.sleep(60)
            first.cancel()
            world.local.update(
                "leases",
                lease(world),
                lambda obj: {**obj, "spec": {**obj["spec"], "holderIdentity": "two"}},
            )
            await until(three.leads, "three to lead")

    on_virtual_time(scenario)

    assert said(caplog, "INFO") == [
        "not leading: the lease is held by another process (one)",
        "not leading: the lease is held by another process (two)",
        "acquired the lease; leading ()",
    ]
    assert said(caplog, "DEBUG").count("the lease is held (one)") > 20


def test_an_unreachable_lease_is_logged_once_and_then_the_leader(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "policysched.kube.leader_election")

    async def scenario() -> None:
        world = World()
        first, transport = elector(world, "one", world.transport()), world.transport()
        two = elector(world, "two", transport)
        async with running(first.run()):
            await until(first.leads, "one to lead")
            caplog.clear()
            transport.refuse_for(30)
            async with running(two.run()):
                await asyncio.sleep(60)

    on_virtual_time(scenario)

    (message,) = said(caplog, "WARNING")
    assert message.startswith("not leading: cannot read or acquire the lease; retrying (")
    assert said(caplog, "INFO") == ["not leading: the lease is held by another process (one)"]


# ── a process that stalled ───────────────────────────────────────────────────────────────────────────────────────────


class PausedMachine:
    """A virtual machine whose monotonic clock stops in a pause; its wall clock is set right as it goes on."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._paused_s = 0.0

    def monotonic_s(self) -> float:
        return self._world.loop.time() - self._paused_s

    def pause(self, span_s: float) -> None:
        assert isinstance(self._world.loop, VirtualTimeLoop)
        self._world.loop.skip(span_s)
        self._paused_s += span_s

    def elector(self, name: str, transport: MemoryTransport) -> LeaderElector:
        return LeaderElector(
            ApiClient(transport),
            LeaseSettings(),
            identity=name,
            monotonic_s=self.monotonic_s,
            now_ns=self._world.now_ns,
            random=Random(name),
        )


def test_after_a_pause_that_stopped_its_clock_a_leader_writes_nothing_before_the_lease_is_renewed() -> None:
    async def scenario() -> None:
        world = World()
        machine = PausedMachine(world)
        transport = world.transport()
        one = machine.elector("one", transport)
        async with running(one.run()):
            await until(one.may_decide, "one to decide")
            machine.pause(60.0)
            resumed_s = world.loop.time()
            transport.refuse_for(2.0)
            assert one.leads() and not one.may_write() and not one.may_decide()

            await until(one.may_write, "the lease to be renewed")

            assert world.loop.time() - resumed_s > 2.0
            assert one.stalls == 1, "what was decided before is told from what is decided now"
            await asyncio.sleep(30.0)
            assert one.may_write() and one.stalls == 1

    on_virtual_time(scenario)


def test_a_stall_of_a_follower_counts_when_it_acquires_the_lease() -> None:
    """What happened in the cluster meanwhile must be read before the first decision."""

    async def scenario() -> None:
        world = World()
        machine = PausedMachine(world)
        one, two = elector(world, "one", world.transport()), machine.elector("two", world.transport())
        leading = asyncio.create_task(one.run())
        await until(one.leads, "one to lead")
        async with running(two.run()):
            await asyncio.sleep(30.0)
            leading.cancel()
            await one.release(nothing_in_flight=True)
            assert two.stalls == 0
            machine.pause(60.0)
            await until(two.may_decide, "two to decide")
            assert two.stalls == 1

    on_virtual_time(scenario)


def test_a_leader_that_was_paused_while_another_took_the_lease_never_writes_again() -> None:
    async def scenario() -> None:
        world = World()
        machine = PausedMachine(world)
        one = machine.elector("one", world.transport())
        async with running(one.run()):
            await until(one.may_decide, "one to decide")
            machine.pause(60.0)
            held = lease(world)
            world.local.update(
                "leases", held, lambda found: {**found, "spec": {**found["spec"], "holderIdentity": "two"}}
            )
            while one.status is LeadershipStatus.LEADING:
                assert not one.may_write()
                await asyncio.sleep(0.001)

        assert one.status is LeadershipStatus.LOST

    on_virtual_time(scenario)


def test_without_the_tick_a_paused_leader_writes_beside_its_successor() -> None:
    """The planted bug of the test before."""
    with patch.object(LeaderElector, "_since_tick_s", lambda _: 0.0), pytest.raises(AssertionError):
        test_a_leader_that_was_paused_while_another_took_the_lease_never_writes_again()


def test_a_wall_clock_that_is_set_back_stops_no_writes() -> None:
    async def scenario() -> None:
        world = World()
        step_ns = 0
        one = LeaderElector(
            ApiClient(world.transport()),
            LeaseSettings(),
            identity="one",
            monotonic_s=world.loop.time,
            now_ns=lambda: world.now_ns() + step_ns,
            random=Random("one"),
        )
        async with running(one.run()):
            await until(one.may_decide, "one to decide")
            step_ns = -3600 * 10**9
            for _ in range(300):
                await asyncio.sleep(0.1)
                assert one.may_write()

    on_virtual_time(scenario)
