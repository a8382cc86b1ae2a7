"""A leader that is stopped with SIGSTOP while its binds wait for a connection, and goes on."""

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from policysched.config import settings
from policysched.kube.write.bind import BindSettings
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.objects import ready_node
from tests.controlplane.waiting import wait_for
from tests.e2e.chaos.faulty_transport import FaultyTransport
from tests.e2e.deployed import NAMESPACE, PLAIN, Deployed
from tests.e2e.program import Running
from tests.e2e.proxied import proxied
from tests.simulation import bugs_of_writes

PODS = 40
NODES = ("a", "b")
NODE_MILLI = 2000
POD_MILLI = 100
"""The pods of one scheduler fill the nodes."""
FEW_CONNECTIONS = 24
"""The watches use most of them."""
BIND_DELAY_S = 0.5
BUG_TRIES = 3
SHORT_LEASE = {"lease_duration_s": 6, "renew_deadline_s": 5, "retry_period_s": 0.5}
LONG_LEASE = {"lease_duration_s": 30, "renew_deadline_s": 25, "retry_period_s": 1}
STALL_S = 5.0


class Fenced:
    """A leader behind a proxy on which binds are slow."""

    def __init__(self, control_plane: ControlPlane, folder: Path) -> None:
        self.deployed = Deployed(control_plane, folder)
        for name in NODES:
            control_plane.add_node(ready_node(name, cpu=f"{NODE_MILLI}m", pods="200"))
        self.deployed.put_policies(main=PLAIN)

    @contextmanager
    def leader(
        self, transport: FaultyTransport, kubeconfig: Path, lease: dict[str, float], bug: str = ""
    ) -> Iterator[Running]:
        """It is killed at the end, if it has not ended by itself."""
        process = self.deployed.start(
            elect=True,
            kubeconfig=kubeconfig,
            settings={**election(lease), "api": {"connections_max": FEW_CONNECTIONS}},
            plant=partial(plant, bug),
        )
        try:
            process.wait_for_log("acquired the lease; leading")
            process.wait_until_ready()
            transport.bind_delay_s = BIND_DELAY_S
            yield process
        except BaseException:
            print(process.log()[-20_000:])
            raise
        finally:
            process.kill()

    def create(self, prefix: str, count: int = PODS, milli: int = POD_MILLI, **spec: object) -> None:
        for number in range(count):
            self.deployed.create(f"{prefix}-{number}", cpu=f"{milli}m", memory="1Mi", **spec)

    def free_milli(self) -> dict[str, int]:
        free = Counter(dict.fromkeys(NODES, NODE_MILLI))
        for pod in self.deployed.pods():
            cpu = pod["spec"]["containers"][0]["resources"]["requests"]["cpu"]
            free[pod["spec"].get("nodeName", "")] -= milli_of(cpu)
        return {name: free[name] for name in NODES}


def election(lease: dict[str, float]) -> dict[str, object]:
    return {"leader_election": {"enabled": True, "lease": f"{NAMESPACE}/policysched", **lease}}


@dataclass(frozen=True, slots=True)
class PatientBinds(BindSettings):
    """Binds that do not time out while the process is stopped, however slow the machine: they would not leave then."""

    response_timeout_s: float = 120.0


def plant(bug: str) -> None:
    """Patient binds, and a planted bug."""
    settings.BindSettings = PatientBinds  # type: ignore[misc]
    if bug:
        getattr(bugs_of_writes, bug)().__enter__()


def milli_of(cpu: str) -> int:
    return int(cpu.removesuffix("m")) if cpu.endswith("m") else 1000 * int(cpu)


def binds_beside_another_leader(control_plane: ControlPlane, folder: Path) -> list[str]:
    """The pods whose binds the first leader sent after the second one led."""
    cluster = Fenced(control_plane, folder)
    kubeconfig = folder / "proxied.kubeconfig"
    with (
        proxied(control_plane, kubeconfig) as transport,
        cluster.leader(transport, kubeconfig, SHORT_LEASE) as first,
        cluster.deployed.running(elect=True, settings=election(SHORT_LEASE)) as second,
    ):
        second.wait_until_ready()
        cluster.create("early")
        wait_for(lambda: transport.binds, "the first bind")
        os.kill(first.process.pid, signal.SIGSTOP)
        cluster.create("rival", priorityClassName="system-node-critical")
        second.wait_for_log("acquired the lease; leading")
        led_s = time.monotonic()
        os.kill(first.process.pid, signal.SIGCONT)

        wait_for(lambda: first.process.poll() is not None, "the first leader to end")
        late = [name for at_s, name in transport.binds if at_s > led_s]
        # Rivals may evict early pods, so a node can be full before it has its last pods.
        wait_for(lambda: not any(cluster.free_milli().values()), "the nodes to be full and not overfull")
    return late


def binds_after_a_stall(control_plane: ControlPlane, folder: Path, bug: str = "") -> dict[str, int]:
    """The free room of each node after a leader stalled while other pods took all room; it is not replaced."""
    cluster = Fenced(control_plane, folder)
    kubeconfig = folder / "proxied.kubeconfig"
    with (
        proxied(control_plane, kubeconfig) as transport,
        cluster.leader(transport, kubeconfig, LONG_LEASE, bug) as leader,
    ):
        cluster.create("early")
        wait_for(lambda: transport.binds, "the first bind")
        os.kill(leader.process.pid, signal.SIGSTOP)
        stopped_s = time.monotonic()
        wait_for(lambda: transport.binds_open == 0, "the binds that have left to be answered")
        for node, milli in cluster.free_milli().items():
            cluster.create(f"other-{node}", 1, milli, nodeName=node, scheduler="other")
        assert not any(cluster.free_milli().values())
        time.sleep(max(0.0, stopped_s + STALL_S - time.monotonic()))
        os.kill(leader.process.pid, signal.SIGCONT)

        leader.wait_for_log("stalled")
        wait_for(lambda: leader.metric("policysched_binds_in_flight") == 0, "the binds to be answered")
        return cluster.free_milli()


def test_a_leader_that_was_stopped_sends_no_bind_after_another_led(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    """Its planted bug is a seed of the simulation (`leadership_is_not_checked_at_the_write`): with real processes the
    number of binds that leave in time is a matter of milliseconds."""
    assert binds_beside_another_leader(control_plane, tmp_path) == []


def test_a_leader_that_was_stopped_sends_no_bind_that_it_decided_before(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    assert binds_after_a_stall(control_plane, tmp_path) == dict.fromkeys(NODES, 0)


def test_without_the_check_for_a_stall_the_nodes_are_overcommitted(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    """The planted bug of the test before."""
    assert some_try(
        control_plane,
        tmp_path,
        lambda folder: (
            min(binds_after_a_stall(control_plane, folder, "a_bind_outlives_a_stall_of_its_process").values())
            < 0
        ),
    )


def some_try(control_plane: ControlPlane, folder: Path, is_noticed: Callable[[Path], object]) -> bool:
    """Whether a bind waits for a connection when the process is stopped is a matter of milliseconds."""
    for number in range(BUG_TRIES):
        (folder / str(number)).mkdir()
        if is_noticed(folder / str(number)):
            return True
        control_plane.reset()
    return False
