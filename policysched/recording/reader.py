"""Reads recordings: `open_recording` finds the files, `Recording.items` yields what they say in order.

    recording = open_recording(Path("DIR"))
    for item in recording.items(since_ns=..., until_ns=...):
        match item:
            case FileStarted():      a file of a run; the cluster begins anew, with the snapshot that follows
            case RecordedEvent():    `event` for `Scheduler.handle`; of the snapshot where `is_snapshot`
            case SnapshotEnded():    the snapshot is complete
            case RecordedDecide():   a call of `Scheduler.decide`, with what it decided
            case RecordedRequeue():  a call of `Scheduler.requeue_current_attempt`
            case RecordingGap():              calls are missing here; a new file with its own snapshot follows
            case RunEnded():         the process stopped in good order

With `since_ns` the items begin at the last file that starts before it, since the state at that time is that file's snapshot and
all that follows: skip the decisions before `since_ns` yourself. What cannot be read is in `Recording.problems`, one
line each, and reading continues with the next file. Only one piece of a file is in memory.
"""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from policysched.evaluate import NotCounted
from policysched.recording.event_codec import EventDecoder, decode_line, require_time
from policysched.recording.format import FORMAT_VERSION, Header, SchedulerState, parse_file_name
from policysched.recording.value_codec import UndecodableValue, decoder
from policysched.scheduler.blame import RaisedFor
from policysched.scheduler.commands import Evict
from policysched.scheduler.decision_records import Decision
from policysched.scheduler.events import Event
from policysched.text.sanitize import sanitize_line

_PIECE_BYTES = 2**18
LINE_BYTES_MAX = 2**28
"""A line with the samples between 5,000 nodes has a tenth of it. A compressed file of a megabyte could have one of a gigabyte."""

MALFORMED = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What values of a wrong form raise where they are used."""
CONTRADICTIONS = (AssertionError, NotCounted, RaisedFor, *MALFORMED)
"""What the core raises where a recording contradicts itself: it trusts its inputs, and the recording may be edited."""


class UnusableRecording(Exception):
    """The folder has no recording that can be read; the message is one line."""


@dataclass(frozen=True, slots=True)
class FileStarted:
    path: Path
    header: Header


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """`decisions`: of an attempt in progress, which the event ended."""

    at_ns: int
    event: Event
    is_snapshot: bool
    decisions: tuple["RecordedDecision", ...] = ()


@dataclass(frozen=True, slots=True)
class SnapshotEnded:
    at_ns: int
    state: SchedulerState


@dataclass(frozen=True, slots=True)
class RecordedDecision:
    """A decision as it was recorded. `text` is its JSON, which `replay` compares byte for byte."""

    decision: Decision
    text: bytes


@dataclass(frozen=True, slots=True)
class RecordedDecide:
    """`decisions` is empty for a step of a longer attempt, and where there was no decision. `evictions` are the commands that
    went with them. `elapsed_ns` is for `Scheduler.account_time`, unless None."""

    at_ns: int
    decisions: tuple[RecordedDecision, ...] = ()
    evictions: tuple[Evict, ...] = ()
    elapsed_ns: int | None = None


@dataclass(frozen=True, slots=True)
class RecordedRequeue:
    at_ns: int


@dataclass(frozen=True, slots=True)
class RecordingGap:
    """`lines` calls were not recorded, for this reason; from `since_ns` on, until `at_ns`."""

    at_ns: int
    since_ns: int
    lines: int
    reason: str


@dataclass(frozen=True, slots=True)
class RunEnded:
    at_ns: int


Item = (
    FileStarted | RecordedEvent | SnapshotEnded | RecordedDecide | RecordedRequeue | RecordingGap | RunEnded
)


@dataclass(frozen=True, slots=True)
class RecordingFile:
    """A file whose header can be read. `size`: its bytes."""

    path: Path
    header: Header
    size: int


@dataclass(slots=True)
class Recording:
    """The files of a folder, by run and number. `problems` grows while they are read; `bytes_read` (compressed) too, up to
    `bytes_total(since_ns)`, for a progress bar."""

    files: tuple[RecordingFile, ...]
    problems: list[str] = field(default_factory=list)
    events: EventDecoder = field(default_factory=EventDecoder)
    bytes_read: int = 0

    @property
    def ends_ns(self) -> int:
        """When something was written last."""
        return max(file.path.stat().st_mtime_ns for file in self.files)

    def files_from(self, since_ns: int | None) -> tuple[RecordingFile, ...]:
        """Of each run the last file that starts before `since_ns`, and all after it."""
        if since_ns is None:
            return self.files
        first: dict[str, int] = {}
        for file in self.files:
            if file.header.at_ns <= since_ns:
                first[file.header.run] = file.header.number
        later = [file for file in self.files if file.header.number >= first.get(file.header.run, 0)]
        # A run that ended before is over, as far as one can tell from the file that follows it.
        return tuple(
            file
            for file, following in zip(later, [*later[1:], None], strict=True)
            if file.header.at_ns > since_ns
            or following is None
            or following.header.run == file.header.run
            or following.header.at_ns > since_ns
        )

    def bytes_total(self, since_ns: int | None = None) -> int:
        return sum(file.size for file in self.files_from(since_ns))

    def items(self, since_ns: int | None = None, until_ns: int | None = None) -> Iterator[Item]:
        """What the files say, in order; up to `until_ns`."""
        self.bytes_read = 0
        for file in self.files_from(since_ns):
            if until_ns is not None and file.header.at_ns > until_ns:
                continue
            yield FileStarted(file.path, file.header)
            for item in self._items_of(file):
                if until_ns is not None and not _is_of_snapshot(item) and _time_of(item) > until_ns:
                    break
                yield item

    def _items_of(self, file: RecordingFile) -> Iterator[Item]:
        lines = self._lines(file)
        next(lines, None)  # the header
        for number, line in enumerate(lines, start=2):
            try:
                yield self._decode(decode_line(line))
            except UndecodableValue as error:
                self.problems.append(
                    f"{file.path.name} line {number}: {sanitize_line(str(error))}; the rest of the file is skipped"
                )
                return

    def _lines(self, file: RecordingFile) -> Iterator[bytes]:
        try:
            for line, size in _read_lines(file.path):
                self.bytes_read += size
                yield line
        except _CutOff as cut:
            self.problems.append(f"{file.path.name}: {cut}")
        except OSError as error:
            self.problems.append(f"{file.path.name}: {error.strerror or error}")

    def _decode(self, line: Mapping[str, Any]) -> Item:
        try:
            return self._decode_known(line)
        except KeyError as missing:
            raise UndecodableValue(f"a `{line['kind']}` line lacks `{missing.args[0]}`") from None
        except MALFORMED as error:
            raise UndecodableValue(
                f"a `{line['kind']}` line is malformed: {sanitize_line(str(error))}"
            ) from None

    def _decode_known(self, line: Mapping[str, Any]) -> Item:
        match line["kind"]:
            case "event" | "snapshot" as kind:
                event = self.events.decode(line["event"], line["value"])
                return RecordedEvent(
                    line["at_ns"], event, kind == "snapshot", _decisions(line.get("decisions", ()))
                )
            case "decide":
                decode_evict = decoder(Evict)
                return RecordedDecide(
                    line["at_ns"],
                    _decisions(line.get("decisions", ())),
                    tuple([decode_evict(evict) for evict in line.get("evictions", ())]),
                    line.get("elapsed_ns"),
                )
            case "requeue":
                return RecordedRequeue(line["at_ns"])
            case "gap":
                return RecordingGap(line["at_ns"], line["since_ns"], line["lines"], line["reason"])
            case "snapshot-end":
                return SnapshotEnded(line["at_ns"], decoder(SchedulerState)(line["state"]))
            case "end":
                return RunEnded(line["at_ns"])
            case kind:
                raise UndecodableValue(f"a line of the unknown kind {kind!r:.40}")


def open_recording(folder: Path) -> Recording:
    """The recording in a folder, with the problems of files that cannot be used. Raises UnusableRecording."""
    try:
        names = sorted(path for path in folder.iterdir() if parse_file_name(path.name) is not None)
    except FileNotFoundError:
        raise UnusableRecording(f"{folder}: no such folder") from None
    except OSError as error:
        raise UnusableRecording(f"{folder}: {error.strerror or error}") from None
    files, problems = [], []
    for path in names:
        try:
            files.append(RecordingFile(path, read_header(path), path.stat().st_size))
        except (UndecodableValue, OSError) as error:
            reason = sanitize_line(getattr(error, "strerror", None) or str(error))
            problems.append(f"{path.name}: {reason}; the file is skipped")
    if not files:
        raise UnusableRecording(problems[0] if problems else f"{folder} has no recording (files *.jsonl.gz)")
    return Recording(tuple(files), problems)


def read_header(path: Path) -> Header:
    """Raises UndecodableValue, also for a format of another version, and OSError."""
    try:
        first = next(_read_lines(path), None)
    except _CutOff:
        first = None
    if first is None:
        raise UndecodableValue("empty, or cut off before its first line is complete")
    line = decode_line(first[0])
    if line["kind"] != "header":
        raise UndecodableValue("the first line is not a header")
    if line.get("format") != FORMAT_VERSION:
        raise UndecodableValue(
            f"format {sanitize_line(line.get('format'))}, written by policysched {sanitize_line(line.get('policysched'))}; "
            f"this version reads format {FORMAT_VERSION}"
        )
    try:
        header: Header = decoder(Header)({name: value for name, value in line.items() if name != "kind"})
    except MALFORMED as error:
        raise UndecodableValue(f"the header is malformed: {error}") from None
    return header


class _CutOff(Exception):
    """A file does not end with a complete line."""


def _read_lines(path: Path) -> Iterator[tuple[bytes, int]]:
    """The complete lines, and how many compressed bytes were read for each. Raises _CutOff behind the last one where the
    file is cut off or damaged, and OSError."""
    pieces, pieces_bytes, read = list[bytes](), 0, 0  # of the line that is not complete
    member, is_begun = zlib.decompressobj(wbits=31), False
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            read += len(piece)
            is_more = True
            while is_more:
                try:
                    text = member.decompress(piece, _PIECE_BYTES)
                except zlib.error as error:
                    raise _CutOff(f"damaged ({error}); the rest of it is not read") from None
                first, *others = text.split(b"\n")
                pieces.append(first)
                pieces_bytes += len(first)
                if pieces_bytes > LINE_BYTES_MAX:
                    raise _CutOff(f"a line has more than {LINE_BYTES_MAX} bytes; the rest of it is not read")
                if others:
                    *lines, last = b"".join(pieces), *others
                    pieces, pieces_bytes = [last], len(last)
                    for line in lines:
                        yield line, read
                        read = 0
                piece, is_begun = member.unconsumed_tail or member.unused_data, not member.eof
                is_more = bool(piece) or (is_begun and len(text) == _PIECE_BYTES)
                if member.eof:
                    member = zlib.decompressobj(wbits=31)
    if pieces_bytes or is_begun:
        raise _CutOff("cut off in its last line, as by a process that was killed; all before it is read")


def _decisions(values: Any) -> tuple[RecordedDecision, ...]:
    decode = decoder(Decision)
    decisions = tuple([RecordedDecision(decode(value), orjson.dumps(value)) for value in values])
    for recorded in decisions:
        require_time(recorded.decision.at_ns, "a decision")
    return decisions


def _is_of_snapshot(item: Item) -> bool:
    return isinstance(item, SnapshotEnded) or (isinstance(item, RecordedEvent) and item.is_snapshot)


def _time_of(item: Item) -> int:
    return item.header.at_ns if isinstance(item, FileStarted) else item.at_ns
