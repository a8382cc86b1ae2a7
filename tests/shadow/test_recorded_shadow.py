"""What a shadow records of another scheduler's cluster is enough to say what policies would have done there."""

from pathlib import Path
from typing import Any

from policysched.comparison.compared_recording import compared_recording
from policysched.comparison.comparison import compare
from policysched.recording.reader import open_recording
from policysched.recording.recording_settings import RecordingSettings
from policysched.recording.replay import replay
from policysched.recording.writer import RecordingWriter
from policysched.scheduler import events as e
from policysched.scheduler.commands import Command
from policysched.scheduler.scheduler import Scheduler
from policysched.shadow.observer import Observer
from tests.comparison.clusters import EDITS, NOW_NS, POLICY, edited, policy
from tests.comparison.workloads import Play, played, random_workload
from tests.recording.simulated import InlineRecorder

_SEEN = (e.NodeUpdated, e.PodUpdated, e.PodDeleted, e.Synced)
ALONE = POLICY.replace("preemption { victims = any }", "preemption never")


class WatchedScheduler(Scheduler):
    """The other scheduler: what the API server shows of it goes to an observer."""

    def __init__(self, observer: Observer) -> None:
        super().__init__()
        self._observer = observer

    def handle(self, event: e.Event, now_ns: int) -> list[Command]:
        if isinstance(event, _SEEN):
            self._observer.handle(event, now_ns)
        return super().handle(event, now_ns)


def record_shadow(text: str, folder: Path, **limits: Any) -> dict[str, str]:
    """The other scheduler decides by `text`. Returns what it decided."""
    recorder = InlineRecorder(is_shadow=True)
    recorder.writer = RecordingWriter(recorder, RecordingSettings(folder, **limits), "shadow", lambda: NOW_NS)
    observer = Observer(policy(text), "test", now_ns=NOW_NS, recorder=recorder)
    play = Play()
    play.run(random_workload(1), text, WatchedScheduler(observer))
    recorder.writer.write_all()
    return play.outcomes


def test_policies_are_compared_over_what_a_shadow_saw(tmp_path: Path) -> None:
    before = record_shadow(ALONE, tmp_path)
    changed = edited(EDITS[:1]).replace("preemption { victims = any }", "preemption never")
    after = played(random_workload(1), changed)
    assert before != after

    compared = compared_recording(open_recording(tmp_path), "mine", None, None)
    comparison = compare(policy(ALONE), policy(changed), compared)

    assert compared.policy_name == "test"
    assert comparison.as_recorded is not None
    assert comparison.as_recorded[0] == comparison.as_recorded[1] > 20
    moved = {pod: change.after.node or change.after.kind for pod, change in comparison.changed.items()}
    assert before | moved == after


def test_a_shadow_has_no_decisions_to_replay(tmp_path: Path) -> None:
    record_shadow(ALONE, tmp_path, file_bytes_max=1)

    report = replay(open_recording(tmp_path))

    assert (report.decisions, report.different, report.problems) == (0, 0, [])
