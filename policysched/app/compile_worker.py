"""The process that checks policies: one pickled job on standard input, one pickled bundle on standard output."""

import contextlib
import pickle
import resource
import sys

import policysched.lang.check  # noqa: F401 - imported before the job comes, which is what a spare worker is for
from policysched.app.compiling import compile_here

MEMORY_MAX_BYTES = 2**30


def main() -> None:
    """Ends without a job when the pipe is closed: the scheduler is gone."""
    timeout_s = float(sys.argv[1])
    # Whatever the scheduler's timer does, a worker does not outlive its limits.
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX_BYTES, MEMORY_MAX_BYTES))
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CPU, (int(timeout_s) + 2, int(timeout_s) + 2))
    job = sys.stdin.buffer.read()
    if not job:
        return
    texts, place = pickle.loads(job)
    sys.stdout.buffer.write(pickle.dumps(compile_here(texts, place)))


if __name__ == "__main__":
    main()
