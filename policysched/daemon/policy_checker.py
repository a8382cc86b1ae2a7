"""Checks the texts of a ConfigMap, off the decision thread: syntax, names and types. `daemon.policy_feed` and
`daemon.team_policy_feed` call it.

Checking a long policy takes tenths of a second, so it runs in a worker process with limits on time and memory. Each text
has a limit of its own: one that exceeds it is rejected, and the others take effect. Texts that took too long the last time
are checked last, so that they cannot use up the time of all others. Each worker does one job; a spare one has everything
imported, so that an edit takes effect at once.

The time limits are on CPU time. A limit on wall time would reject good policies while the node is busy with other work,
and at startup end the scheduler; it only catches workers that hang. The result is unpickled on a thread, beside the
decisions: it has tens of thousands of objects for a policy near the limits. The scheduler makes a `Plan` of a checked
program later, in slices: `scheduler.policy_reload`.
"""

import asyncio
import contextlib
import logging
import os
import pickle
import signal
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

import orjson

from policysched.child_process import ChildProcess
from policysched.files import normalize_text
from policysched.lang.check import check_sources
from policysched.lang.check.bundle import CheckedSource, PolicyBundle
from policysched.lang.check.limits import POLICY_COST_MAX, TextGuard
from policysched.lang.check.team_texts import RequiredBase
from policysched.lang.diagnostics.catalogue import make_diagnostic
from policysched.lang.ir.program import removed_program
from policysched.policy_files.parameter_values import (
    SETTINGS_KEY_PREFIX,
    invalid_utf8_offset,
    policy_name_in,
    read_parameter_values,
)
from policysched.policy_files.source_set import PARAMETERS_SUFFIX, POLICY_SUFFIX, removed_name
from policysched.text import Diagnostic, Source, Span
from policysched.text.sanitize import sanitize_line

log = logging.getLogger(__name__)

REMOVAL_REASON_CHARS_MAX = 200

PolicyTexts = Mapping[str, str]
"""By key. An invalid UTF-8 byte is a lone surrogate (`decode_text`), which no text from the API server contains."""
CheckTexts = Callable[[PolicyTexts, str], Awaitable[PolicyBundle]]
"""Checks texts by key and their location (`ConfigMap kube-system/policies`). Never raises because of its input."""


_TEAM_LIMITS_VERSION = 2
"""Of what a team's text may contain (`team_texts`, `team_reads`): saved texts of another version are checked again."""


@dataclass(frozen=True)
class TeamBase:
    """What a team's texts are checked with: the operator's `texts` of `location` (libraries, and parameter values of the
    settings), and the key of the library that each of the team's policies includes first."""

    texts: PolicyTexts
    location: str
    required: str

    @cached_property
    def sha256(self) -> str:
        """Of what a saved text was checked with. The base may have a mebibyte, and is compared for each text."""
        content = [_TEAM_LIMITS_VERSION, self.required, dict(self.texts)]
        return sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()


CheckTeamTexts = Callable[[PolicyTexts, str, TeamBase], Awaitable[PolicyBundle]]
"""As `CheckTexts`, for the texts of a team: the bundle has only these. No key is one of the base."""


def policy_texts(data: PolicyTexts) -> dict[str, str]:
    """The keys of a ConfigMap that are policies, libraries, parameter values or removals. Other keys are ignored."""
    return {
        key: data[key]
        for key in sorted(data)
        if key.endswith((POLICY_SUFFIX, PARAMETERS_SUFFIX)) or removed_name(key) is not None
    }


def decode_text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def check_texts(
    texts: PolicyTexts,
    location: str,
    cost_max: int = POLICY_COST_MAX,
    guard: TextGuard = nullcontext,
    check_last: Collection[str] = (),
    base: TeamBase | None = None,
) -> PolicyBundle:
    """The arguments from `cost_max` to `check_last` are those of `check_sources`; `base` is that of a team's texts."""
    below = {} if base is None else _sources(base.texts, base.location)
    parameter_sources = {} if base is None else _parameter_sources(base.texts, base.location)
    bundle = check_sources(
        {**_sources(texts, location), **below},
        read_parameter_values({**_parameter_sources(texts, location), **parameter_sources}),
        cost_max,
        guard,
        check_last,
        None if base is None else RequiredBase(base.required, frozenset(below)),
    )
    bundle = PolicyBundle({key: source for key, source in bundle.sources.items() if key not in below})
    return _with_removals(_with_missing_texts(bundle.sources, texts, location), texts, location)


def _sources(texts: PolicyTexts, location: str) -> dict[str, Source]:
    """The policies and libraries, normalized as `lint` reads them from files: kubectl copies a file into a ConfigMap
    with its byte order mark and line endings."""
    return {
        key: Source(f"{location} key {key}", normalize_text(text))
        for key, text in texts.items()
        if key.endswith(POLICY_SUFFIX) and invalid_utf8_offset(text) is None
    }


def _with_missing_texts(
    checked: Mapping[str, CheckedSource], texts: PolicyTexts, location: str
) -> PolicyBundle:
    """Adds the policy keys whose value is not text."""
    no_texts = {
        key: CheckedSource(
            key, False, None, (_missing_text(f"{location} key {key}", at),), policy_name_in(text)
        )
        for key, text in texts.items()
        if key.endswith(POLICY_SUFFIX) and (at := invalid_utf8_offset(text)) is not None
    }
    return PolicyBundle(dict(sorted({**checked, **no_texts}.items())))


def _with_removals(bundle: PolicyBundle, texts: PolicyTexts, location: str) -> PolicyBundle:
    """Replaces the texts of removed policies by programs that refuse their pods. A removal wins over a text: what removes
    a policy must not depend on who deletes the text, and when."""
    removals = {name: key for key in texts if (name := removed_name(key)) is not None}
    kept = {
        key: source for key, source in bundle.sources.items() if _policy_of(source, texts) not in removals
    }
    for name, key in removals.items():
        program = removed_program(name, _removal_message(name, texts[key], f"key {key} of {location}"))
        kept[key] = CheckedSource(key, False, program, (), name)
    return PolicyBundle(dict(sorted(kept.items())))


def _policy_of(source: CheckedSource, texts: PolicyTexts) -> str | None:
    """The policy of a key, as far as a broken text shows it."""
    return None if source.is_library else source.policy_name or policy_name_in(texts[source.key])


def _removal_message(name: str, reason: str, location: str) -> str:
    line = sanitize_line(" ".join(reason.split())[:REMOVAL_REASON_CHARS_MAX])
    because = f" ({line})" if line else ""
    return f"policy {name} is removed{because}; give the pod another schedulerName, or delete the {location}"


def _missing_text(name: str, at: int) -> Diagnostic:
    return make_diagnostic(
        "PS907",
        f"not UTF-8 text (byte {at})",
        Span(Source(name, ""), 0, 0),
        help="save the file as UTF-8; kubectl stores files in other encodings under `binaryData`",
    )


def _parameter_sources(texts: PolicyTexts, location: str) -> dict[str, Source]:
    return {
        key: Source("settings" if key.startswith(SETTINGS_KEY_PREFIX) else f"{location} key {key}", text)
        for key, text in texts.items()
        if key.endswith(PARAMETERS_SUFFIX)
    }


@dataclass(frozen=True, slots=True)
class CheckJob:
    """A job of a worker: see `check_texts`. The times are CPU time: of all texts, of each text, and of the process, which
    is killed after it."""

    texts: PolicyTexts
    location: str
    timeout_s: float
    text_timeout_s: float
    kill_timeout_s: float
    cost_max: int
    check_last: frozenset[str]
    base: TeamBase | None


KILL_TIMEOUT_FACTOR, KILL_MARGIN_S = 2.0, 5.0
"""A worker that does not notice its limit is killed after this many times the limit and the margin."""
HANG_TIMEOUT_FACTOR, HANG_TIMEOUT_MIN_S = 15, 60.0
"""A worker hangs if it has not answered after this many times its CPU limit in wall time, and at least the minimum."""


CHECK_NICENESS = 5
"""Added to the niceness of the processes that check: scheduling comes first where processors are few. With one busy process
beside it a check still gets a quarter of a processor."""


class WorkerFailed(Exception):
    """The worker returned no bundle: it exceeded its time or memory, or crashed."""


SPAWN_RETRY_DELAY_MAX_S = 30.0


class WorkerChecker:
    """A `CheckTexts` with a spare worker process; `close` ends it. `timeout_s`, for all texts, and `text_timeout_s`, for
    each, are CPU time. A policy may cost `cost_max` operations.

    Where no process can be started (no memory, no file descriptors, too many processes) a check waits until one can:
    the texts are not at fault, and the active policies decide meanwhile. `report_delay` gets the reason, once for each
    check that waits.
    """

    def __init__(
        self, *, timeout_s: float, text_timeout_s: float | None = None, cost_max: int = POLICY_COST_MAX
    ) -> None:
        self._timeout_s = timeout_s
        self._text_timeout_s = timeout_s if text_timeout_s is None else text_timeout_s
        self._cost_max = cost_max
        self._too_slow = frozenset[str]()
        self.report_delay: Callable[[str], None] = _log_delay
        self._spare_worker: ChildProcess | None = None
        self._lock = asyncio.Lock()

    async def __call__(self, texts: PolicyTexts, location: str, base: TeamBase | None = None) -> PolicyBundle:
        async with self._lock:
            try:
                return await self._check_in_worker(texts, location, base)
            except WorkerFailed as error:
                log.warning(
                    "could not check the policies; the active ones are unchanged",
                    extra={"location": location, "error": str(error)},
                )
                return unchecked_bundle(texts, location, str(error))
            finally:
                self._start_spare()

    async def warm_up(self) -> None:
        """Starts the spare worker before the first job."""
        async with self._lock:
            if self._spare_worker is None:
                self._start_spare()

    async def close(self) -> None:
        async with self._lock:
            if self._spare_worker is not None:
                await self._spare_worker.end()
                self._spare_worker = None

    async def _check_in_worker(
        self, texts: PolicyTexts, location: str, base: TeamBase | None
    ) -> PolicyBundle:
        worker, self._spare_worker = self._spare_worker, None
        if worker is None or worker.returncode is not None:
            worker = await self._start_when_possible()
        job = CheckJob(
            dict(texts),
            location,
            self._timeout_s,
            self._text_timeout_s,
            KILL_TIMEOUT_FACTOR * (self._timeout_s + KILL_MARGIN_S),
            self._cost_max,
            self._too_slow,
            base,
        )
        hangs_after_s = max(HANG_TIMEOUT_MIN_S, HANG_TIMEOUT_FACTOR * self._timeout_s)
        try:
            async with asyncio.timeout(hangs_after_s):
                output, stderr = await worker.communicate([pickle.dumps(job)])
        except TimeoutError:
            raise WorkerFailed(f"no result within {hangs_after_s:g} s") from None
        finally:
            await worker.end()
        if worker.returncode in (-signal.SIGPROF, -signal.SIGXCPU):
            raise WorkerFailed(f"checking took longer than {job.kill_timeout_s:g} s")
        if worker.returncode != 0 or not output:
            last = stderr.decode(errors="replace").strip().splitlines()[-1:]
            raise WorkerFailed(f"the checking process exited with {worker.returncode}: {''.join(last)}")
        # A pickle from our own child process, over a private pipe.
        bundle = await asyncio.to_thread(pickle.loads, output)
        assert isinstance(bundle, PolicyBundle), f"the worker returned {type(bundle)}"
        self._too_slow = frozenset(
            key
            for key, source in bundle.sources.items()
            if any(diagnostic.code == "PS909" for diagnostic in source.diagnostics)
        )
        return bundle

    def _start_spare(self) -> None:
        """A check that finds no spare worker starts its own."""
        try:
            self._spare_worker = self._start_at_low_priority()
        except OSError as error:
            log.info("cannot start a standby checker process", extra={"error": str(error)})

    async def _start_when_possible(self) -> ChildProcess:
        delay_s = 1.0
        while True:
            try:
                return self._start_at_low_priority()
            except OSError as error:
                if delay_s == 1.0:
                    self.report_delay(f"cannot start a process to check the policies; retrying: {error}")
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, SPAWN_RETRY_DELAY_MAX_S)

    def _start_at_low_priority(self) -> ChildProcess:
        worker = self._start()
        niceness = os.getpriority(os.PRIO_PROCESS, 0) + CHECK_NICENESS
        with contextlib.suppress(OSError):  # it has ended already
            os.setpriority(os.PRIO_PROCESS, worker.pid, niceness)
        return worker

    def _start(self) -> ChildProcess:
        return ChildProcess((sys.executable, "-m", "policysched.daemon.check_worker"))


def _log_delay(message: str) -> None:
    log.warning(message)


def unchecked_bundle(texts: PolicyTexts, location: str, reason: str) -> PolicyBundle:
    """Rejects every text, since the faulty one is not known: the active policies are unchanged."""
    sources = _sources(texts, location)
    unchecked = {
        key: CheckedSource(key, False, None, (_unchecked_diagnostic(source, reason),))
        for key, source in sources.items()
    }
    return _with_removals(_with_missing_texts(unchecked, texts, location), texts, location)


def _unchecked_diagnostic(source: Source, reason: str) -> Diagnostic:
    return make_diagnostic(
        "PS901",
        f"the texts of this ConfigMap could not be checked: {reason}",
        Span(source, 0, 0),
        help="the key that was edited last is the likely cause; shorten or remove it",
    )
