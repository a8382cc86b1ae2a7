"""Random workloads over time: pods arrive and end, nodes are cordoned, and a policy decides as `run` would."""

import random
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from policysched.model.identifiers import PodUid
from policysched.model.pod_status import ObservedPod
from policysched.recording.recording_settings import RecordingSettings
from policysched.recording.writer import RecordingWriter
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.limits import SECOND_NS
from policysched.scheduler.scheduler import Scheduler
from tests.builders import node, pending, pod
from tests.comparison.clusters import NOW_NS
from tests.recording.recorded import recorded_scheduler
from tests.recording.simulated import InlineRecorder
from tests.scheduler.rig import bundle

STEPS = 40


@dataclass(slots=True)
class Workload:
    """What happens outside, by second. The pods that end have the highest priority, so that nobody evicts them."""

    events: Mapping[int, list[e.Event]]


def random_workload(seed: int, *, nodes: int = 6) -> Workload:
    rng = random.Random(seed)
    events: defaultdict[int, list[e.Event]] = defaultdict(list)
    for number in range(nodes):
        made = node(
            f"node-{number}", cpu=rng.choice(["4", "8"]), memory="16Gi", labels={"pool": "abc"[number % 3]}
        )
        events[0].append(e.NodeUpdated(made))
        if rng.random() < 0.5:
            at = rng.randrange(1, STEPS)
            events[at].append(e.NodeUpdated(replace(made, unschedulable=True)))
            events[at + 7].append(e.NodeUpdated(made))
    for number in range(2 * STEPS):
        priority = rng.choice([0, 0, 0, 5])
        arrived = pod(
            f"pod-{number}", cpu=rng.choice(["100m", "500m", "1", "2"]), priority=priority, scheduler="test"
        )
        at = rng.randrange(STEPS - 1)
        events[at].append(e.PodUpdated(pending(arrived)))
        if priority == 5 and rng.random() < 0.5:
            events[rng.randrange(at + 1, STEPS)].append(e.PodDeleted(arrived.uid))
    return Workload(events)


@dataclass
class Play:
    """A workload with one policy: what happened to each pod in the end."""

    outcomes: dict[str, str] = field(default_factory=dict)

    def run(self, workload: Workload, text: str, scheduler: Scheduler) -> None:
        self._scheduler, self._timer_ns = scheduler, 0
        self._pods: dict[PodUid, ObservedPod] = {}
        self._evicted: set[PodUid] = set()
        now_ns = NOW_NS
        self._handle(e.PoliciesUpdated(bundle({"test.policy": text}), resource_version="1"), now_ns)
        for second in range(STEPS):
            step_ns = NOW_NS + second * SECOND_NS
            while now_ns < self._timer_ns < step_ns:
                now_ns = self._timer_ns
                self._decide(now_ns)
            now_ns = step_ns
            for event in workload.events.get(second, ()):
                if isinstance(event, e.PodDeleted) and event.uid in self._evicted:
                    continue
                if isinstance(event, e.PodUpdated):
                    self._pods[event.pod.pod.uid] = event.pod
                self._handle(event, now_ns)
            if second == 0:
                self._handle(e.Synced(), now_ns)
            self._decide(now_ns)

    def _handle(self, event: e.Event, now_ns: int) -> None:
        self._execute(self._scheduler.handle(event, now_ns), now_ns)

    def _decide(self, now_ns: int) -> None:
        while self._scheduler.ready(now_ns):
            commands = self._scheduler.decide(now_ns)
            self._scheduler.account_time(1)
            self._execute(commands, now_ns)

    def _execute(self, commands: list[c.Command], now_ns: int) -> None:
        for command in commands:
            match command:
                case c.Bind(uid=uid, node=chosen):
                    bound = self._pods[uid] = replace(self._pods[uid], node=chosen)
                    self.outcomes[bound.pod.full_name] = chosen
                    self._handle(e.BindConfirmed(uid, chosen), now_ns)
                    self._handle(e.PodUpdated(bound), now_ns)
                case c.Evict(uid=uid, victims=victims):
                    for victim in victims:
                        self._evicted.add(victim.uid)
                        self.outcomes[f"{victim.namespace}/{victim.name}"] = "evicted"
                        self._handle(e.PodDeleted(victim.uid), now_ns)
                    self._handle(e.Evicted(uid, tuple(victim.uid for victim in victims)), now_ns)
                case c.ReportPending(namespace=namespace, name=name):
                    self.outcomes[f"{namespace}/{name}"] = "pending"
                case c.SetTimer(at_ns):
                    self._timer_ns = at_ns
                case _:
                    pass


def played(workload: Workload, text: str) -> dict[str, str]:
    """By pod: its node, `pending` or `evicted`, as `run` decides."""
    play = Play()
    play.run(workload, text, Scheduler())
    return play.outcomes


def record(workload: Workload, text: str, folder: Path, *, file_bytes_max: int = 2**26) -> dict[str, str]:
    """Record what `run` decides. With few bytes for each file it has a snapshot every 50 calls."""
    recorder = InlineRecorder()
    limits = RecordingSettings(folder, file_bytes_max=file_bytes_max)
    recorder.writer = RecordingWriter(recorder, limits, "test", lambda: NOW_NS)
    scheduler = recorded_scheduler(recorder)
    play = Play()
    play.run(workload, text, scheduler)
    recorder.writer.write_all()
    return play.outcomes
