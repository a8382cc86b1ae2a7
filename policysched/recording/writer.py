"""The half of the recorder on a thread of its own: encodes, compresses and writes, rotates and removes files.

    idle ──snapshot──► writing ──file full or old──► writing, and wants a snapshot ──snapshot──► writing (next file)
                          └──OSError──► failing: drops calls, wants a snapshot every 10 s ──snapshot──► writing, after a gap

A file is a sequence of gzip members, one a second or more often: what a killed process has written can be read, but for
its last second. Nothing is synced to the disk, so a node that loses power may lose more.
"""

import contextlib
import logging
import os
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

from policysched import __version__
from policysched.recording.event_codec import encode_event
from policysched.recording.format import (
    FORMAT_VERSION,
    Header,
    SchedulerState,
    file_name,
    parse_file_name,
    run_name,
)
from policysched.recording.recorder import (
    Call,
    DecideCall,
    EventCall,
    RecordedSnapshot,
    Recorder,
    RequeueCall,
)
from policysched.recording.recording_settings import RecordingSettings
from policysched.recording.value_codec import to_json

log = logging.getLogger(__name__)

FLUSH_S = 1.0
MEMBER_BYTES = 2**18
"""So many bytes of lines are compressed together."""
CALLS_PER_PAUSE = 100
PAUSE_S = 0.002
"""After this many lines the writer releases the interpreter's lock, which the decisions need."""
POLL_S = 0.1
RETRY_S = 10.0
CLOSE_TIMEOUT_S = 5.0


@dataclass(slots=True)
class RecordingCounts:
    """Since the start. `failure`: why nothing is written at present, "" if it is."""

    lines: int = 0
    bytes: int = 0
    files: int = 0
    dropped: int = 0
    failure: str = ""


def check_writable(folder: Path) -> None:
    """Makes the folder if there is none. Raises OSError if no recording can be written there."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryFile(dir=folder):
        pass


class RecordingWriter:
    """Writes what a recorder queues, from `start` to `close`. No error of the disk gets out."""

    def __init__(
        self, recorder: Recorder, settings: RecordingSettings, identity: str, now_ns: Callable[[], int]
    ) -> None:
        self.counts = RecordingCounts()
        self.recorder = self._recorder = recorder
        self._settings = settings
        self._identity = identity
        self._now_ns = now_ns
        self._run = ""
        self._number = 0
        self._file: int | None = None
        self._file_bytes = 0
        self._file_began_s = 0.0
        self._lines: list[bytes] = []
        self._lines_bytes = 0
        self._flushed_s = 0.0
        self._failed_s = 0.0
        self._gap: tuple[int, int, str] | None = None  # since (ns), lines, reason
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._work, name="recording", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Writes what is queued and ends; what takes longer than a few seconds is left out."""
        self._ends.set()
        self._thread.join(CLOSE_TIMEOUT_S)

    # ── the thread ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _work(self) -> None:
        while not self._ends.wait(POLL_S):
            self.write_queued(PAUSE_S)
        self.write_all()

    def write_all(self) -> None:
        """Writes all calls that are queued, and ends the run. Without a thread, tests call it."""
        self.write_queued()
        if self._file is not None:
            self._put_line(b'{"kind":"end","at_ns":%d}' % self._now_ns())
            self._guarded(self._flush)
            self._close_file()

    def write_queued(self, pause_s: float = 0.0) -> None:
        """Writes all calls that are queued now, and what is due by time."""
        queue, since_pause = self._recorder.queue, 0
        if self._run == "" and queue:
            self._run = run_name(self._now_ns(), self._identity)
            began_ns = queue[0].at_ns
            self._guarded(lambda: self._open_first_file(began_ns))
        while queue:
            self._write(queue.popleft(), pause_s)
            since_pause += 1
            if pause_s and since_pause >= CALLS_PER_PAUSE:
                since_pause = 0
                sleep(pause_s)
        if self._file is not None and monotonic() - self._flushed_s >= FLUSH_S:
            self._guarded(self._flush)
        if self._file is not None and monotonic() - self._file_began_s >= self._settings.file_age_max_s:
            self._recorder.wants_snapshot = True
        if self._file is None and self.counts.failure and monotonic() - self._failed_s >= RETRY_S:
            self._failed_s = monotonic()
            self._recorder.wants_snapshot = True

    def _write(self, call: Call, pause_s: float) -> None:
        if isinstance(call, RecordedSnapshot):
            if call.dropped:
                self._add_gap(
                    call.since_ns,
                    call.dropped,
                    "the queue was full, or two minutes old: the disk is too slow",
                )
            self._guarded(lambda: self._next_file(call, pause_s))
            return
        if self._file is None:
            self.counts.dropped += 1
            self._add_gap(call.at_ns, 1, self.counts.failure)
            return
        try:
            line = self._encode(call)
        except (TypeError, ValueError) as error:
            log.error(
                "cannot record an input of the scheduler",
                extra={"error": str(error), "type": type(call).__name__},
            )
            self.counts.dropped += 1
            self._add_gap(call.at_ns, 1, f"it cannot be recorded: {error}")
            self._recorder.wants_snapshot = True
            return
        self._put_line(line)
        if self._lines_bytes >= MEMBER_BYTES:
            self._guarded(self._flush)

    def _encode(self, call: EventCall | DecideCall | RequeueCall) -> bytes:
        match call:
            case EventCall(at_ns, event, decisions):
                name, value = encode_event(event, self._recorder.source_name_of)
                made = b',"decisions":' + to_json(decisions) if decisions else b""
                return b'{"kind":"event","at_ns":%d,"event":"%s","value":%s%s}' % (
                    *(at_ns, name.encode(), value),
                    made,
                )
            case DecideCall(at_ns, decisions, evictions, duration_ns, elapsed_ns):
                made = b',"decisions":' + to_json(decisions) if decisions else b""
                evicted = b',"evictions":' + to_json(evictions) if evictions else b""
                took = b"" if duration_ns is None else b',"duration_ns":%d' % duration_ns
                if elapsed_ns is not None:
                    took += b',"elapsed_ns":%d' % elapsed_ns
                return b'{"kind":"decide","at_ns":%d%s%s%s}' % (at_ns, took, made, evicted)
            case RequeueCall(at_ns):
                return b'{"kind":"requeue","at_ns":%d}' % at_ns

    # ── files ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _open_first_file(self, at_ns: int) -> None:
        self._settings.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._open_file(at_ns)
        self._put_snapshot(RecordedSnapshot(at_ns, [], SchedulerState()), 0.0)

    def _next_file(self, snapshot: RecordedSnapshot, pause_s: float) -> None:
        if self._file is not None:
            self._flush()
        self._close_file()
        self._open_file(snapshot.at_ns)
        if self._gap is not None:
            since_ns, lines, reason = self._gap
            gap = {"kind": "gap", "at_ns": snapshot.at_ns, "since_ns": since_ns, "lines": lines}
            self._put_line(to_json({**gap, "reason": reason}))
            log.warning("the recording has a gap", extra={"calls": lines, "error": reason})
            self._gap = None
        self.counts.failure = ""
        self._put_snapshot(snapshot, pause_s)
        self._flush()

    def _open_file(self, at_ns: int) -> None:
        settings = self._settings
        self._number += 1
        self._remove_old_files()
        path = settings.folder / file_name(self._run, self._number)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        self._file_bytes, self._file_began_s = 0, monotonic()
        self.counts.files += 1
        recorder = self._recorder
        run = self._run, self._number, at_ns
        header = Header(FORMAT_VERSION, __version__, *run, recorder.settings, recorder.is_shadow)
        self._put_line(b'{"kind":"header",' + to_json(header)[1:])
        self._flush()

    def _put_snapshot(self, snapshot: RecordedSnapshot, pause_s: float) -> None:
        for count, event in enumerate(snapshot.events, start=1):
            name, value = encode_event(event, self._recorder.source_name_of)
            self._put_line(
                b'{"kind":"snapshot","at_ns":%d,"event":"%s","value":%s}'
                % (snapshot.at_ns, name.encode(), value)
            )
            if self._lines_bytes >= MEMBER_BYTES:
                self._flush()
            if pause_s and count % CALLS_PER_PAUSE == 0:
                sleep(pause_s)
        state = to_json(snapshot.state)
        self._put_line(b'{"kind":"snapshot-end","at_ns":%d,"state":%s}' % (snapshot.at_ns, state))

    def _put_line(self, line: bytes) -> None:
        self._lines.append(line)
        self._lines_bytes += len(line) + 1

    def _flush(self) -> None:
        """Compresses the lines to one member, and writes it whole or not at all. Raises OSError."""
        self._flushed_s = monotonic()
        if not self._lines or self._file is None:
            return
        lines, self._lines, self._lines_bytes = self._lines, [], 0
        compressor = zlib.compressobj(1, zlib.DEFLATED, 31)
        member = compressor.compress(b"\n".join(lines) + b"\n") + compressor.flush()
        try:
            _write_all(self._file, member)
        except OSError:
            os.ftruncate(self._file, self._file_bytes)
            self.counts.dropped += len(lines)
            self._add_gap(self._now_ns(), len(lines), "")
            raise
        self._file_bytes += len(member)
        self.counts.bytes += len(member)
        self.counts.lines += len(lines)
        if self._file_bytes >= self._settings.file_bytes_max:
            self._recorder.wants_snapshot = True

    def _remove_old_files(self) -> None:
        """Make space for the next file. Raises OSError."""
        settings = self._settings
        oldest_s = self._now_ns() / 1e9 - settings.age_max_s
        files = list(_recorded_files(settings.folder))
        bytes_max = settings.bytes_max - settings.file_bytes_max
        total = sum(size for _, size, _ in files)
        for path, size, modified_s in files:
            if total <= bytes_max and modified_s >= oldest_s:
                break
            path.unlink(missing_ok=True)
            total -= size

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _add_gap(self, since_ns: int, lines: int, reason: str) -> None:
        if self._gap is None:
            self._gap = since_ns, lines, reason
        else:
            self._gap = self._gap[0], self._gap[1] + lines, self._gap[2] or reason

    def _guarded(self, step: Callable[[], None]) -> None:
        """Runs a step that writes. The disk's error ends the file, and a later snapshot begins a new one."""
        try:
            step()
        except OSError as error:
            reason = f"{error.strerror or error}: {error.filename or self._settings.folder}"
            if not self.counts.failure:
                log.error(
                    "cannot write the recording; scheduling continues unrecorded", extra={"error": reason}
                )
            self.counts.failure, self._failed_s = reason, monotonic()
            lines, self._lines, self._lines_bytes = len(self._lines), [], 0
            self.counts.dropped += lines
            self._add_gap(self._now_ns(), lines, reason)
            with contextlib.suppress(OSError):
                self._close_file()


def _write_all(file: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(file, rest) :]


def _recorded_files(folder: Path) -> Iterator[tuple[Path, int, float]]:
    """The files of recordings, oldest first: path, size, time of the last change."""
    for path in sorted(path for path in folder.iterdir() if parse_file_name(path.name) is not None):
        status = path.lstat()
        yield path, status.st_size, status.st_mtime
