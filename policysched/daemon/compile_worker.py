"""The process that checks policies: one pickled job on standard input, one pickled bundle on standard output."""

import contextlib
import pickle
import resource
import signal
import sys

import policysched.lang.check  # noqa: F401 - imported before the job comes, which is what a spare worker is for
from policysched.daemon.compiling import compile_sync

MEMORY_MAX_BYTES = 2**30


def main() -> None:
    """Ends without a job when the pipe is closed: the scheduler is gone. Of the processor's time it takes as much as the job
    says, in seconds; SIGPROF ends it then."""
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX_BYTES, MEMORY_MAX_BYTES))
    job = sys.stdin.buffer.read()
    if not job:
        return
    texts, place, timeout_s = pickle.loads(job)
    signal.setitimer(signal.ITIMER_PROF, timeout_s)
    sys.stdout.buffer.write(pickle.dumps(compile_sync(texts, place)))


if __name__ == "__main__":
    main()
