"""From a ConfigMap's texts to a checked bundle, off the decision thread.

Checking a long policy takes tenths of seconds, so it happens in a process of its own, with a limit on time and memory
that no text can cross: one that does costs its worker, not the scheduler. A spare worker has everything imported and
waits, so that an edit takes effect at once; each does one job. In a simulation the same is done in line.

The limit is on the processor's time. A clock on the wall would refuse good policies, and at the start end the scheduler,
where the node is busy with others; it is only there for a worker that hangs.
"""

import asyncio
import contextlib
import logging
import pickle
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping

from policysched.files import normalize_text
from policysched.lang.check import check_sources
from policysched.lang.check.bundle import CheckedSource, PolicyBundle
from policysched.lang.diagnostics.catalogue import make_diagnostic
from policysched.policy_files.parameter_values import (
    SETTINGS_KEY_PREFIX,
    invalid_utf8_offset,
    policy_name_in,
    read_parameter_values,
)
from policysched.policy_files.source_set import PARAMETERS_SUFFIX
from policysched.text import Diagnostic, Source, Span

log = logging.getLogger(__name__)

POLICY_SUFFIX = ".policy"
PolicyTexts = Mapping[str, str]
"""By key. A byte that is no part of UTF-8 is a half surrogate in it (`decode_text`), which no text from the API server has."""
Compile = Callable[[PolicyTexts, str], Awaitable[PolicyBundle]]
"""Texts by key and what they stand in (`ConfigMap kube-system/policies`), to a bundle. Never raises for its input."""


def policy_texts(data: PolicyTexts) -> dict[str, str]:
    """The keys of a ConfigMap that are policies, libraries, and values for parameters; whatever else stands in it is not
    ours."""
    return {key: data[key] for key in sorted(data) if key.endswith((POLICY_SUFFIX, PARAMETERS_SUFFIX))}


def decode_text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def compile_sync(texts: PolicyTexts, place: str) -> PolicyBundle:
    bundle = check_sources(_sources(texts, place), read_parameter_values(_parameter_sources(texts, place)))
    return _with_missing_texts(bundle.sources, texts, place)


async def compile_inline(texts: PolicyTexts, place: str) -> PolicyBundle:
    """For simulations, whose clock stands still meanwhile."""
    return compile_sync(texts, place)


def _sources(texts: PolicyTexts, place: str) -> dict[str, Source]:
    """Of the policies and libraries, as `lint` reads them from files: kubectl takes a file into a ConfigMap with its byte order mark
    and its line ends."""
    return {
        key: Source(f"{place} key {key}", normalize_text(text))
        for key, text in texts.items()
        if not key.endswith(PARAMETERS_SUFFIX) and invalid_utf8_offset(text) is None
    }


def _with_missing_texts(checked: Mapping[str, CheckedSource], texts: PolicyTexts, place: str) -> PolicyBundle:
    """With the keys that are to be policies and hold no text."""
    no_texts = {
        key: CheckedSource(key, False, None, (_missing_text(f"{place} key {key}", at),), policy_name_in(text))
        for key, text in texts.items()
        if not key.endswith(PARAMETERS_SUFFIX) and (at := invalid_utf8_offset(text)) is not None
    }
    return PolicyBundle(dict(sorted({**checked, **no_texts}.items())))


def _missing_text(name: str, at: int) -> Diagnostic:
    return make_diagnostic(
        "PS907",
        f"not UTF-8 text (byte {at})",
        Span(Source(name, ""), 0, 0),
        help="save the file as UTF-8; kubectl put it under `binaryData`, for a ConfigMap's `data` is text",
    )


def _parameter_sources(texts: PolicyTexts, place: str) -> dict[str, Source]:
    return {
        key: Source("settings" if key.startswith(SETTINGS_KEY_PREFIX) else f"{place} key {key}", text)
        for key, text in texts.items()
        if key.endswith(PARAMETERS_SUFFIX)
    }


HANG_TIMEOUT_FACTOR, HANG_TIMEOUT_MIN_S = 15, 60.0
"""A worker that has not answered after so many times its limit, by the clock on the wall and no sooner than that, hangs."""


class WorkerFailed(Exception):
    """The worker did not answer: killed for its time or memory, or broken otherwise."""


class WorkerCompiler:
    """A `Compile` with a spare worker process. `close` ends it. `timeout_s` is of the processor's time."""

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._spare_worker: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()

    async def __call__(self, texts: PolicyTexts, place: str) -> PolicyBundle:
        async with self._lock:
            try:
                return await self._compile_in_worker(texts, place)
            except WorkerFailed as error:
                log.warning("policies could not be checked", extra={"place": place, "why": str(error)})
                return _unchecked_bundle(texts, place, str(error))
            finally:
                self._spare_worker = await self._start()

    async def warm_up(self) -> None:
        """Start the spare ahead of the first job."""
        async with self._lock:
            self._spare_worker = self._spare_worker or await self._start()

    async def close(self) -> None:
        async with self._lock:
            if self._spare_worker is not None:
                await _terminate(self._spare_worker)
                self._spare_worker = None

    async def _compile_in_worker(self, texts: PolicyTexts, place: str) -> PolicyBundle:
        worker, self._spare_worker = self._spare_worker, None
        if worker is None or worker.returncode is not None:
            worker = await self._start()
        job = pickle.dumps((dict(texts), place, self._timeout_s))
        hangs_after_s = max(HANG_TIMEOUT_MIN_S, HANG_TIMEOUT_FACTOR * self._timeout_s)
        try:
            async with asyncio.timeout(hangs_after_s):
                answer, complaint = await worker.communicate(job)
        except TimeoutError:
            raise WorkerFailed(f"no answer within {hangs_after_s:g} s") from None
        finally:
            await _terminate(worker)
        if worker.returncode in (-signal.SIGPROF, -signal.SIGXCPU):
            raise WorkerFailed(f"checking took longer than {self._timeout_s:g} s")
        if worker.returncode != 0 or not answer:
            last = complaint.decode(errors="replace").strip().splitlines()[-1:]
            raise WorkerFailed(f"the checking process ended with {worker.returncode}: {''.join(last)}")
        # A pickle from our own child, over a pipe that nobody else has.
        bundle = pickle.loads(answer)
        assert isinstance(bundle, PolicyBundle), f"the worker answered with {type(bundle)}"
        return bundle

    async def _start(self) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "policysched.daemon.compile_worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=2**24,
        )


async def _terminate(worker: asyncio.subprocess.Process) -> None:
    if worker.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            worker.kill()
        await worker.wait()


def _unchecked_bundle(texts: PolicyTexts, place: str, why: str) -> PolicyBundle:
    """Nobody knows which text is to blame, so none of them is accepted: what runs, runs on."""
    sources = _sources(texts, place)
    unchecked = {
        key: CheckedSource(key, False, None, (_unchecked_diagnostic(one, why),))
        for key, one in sources.items()
    }
    return _with_missing_texts(unchecked, texts, place)


def _unchecked_diagnostic(source: Source, why: str) -> Diagnostic:
    return make_diagnostic(
        "PS901",
        f"the texts of this ConfigMap could not be checked: {why}",
        Span(source, 0, 0),
        help="the key that was edited last is the likely cause; make it smaller or take it out",
    )
