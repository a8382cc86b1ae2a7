"""Recordings of the simulation's seeds: every process of every replica is a run."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

from policysched.recording.recorder import Recorder
from policysched.recording.recording_settings import RecordingSettings
from policysched.recording.writer import RecordingWriter
from policysched.runtime.scheduler_app import SchedulerApp
from tests.simulation.world import Report, run_seed

CALLS_PER_WRITE = 50


class InlineRecorder(Recorder):
    """Its writer works on the caller's thread: the threads would be real, and the time is not."""

    writer: RecordingWriter

    def _put(self, call: Any) -> None:
        super()._put(call)
        if len(self.queue) >= CALLS_PER_WRITE:
            self.writer.write_queued()


def record_seed(
    seed: int, folder: Path, *, file_bytes_max: int = 2**26
) -> tuple[Report, list[RecordingWriter]]:
    """Play a seed with a recorder for each process."""
    writers: list[RecordingWriter] = []

    def recorded(settings: Any, runtime: Any, *args: Any, **options: Any) -> SchedulerApp:
        recorder = InlineRecorder()
        limits = RecordingSettings(folder, file_bytes_max=file_bytes_max)
        recorder.writer = RecordingWriter(
            recorder, limits, f"{runtime.identity}-{len(writers)}", runtime.now_ns
        )
        writers.append(recorder.writer)
        return SchedulerApp(settings, runtime, *args, **options, recorder=recorder)

    with patch("tests.simulation.replica.SchedulerApp", recorded):
        report = run_seed(seed)
    for writer in writers:
        writer.write_all()
    return report, writers
