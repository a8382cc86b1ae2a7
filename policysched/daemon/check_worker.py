"""The worker process that checks policies: reads one pickled job on stdin, writes one pickled bundle to stdout.

`daemon.policy_checker` starts it, and says why the job has limits on time.
"""

import contextlib
import pickle
import resource
import signal
import sys
import time
from collections.abc import Iterator
from types import FrameType

import policysched.lang.check  # noqa: F401 - imported before the job arrives, so that a spare worker is warm
from policysched.daemon.policy_checker import CheckJob, check_texts
from policysched.data_files import enable_file_cache
from policysched.lang.check.limits import TextLimitExceeded

MEMORY_MAX_BYTES = 2**30
REPEAT_S = 0.1
"""The signal is repeated, because Python drops an exception that is raised in a finalizer."""


class CpuTimeGuard:
    """A `TextGuard` on the CPU time of this process: `text_timeout_s` for each text, `timeout_s` for all.

    The timer runs for the innermost text. That of the text around it continues afterwards.
    """

    def __init__(self, *, timeout_s: float, text_timeout_s: float) -> None:
        self._timeout_s, self._text_timeout_s = timeout_s, text_timeout_s
        self._ends_s = time.process_time() + timeout_s
        signal.signal(signal.SIGVTALRM, self._on_timer)

    @contextlib.contextmanager
    def __call__(self, key: str) -> Iterator[None]:
        del key
        if self._ends_s <= time.process_time():
            raise TextLimitExceeded(self._too_long())
        outer_s = self._start_timer(self._text_timeout_s)
        try:
            yield
        finally:
            if outer_s:
                self._start_timer(outer_s)
            else:
                signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    def _start_timer(self, after_s: float) -> float:
        """Limit the text that is checked from here on. Returns what the text before had left; 0: there was none."""
        left_s = self._ends_s - time.process_time()
        before_s, _ = signal.setitimer(signal.ITIMER_VIRTUAL, max(min(after_s, left_s), 1e-6), REPEAT_S)
        return before_s

    def _on_timer(self, _signal: int, _frame: FrameType | None) -> None:
        raise TextLimitExceeded(self._too_long())

    def _too_long(self) -> str:
        if time.process_time() >= self._ends_s:
            return f"checking the texts of this ConfigMap took longer than {self._timeout_s:g} s"
        return f"checking this text took longer than {self._text_timeout_s:g} s"


def main() -> None:
    """Exits without a job when the pipe is closed: the scheduler is gone. SIGPROF ends a process that does not notice
    its limits."""
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX_BYTES, MEMORY_MAX_BYTES))
    pickled = sys.stdin.buffer.read()
    if not pickled:
        return
    job = pickle.loads(pickled)
    assert isinstance(job, CheckJob), f"the job is {type(job)}"
    signal.setitimer(signal.ITIMER_PROF, job.kill_timeout_s)
    guard = CpuTimeGuard(timeout_s=job.timeout_s, text_timeout_s=job.text_timeout_s)
    bundle = check_texts(job.texts, job.location, job.cost_max, guard, job.check_last, job.base)
    sys.stdout.buffer.write(pickle.dumps(bundle))


if __name__ == "__main__":
    enable_file_cache()
    main()
