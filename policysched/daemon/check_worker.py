"""The worker process that checks policies: reads one pickled job on stdin, writes one pickled bundle to stdout.

`daemon.policy_checker` starts it, and says why the job has a time limit (`compile_timeout_s` in the settings).
"""

import contextlib
import pickle
import resource
import signal
import sys

import policysched.lang.check  # noqa: F401 - imported before the job arrives, so that a spare worker is warm
from policysched.daemon.policy_checker import check_texts

MEMORY_MAX_BYTES = 2**30


def main() -> None:
    """Exits without a job when the pipe is closed: the scheduler is gone. SIGPROF ends the process after the CPU
    time that the job allows, in seconds."""
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX_BYTES, MEMORY_MAX_BYTES))
    job = sys.stdin.buffer.read()
    if not job:
        return
    texts, place, timeout_s = pickle.loads(job)
    signal.setitimer(signal.ITIMER_PROF, timeout_s)
    sys.stdout.buffer.write(pickle.dumps(check_texts(texts, place)))


if __name__ == "__main__":
    main()
