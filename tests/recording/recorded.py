"""A small recording, written when the test says so."""

import json
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from policysched.recording.recorder import RecordedScheduler, Recorder
from policysched.recording.recording_settings import RecordingSettings
from policysched.recording.writer import RecordingWriter
from policysched.scheduler import events as e
from policysched.scheduler.commands import Bind
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.policy_permissions import PolicyPermissions
from tests.bench.clusters import NOW_NS
from tests.builders import node, pending, pod
from tests.scheduler.rig import bundle

POLICY = "policy {name} version 1\ninclude kube_default\n"


def recorded_scheduler(recorder: Recorder) -> RecordedScheduler:
    return RecordedScheduler(
        recorder,
        SchedulerLimits(),
        {},
        permissions=PolicyPermissions(),
        first_samples_s=0.0,
        source_name_of=lambda metric: metric.source,
    )


class Recorded:
    """A scheduler with a recorder, whose writer works when it is told to."""

    def __init__(
        self, folder: Path, *, queue_max: int = 10_000, policies: Sequence[str] = ("test",), **limits: int
    ) -> None:
        self.folder = folder
        self.now_ns = NOW_NS
        self.monotonic_s = 1000.0
        self.recorder = Recorder(queue_max, monotonic_s=lambda: self.monotonic_s)
        self.writer = RecordingWriter(
            self.recorder, RecordingSettings(folder, **limits), "test", lambda: self.now_ns
        )
        self.scheduler = recorded_scheduler(self.recorder)
        self.pods = 0
        self.handle(e.NodeUpdated(node("a", cpu="4")))
        self.handle(
            e.PoliciesUpdated(
                bundle({f"{name}.policy": POLICY.format(name=name) for name in policies}),
                resource_version="1",
            )
        )
        self.handle(e.Synced())

    def handle(self, event: e.Event) -> None:
        self.now_ns += 1_000_000
        self.scheduler.handle(event, self.now_ns)

    def add_pod(self, *, cpu: str = "10m", scheduler: str = "test") -> None:
        self.pods += 1
        self.handle(e.PodUpdated(pending(pod(f"p{self.pods}", cpu=cpu, scheduler=scheduler))))

    def decide(self, *, elapsed_ns: int = 1) -> None:
        """One call, as the program makes it; its binds are confirmed."""
        commands = self.scheduler.decide(self.now_ns)
        self.scheduler.account_time(elapsed_ns)
        for command in commands:
            if isinstance(command, Bind):
                self.handle(e.BindConfirmed(command.uid, command.node))

    def place_pods(self, count: int) -> None:
        for _ in range(count):
            self.add_pod()
            while self.scheduler.ready(self.now_ns):
                self.decide()

    def files(self) -> list[Path]:
        return sorted(self.folder.iterdir())


def lines(path: Path) -> Iterator[dict[str, object]]:
    rest = path.read_bytes()
    while rest:
        member = zlib.decompressobj(31)
        yield from map(json.loads, member.decompress(rest).splitlines())
        rest = member.unused_data


def write_member(*values: object) -> bytes:
    compressor = zlib.compressobj(wbits=31)
    text = "".join(json.dumps(value) + "\n" for value in values)
    return compressor.compress(text.encode()) + compressor.flush()


def edit_score(folder: Path, *, decision: int) -> None:
    """Add one to the score of a decision, as somebody with an editor might."""
    (file,) = folder.iterdir()
    written = list(lines(file))
    for line in written:
        for made in line.get("decisions", ()):  # type: ignore[attr-defined]
            made["score"] += made["id"] == decision
    file.write_bytes(write_member(*written))
