"""A random cluster with volumes and faults around a real scheduler.

The model has pods, claims and volumes, a PV controller, a provisioner that sometimes gives up and a watch that lags. The
scheduler gets late events, refused writes and lost answers, and is restarted. `violations` lists broken invariants;
`final_violations` adds what must hold once all faults have ended.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from random import Random

from policysched.model.identifiers import NodeName, PodUid, VolumeClaimKey
from policysched.model.pod_status import ObservedPod
from policysched.model.pods import Pod
from policysched.model.storage import ClaimRef, PersistentVolume, PersistentVolumeClaim
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.scheduler import Scheduler
from tests.builders import node, pending, pod
from tests.scheduler.rig import START_NS, bundle
from tests.volumes import HOSTNAME, claim, storage_class, using, volume

POLICY = "policy test version 1\ninclude kube_default\npreemption never\n"
NODES = ("a", "b", "c")
SECOND_NS = 10**9


@dataclass
class World:
    rng: Random
    scheduler: Scheduler = field(init=False)
    now_ns: int = START_NS
    version: int = 10
    pods: dict[PodUid, ObservedPod] = field(default_factory=dict)
    claims: dict[VolumeClaimKey, PersistentVolumeClaim] = field(default_factory=dict)
    volumes: dict[str, PersistentVolume] = field(default_factory=dict)
    watch: deque[e.Event] = field(default_factory=deque)
    in_flight: list[c.Prebind | c.Bind] = field(default_factory=list)
    latest: dict[PodUid, c.Prebind] = field(default_factory=dict)
    pods_created: int = 0
    made: int = 0
    violations: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for number in range(self.rng.randint(2, 5)):
            self._write_volume(volume(f"v{number}", node=self.rng.choice(NODES)))
        for number in range(self.rng.randint(3, 6)):
            self._write_claim(claim(f"c{number}", of_class=self.rng.choice(("local", "local", "made"))))
        self.restart()

    # ── actions ───────────────────────────────────────────────────────────────────────────────────────────────

    def step(self) -> None:
        self.rng.choice(_ACTIONS)(self)
        self.now_ns += self.rng.randrange(SECOND_NS)
        self._check()

    def restart(self) -> None:
        """Start a new scheduler without the state of the old one. Binds that were sent may still succeed."""
        self.scheduler = Scheduler(SchedulerLimits())
        self.watch.clear()
        self.in_flight = [
            command for command in self.in_flight if isinstance(command, c.Bind) and self.rng.random() < 0.5
        ]
        for late in self.in_flight:
            self._bind(late)
        self.in_flight = []
        self._handle(
            e.PoliciesUpdated(bundle({"main.policy": POLICY}), resource_version="1"),
            *(e.NodeUpdated(node(name)) for name in NODES),
            e.StorageObjectUpdated(storage_class("local")),
            e.StorageObjectUpdated(storage_class("made", "csi.example.com")),
            *(e.StorageObjectUpdated(volume) for volume in self.volumes.values()),
            *(e.StorageObjectUpdated(claim) for claim in self.claims.values()),
            *(e.PodUpdated(pod) for pod in self.pods.values()),
            e.Synced(),
        )

    def create_pod(self) -> None:
        self.pods_created += 1
        name = f"p{self.pods_created}"
        wanted = self.rng.sample(sorted(key.name for key in self.claims), self.rng.choice((1, 1, 2)))
        observed = pending(pod(name, spec=using(*wanted)))
        self.pods[observed.pod.uid] = observed
        self.watch.append(e.PodUpdated(observed))

    def delete_pod(self) -> None:
        if self.pods:
            uid = self.rng.choice(sorted(self.pods))
            del self.pods[uid]
            self.watch.append(e.PodDeleted(uid))

    def deliver_watch_events(self) -> None:
        for _ in range(self.rng.randrange(4)):
            if self.watch:
                self._handle(self.watch.popleft())

    def decide(self) -> None:
        for _ in range(self.rng.randrange(4)):
            if self.scheduler.ready(self.now_ns):
                self._collect(self.scheduler.decide(self.now_ns))

    def execute_command(self) -> None:
        """Execute one command in flight, not necessarily the oldest."""
        if not self.in_flight:
            return
        command = self.in_flight.pop(self.rng.randrange(len(self.in_flight)))
        if isinstance(command, c.Bind):
            self._handle(self._bind(command))
        else:
            self._write(command, kind=self.rng.choice(("well", "well", "refused", "answer lost")))

    def run_controllers(self) -> None:
        """The PV controller or the provisioner advances one claim."""
        for pvc in self.rng.sample(sorted(self.claims.values(), key=lambda pvc: pvc.key), len(self.claims)):
            if pvc.fully_bound:
                continue
            for held in self.volumes.values():
                if held.belongs_to(pvc, held.claim_ref):
                    self._write_claim(replace(pvc, volume_name=held.name, bind_completed=True, phase="Bound"))
                    return
            if pvc.selected_node is not None and pvc.class_name == "made":
                self._provision_or_give_up(pvc, pvc.selected_node)
                return

    def take_volume(self) -> None:
        free = [volume for volume in self.volumes.values() if volume.claim_ref is None]
        if free and self.rng.random() < 0.2:
            taken = self.rng.choice(free)
            foreign = ClaimRef(VolumeClaimKey("elsewhere", "theirs"), "uid-theirs")
            self._write_volume(replace(taken, claim_ref=foreign, phase="Bound"))

    def advance_clock(self) -> None:
        self.now_ns += self.rng.choice((1, 5, 20, 700)) * SECOND_NS

    def maybe_restart(self) -> None:
        if self.rng.random() < 0.15:
            self.restart()

    # ── end of the run ────────────────────────────────────────────────────────────────────────────────────────────────────

    def run_without_faults(self) -> None:
        """Execute and deliver everything without faults."""
        for _ in range(400):
            while self.watch:
                self._handle(self.watch.popleft())
            while self.scheduler.ready(self.now_ns):
                self._collect(self.scheduler.decide(self.now_ns))
            while self.in_flight:
                command = self.in_flight.pop(0)
                if isinstance(command, c.Bind):
                    self._handle(self._bind(command))
                else:
                    self._write(command, kind="well")
            self.run_controllers()
            self.now_ns += 2 * SECOND_NS
            self._check()

    def final_violations(self) -> list[str]:
        """All violations, including pods that are pending although they fit."""
        violations = list(self.violations)
        if self.scheduler.prebinding_count or self.scheduler.cache.ledger.unconfirmed:
            violations.append("a pod is prebinding or assumed forever")
        waiting = [pod.pod for pod in self.pods.values() if pod.node is None]
        violations += [
            f"{pod.name} is pending although it fits"
            for pod in waiting
            if any(self._fits(pod, name) for name in NODES)
        ]
        return violations

    def _fits(self, pod: Pod, name: str) -> bool:
        """Whether each claim is bound for this node or has a free volume there. Exact only for pods with one claim."""
        for use in pod.claims:
            wanted = self.claims[use.claim]
            if wanted.fully_bound:
                if not _reaches(self.volumes[wanted.volume_name], name):
                    return False
            elif wanted.class_name == "made":
                if wanted.selected_node not in (None, name):
                    return False
            elif len(pod.claims) > 1 or not any(
                held.claim_ref is None and held.class_name == "local" and _reaches(held, name)
                for held in self.volumes.values()
            ):
                return False
        return True

    # ── helpers ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _handle(self, *events: e.Event) -> None:
        for event in events:
            self._collect(self.scheduler.handle(event, self.now_ns))

    def _collect(self, commands: list[c.Command]) -> None:
        for command in commands:
            if isinstance(command, c.Prebind):
                # A command outlives its deleted or timed out pod. Of two commands that write one version, only the first succeeds.
                self.latest[command.uid] = command
                for uid in self.scheduler._core.binds.prebinding:
                    other = self.latest.get(uid)
                    if other is not None and any(other_command is other for other_command in self.in_flight):
                        self.violations += _conflicts(command, other)
            if isinstance(command, c.Prebind | c.Bind):
                self.in_flight.append(command)

    def _check(self) -> None:
        self.violations += self.scheduler.check()

    def _bind(self, bind: c.Bind) -> e.Event:
        observed = self.pods.get(bind.uid)
        if observed is None:
            return e.BindLost(bind.uid, "gone")
        if observed.node is None:
            for use in observed.pod.claims:
                held = self.claims[use.claim]
                if not held.fully_bound:
                    self.violations.append(f"{bind.name} is bound before its claim {held.key.name}")
                elif not _reaches(self.volumes[held.volume_name], bind.node):
                    self.violations.append(
                        f"{bind.name} is on {bind.node}, out of reach of {held.volume_name}"
                    )
            self.pods[bind.uid] = replace(observed, node=bind.node)
            self.watch.append(e.PodUpdated(self.pods[bind.uid]))
        node_now = self.pods[bind.uid].node
        if node_now != bind.node:
            return e.BindLost(bind.uid, "elsewhere")
        return e.BindConfirmed(bind.uid, bind.node)

    def _write(self, command: c.Prebind, kind: str) -> None:
        versions: dict[str | VolumeClaimKey, int] = {}
        refusal = "the object has been modified" if kind == "refused" else None
        for binding in command.volumes_to_bind:
            held = self.volumes.get(binding.volume)
            if refusal is None and (held is None or held.version != binding.version):
                refusal = "the object has been modified"
            if refusal is None and held is not None:
                ref = ClaimRef(binding.claim, binding.claim_uid)
                versions[held.name] = self._write_volume(replace(held, claim_ref=ref, phase="Bound"))
        for made in command.volumes_to_provision:
            wanted = self.claims.get(made.claim)
            if refusal is None and (wanted is None or wanted.version != made.version):
                refusal = "the object has been modified"
            if refusal is None and wanted is not None:
                versions[wanted.key] = self._write_claim(replace(wanted, selected_node=command.node))
        if kind == "answer lost":
            # The retry is refused because of the version that the first try wrote.
            self._handle(e.PrebindRefused(command.uid, "the object has been modified", {}, command.attempt))
        elif refusal is not None:
            self._handle(e.PrebindRefused(command.uid, refusal, versions, command.attempt))
        else:
            self._handle(e.PrebindWritten(command.uid, versions, command.attempt))

    def _write_volume(self, volume: PersistentVolume) -> int:
        self.version += 1
        self.volumes[volume.name] = replace(volume, version=self.version)
        self.watch.append(e.StorageObjectUpdated(self.volumes[volume.name]))
        return self.version

    def _write_claim(self, claim: PersistentVolumeClaim) -> int:
        self.version += 1
        self.claims[claim.key] = replace(claim, version=self.version)
        self.watch.append(e.StorageObjectUpdated(self.claims[claim.key]))
        return self.version

    def _provision_or_give_up(self, claim: PersistentVolumeClaim, selected: NodeName) -> None:
        if self.rng.random() < 0.3:
            self._write_claim(replace(claim, selected_node=None))
            return
        self.made += 1
        made = volume(
            f"made-{self.made}", node=selected, of_class="made", claim=claim.key.name, claim_uid=claim.uid
        )
        self._write_volume(made)


def _reaches(volume: PersistentVolume, name: str) -> bool:
    terms = volume.node_affinity_terms or ()
    return any(
        name in wanted.values for term in terms for wanted in term.expressions if wanted.key == HOSTNAME
    )


def _conflicts(first: c.Prebind, other: c.Prebind) -> list[str]:
    other_claims = {given.volume: given.claim for given in other.volumes_to_bind}
    return [
        f"{given.volume} is given to {given.claim.name} and to {other_claims[given.volume].name}"
        for given in first.volumes_to_bind
        if other_claims.get(given.volume, given.claim) != given.claim
    ]


_ACTIONS: tuple[Callable[[World], None], ...] = (
    World.create_pod,
    World.create_pod,
    World.delete_pod,
    World.deliver_watch_events,
    World.deliver_watch_events,
    World.deliver_watch_events,
    World.decide,
    World.decide,
    World.decide,
    World.execute_command,
    World.execute_command,
    World.run_controllers,
    World.take_volume,
    World.advance_clock,
    World.maybe_restart,
)


def run_world(seed: int, steps: int = 120) -> list[str]:
    """Run the world of this seed and return its violations."""
    world = World(Random(seed))
    for _ in range(steps):
        world.step()
        if world.violations:
            return world.violations
    world.run_without_faults()
    return world.final_violations()
