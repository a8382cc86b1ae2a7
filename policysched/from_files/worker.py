"""A worker process of a running scheduler: it reads pickles from stdin, and writes one JSON document to stdout.

First comes the job, then objects of the cluster as (field of `ClusterFiles`, objects), and None at the end. The limits
hold only for the worker.
"""

import contextlib
import math
import os
import pickle
import resource
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import orjson

from policysched.cluster.metric_samples import MetricSamples
from policysched.from_files.cluster_files import ClusterFiles
from policysched.scheduler.policy_permissions import ANY_POLICY_NAME, PolicyPermissions

CPU_MAX_S = 15
"""Of the worker's process, which is killed after it."""

MEMORY_MAX_BYTES = 2**31
_CGROUP = Path("/sys/fs/cgroup")

_NICE = 2
"""Two thirds of the share that the scheduler has on a core which both want."""

Job = TypeVar("Job")


@dataclass(frozen=True, slots=True)
class ExplainJob:
    """What would make this pod (`namespace/name`) fit, or its gang start? `text` is the policy's, expanded; `samples` and
    `states` are its samples and the values of its states. After `search_max_s` no more is tried."""

    policy: str
    text: str
    pod: str
    now_ns: int
    samples: Mapping[str, MetricSamples] = field(default_factory=dict)
    states: str | None = None
    permissions: PolicyPermissions = ANY_POLICY_NAME
    search_max_s: float = math.inf


def serve(
    job_type: type[Job],
    answer: Callable[[Job, BinaryIO], dict[str, Any]],
    *,
    is_long: Callable[[Job], bool] = lambda _: True,
) -> None:
    """Answers the one job of this process; a long one at a lower priority, so that decisions come first."""
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_MAX_S, CPU_MAX_S + 1))
        memory_max = memory_max_bytes()
        resource.setrlimit(resource.RLIMIT_AS, (memory_max, memory_max))
    stream = sys.stdin.buffer
    try:
        job = pickle.load(stream)  # of the scheduler, over a private pipe
    except EOFError:
        return
    assert isinstance(job, job_type), f"the job is {type(job)}"
    if is_long(job):
        os.nice(_NICE)
    sys.stdout.buffer.write(orjson.dumps(answer(job, stream)))


def memory_max_bytes() -> int:
    """At most what the container has left: beyond that the kernel kills the scheduler as well."""
    try:
        used = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
        cached = int(used["active_file"]) + int(used["inactive_file"])
        needed = int((_CGROUP / "memory.current").read_text()) - cached
        left = int((_CGROUP / "memory.max").read_text()) - needed
    except (OSError, KeyError, ValueError):  # no container with cgroup v2, or one without a limit
        return MEMORY_MAX_BYTES
    return max(0, min(MEMORY_MAX_BYTES, left))


def read_cluster(stream: BinaryIO) -> ClusterFiles:
    files = ClusterFiles()
    while (part := pickle.load(stream)) is not None:
        name, objects = part
        getattr(files, name).extend(objects)
    return files
