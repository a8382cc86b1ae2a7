"""A server with pods, claims and volumes, a PV controller, a provisioner that sometimes gives up, and a watch that lags; between
them a scheduler that is told late, refused, left without answers and started anew.

The world keeps its own accounts. What must always hold is said by `wrong`, what must hold once all faults have ended by
`at_rest`.
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
    dice: Random
    scheduler: Scheduler = field(init=False)
    now_ns: int = START_NS
    version: int = 10
    pods: dict[PodUid, ObservedPod] = field(default_factory=dict)
    claims: dict[VolumeClaimKey, PersistentVolumeClaim] = field(default_factory=dict)
    volumes: dict[str, PersistentVolume] = field(default_factory=dict)
    watch: deque[e.Event] = field(default_factory=deque)
    to_do: list[c.Prebind | c.Bind] = field(default_factory=list)
    latest: dict[PodUid, c.Prebind] = field(default_factory=dict)
    came: int = 0
    made: int = 0
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for number in range(self.dice.randint(2, 5)):
            self._write_volume(volume(f"v{number}", node=self.dice.choice(NODES)))
        for number in range(self.dice.randint(3, 6)):
            self._write_claim(claim(f"c{number}", of_class=self.dice.choice(("local", "local", "made"))))
        self.restart()

    # ── what happens ───────────────────────────────────────────────────────────────────────────────────────────────

    def step(self) -> None:
        self.dice.choice(_HAPPENINGS)(self)
        self.now_ns += self.dice.randrange(SECOND_NS)
        self._look()

    def restart(self) -> None:
        """Another process takes over: it lists, and knows nothing of what was under way. Binds that left may still land."""
        self.scheduler = Scheduler(SchedulerLimits())
        self.watch.clear()
        self.to_do = [one for one in self.to_do if isinstance(one, c.Bind) and self.dice.random() < 0.5]
        for late in self.to_do:
            self._land(late)
        self.to_do = []
        self._tell(
            e.PoliciesUpdated(bundle({"main.policy": POLICY}), resource_version="1"),
            *(e.NodeUpdated(node(name)) for name in NODES),
            e.StorageObjectUpdated(storage_class("local")),
            e.StorageObjectUpdated(storage_class("made", "csi.example.com")),
            *(e.StorageObjectUpdated(volume) for volume in self.volumes.values()),
            *(e.StorageObjectUpdated(claim) for claim in self.claims.values()),
            *(e.PodUpdated(pod) for pod in self.pods.values()),
            e.Synced(),
        )

    def pod_comes(self) -> None:
        self.came += 1
        name = f"p{self.came}"
        wanted = self.dice.sample(sorted(key.name for key in self.claims), self.dice.choice((1, 1, 2)))
        seen = pending(pod(name, spec=using(*wanted)))
        self.pods[seen.pod.uid] = seen
        self.watch.append(e.PodUpdated(seen))

    def pod_goes(self) -> None:
        if self.pods:
            uid = self.dice.choice(sorted(self.pods))
            del self.pods[uid]
            self.watch.append(e.PodDeleted(uid))

    def watch_shows(self) -> None:
        for _ in range(self.dice.randrange(4)):
            if self.watch:
                self._tell(self.watch.popleft())

    def scheduler_decides(self) -> None:
        for _ in range(self.dice.randrange(4)):
            if self.scheduler.ready(self.now_ns):
                self._take(self.scheduler.decide(self.now_ns))

    def command_lands(self) -> None:
        """The oldest, or another: several are carried out at a time."""
        if not self.to_do:
            return
        command = self.to_do.pop(self.dice.randrange(len(self.to_do)))
        if isinstance(command, c.Bind):
            self._tell(self._land(command))
        else:
            self._write(command, kind=self.dice.choice(("well", "well", "refused", "answer lost")))

    def controller_binds(self) -> None:
        """One claim that a volume is for, or that a volume is to be made for, is brought further."""
        for one in self.dice.sample(sorted(self.claims.values(), key=lambda one: one.key), len(self.claims)):
            if one.fully_bound:
                continue
            for held in self.volumes.values():
                if held.belongs_to(one, held.claim_ref):
                    self._write_claim(replace(one, volume_name=held.name, bind_completed=True, phase="Bound"))
                    return
            if one.selected_node is not None and one.class_name == "made":
                self._make_or_give_up(one, one.selected_node)
                return

    def somebody_else_takes_a_volume(self) -> None:
        free = [volume for volume in self.volumes.values() if volume.claim_ref is None]
        if free and self.dice.random() < 0.2:
            taken = self.dice.choice(free)
            foreign = ClaimRef(VolumeClaimKey("elsewhere", "theirs"), "uid-theirs")
            self._write_volume(replace(taken, claim_ref=foreign, phase="Bound"))

    def time_passes(self) -> None:
        self.now_ns += self.dice.choice((1, 5, 20, 700)) * SECOND_NS

    def process_dies(self) -> None:
        if self.dice.random() < 0.15:
            self.restart()

    # ── the end ────────────────────────────────────────────────────────────────────────────────────────────────────

    def come_to_rest(self) -> None:
        """No more faults: everything is carried out and shown, until nothing moves for a good while."""
        for _ in range(400):
            while self.watch:
                self._tell(self.watch.popleft())
            while self.scheduler.ready(self.now_ns):
                self._take(self.scheduler.decide(self.now_ns))
            while self.to_do:
                command = self.to_do.pop(0)
                if isinstance(command, c.Bind):
                    self._tell(self._land(command))
                else:
                    self._write(command, kind="well")
            self.controller_binds()
            self.now_ns += 2 * SECOND_NS
            self._look()

    def at_rest(self) -> list[str]:
        """Pods that have a node, or could not have one."""
        found = list(self.wrong)
        if self.scheduler.prebinding_count or self.scheduler.cache.ledger.unconfirmed:
            found.append("somebody is on the way for ever")
        waiting = [seen.pod for seen in self.pods.values() if seen.node is None]
        found += [
            f"{pod.name} waits and could go"
            for pod in waiting
            if any(self._could_go(pod, name) for name in NODES)
        ]
        return found

    def _could_go(self, one: Pod, name: str) -> bool:
        """Whether every claim is bound for this node, or has a volume there that nobody has; good enough for claims that
        are alone."""
        for use in one.claims:
            wanted = self.claims[use.claim]
            if wanted.fully_bound:
                if not _reaches(self.volumes[wanted.volume_name], name):
                    return False
            elif wanted.class_name == "made":
                if wanted.selected_node not in (None, name):
                    return False
            elif len(one.claims) > 1 or not any(
                held.claim_ref is None and held.class_name == "local" and _reaches(held, name)
                for held in self.volumes.values()
            ):
                return False
        return True

    # ── inside ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _tell(self, *events: e.Event) -> None:
        for event in events:
            self._take(self.scheduler.handle(event, self.now_ns))

    def _take(self, commands: list[c.Command]) -> None:
        for command in commands:
            if isinstance(command, c.Prebind):
                # A pod that is gone, or whose time was over, leaves its command behind: of two that write one version only
                # the first comes through.
                self.latest[command.uid] = command
                for uid in self.scheduler._core.binds.prebinding:
                    other = self.latest.get(uid)
                    if other is not None and any(one is other for one in self.to_do):
                        self.wrong += _both(command, other)
            if isinstance(command, c.Prebind | c.Bind):
                self.to_do.append(command)

    def _look(self) -> None:
        self.wrong += self.scheduler.check()

    def _land(self, bind: c.Bind) -> e.Event:
        seen = self.pods.get(bind.uid)
        if seen is None:
            return e.BindLost(bind.uid, "gone")
        if seen.node is None:
            for use in seen.pod.claims:
                held = self.claims[use.claim]
                if not held.fully_bound:
                    self.wrong.append(f"{bind.name} is bound before its claim {held.key.name}")
                elif not _reaches(self.volumes[held.volume_name], bind.node):
                    self.wrong.append(f"{bind.name} is on {bind.node}, out of reach of {held.volume_name}")
            self.pods[bind.uid] = replace(seen, node=bind.node)
            self.watch.append(e.PodUpdated(self.pods[bind.uid]))
        node_now = self.pods[bind.uid].node
        if node_now != bind.node:
            return e.BindLost(bind.uid, "elsewhere")
        return e.BindConfirmed(bind.uid, bind.node)

    def _write(self, command: c.Prebind, kind: str) -> None:
        versions: dict[str | VolumeClaimKey, int] = {}
        refusal = "the object has been modified" if kind == "refused" else None
        for one in command.volumes_to_bind:
            held = self.volumes.get(one.volume)
            if refusal is None and (held is None or held.version != one.version):
                refusal = "the object has been modified"
            if refusal is None and held is not None:
                ref = ClaimRef(one.claim, one.claim_uid)
                versions[held.name] = self._write_volume(replace(held, claim_ref=ref, phase="Bound"))
        for made in command.volumes_to_provision:
            wanted = self.claims.get(made.claim)
            if refusal is None and (wanted is None or wanted.version != made.version):
                refusal = "the object has been modified"
            if refusal is None and wanted is not None:
                versions[wanted.key] = self._write_claim(replace(wanted, selected_node=command.node))
        if kind == "answer lost":
            # Repeated, and refused for the version that it wrote itself.
            self._tell(e.PrebindRefused(command.uid, "the object has been modified", {}))
        elif refusal is not None:
            self._tell(e.PrebindRefused(command.uid, refusal, versions))
        else:
            self._tell(e.PrebindWritten(command.uid, versions))

    def _write_volume(self, one: PersistentVolume) -> int:
        self.version += 1
        self.volumes[one.name] = replace(one, version=self.version)
        self.watch.append(e.StorageObjectUpdated(self.volumes[one.name]))
        return self.version

    def _write_claim(self, one: PersistentVolumeClaim) -> int:
        self.version += 1
        self.claims[one.key] = replace(one, version=self.version)
        self.watch.append(e.StorageObjectUpdated(self.claims[one.key]))
        return self.version

    def _make_or_give_up(self, one: PersistentVolumeClaim, selected: NodeName) -> None:
        if self.dice.random() < 0.3:
            self._write_claim(replace(one, selected_node=None))
            return
        self.made += 1
        made = volume(
            f"made-{self.made}", node=selected, of_class="made", claim=one.key.name, claim_uid=one.uid
        )
        self._write_volume(made)


def _reaches(one: PersistentVolume, name: str) -> bool:
    terms = one.node_affinity_terms or ()
    return any(
        name in wanted.values for term in terms for wanted in term.expressions if wanted.key == HOSTNAME
    )


def _both(one: c.Prebind, other: c.Prebind) -> list[str]:
    theirs = {given.volume: given.claim for given in other.volumes_to_bind}
    return [
        f"{given.volume} is given to {given.claim.name} and to {theirs[given.volume].name}"
        for given in one.volumes_to_bind
        if theirs.get(given.volume, given.claim) != given.claim
    ]


_HAPPENINGS: tuple[Callable[[World], None], ...] = (
    World.pod_comes,
    World.pod_comes,
    World.pod_goes,
    World.watch_shows,
    World.watch_shows,
    World.watch_shows,
    World.scheduler_decides,
    World.scheduler_decides,
    World.scheduler_decides,
    World.command_lands,
    World.command_lands,
    World.controller_binds,
    World.somebody_else_takes_a_volume,
    World.time_passes,
    World.process_dies,
)


def run_world(seed: int, steps: int = 120) -> list[str]:
    """What was wrong in the world of this seed."""
    world = World(Random(seed))
    for _ in range(steps):
        world.step()
        if world.wrong:
            return world.wrong
    world.come_to_rest()
    return world.at_rest()
