"""Recordings: the inputs of the scheduler with their times, and its decisions, in files that `policysched replay` reproduces.

    RecordedScheduler ──calls──► Recorder ──a bounded queue──► RecordingWriter (a thread) ──► DIR/*.jsonl.gz
    DIR/*.jsonl.gz ──► recording_files ──► reader.Recording ──► replay, or any other analysis

The core is deterministic, so its inputs (`Scheduler.handle`, `Scheduler.decide` and their times) are enough to repeat
every decision. docs/recording.md documents the format; `format.FORMAT_VERSION` counts its incompatible changes. To use
a recording, start at `reader.open_recording`.

Nothing here may hold up the scheduler: what cannot be written is dropped and reported as a gap. A recording never has
more than what the scheduler reads, so no Secret and no environment of a container is in it.
"""
