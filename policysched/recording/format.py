"""The lines of a recording, and the names of its files. docs/recording.md says it for people, schemas/recording-line.json
for programs.

A run is one process that leads. Its files are numbered; each begins with a header and a snapshot, so that it can be
read without those before it. The first one has an empty snapshot: from there every decision can be reproduced.

    header, snapshot ..., snapshot-end, (event | decide | requeue | gap) ..., end
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from policysched.model.identifiers import NodeName, PodUid
from policysched.scheduler.limits import SchedulerLimits
from policysched.scheduler.policies.extender_capabilities import ExtenderCapabilities
from policysched.scheduler.policy_permissions import PolicyPermissions

FORMAT_VERSION = 2
"""A reader reads only its own version. It grows when a line changes its meaning or a field its name, not when a field is
added: a missing field has its default. Version 2: fields of `settings` have the names of the settings."""

FILE_SUFFIX = ".jsonl.gz"
_FILE_NAME = re.compile(r"(?P<run>\d{8}T\d{6}Z-[a-z0-9.-]{1,80})\.(?P<number>\d{6})\.jsonl\.gz")


@dataclass(frozen=True, slots=True)
class RecordedSettings:
    """What the settings add to the core's inputs."""

    limits: SchedulerLimits = field(default_factory=SchedulerLimits)
    extenders: Mapping[str, ExtenderCapabilities] = field(default_factory=dict)
    permissions: PolicyPermissions = field(default_factory=PolicyPermissions)
    first_samples_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Header:
    """The first line of a file. `policysched` is the version of the program, `at_ns` when the file began (ns since 1970),
    `number` the file's in its run, from 1. `is_shadow`: `policysched shadow` recorded it, which decides nothing."""

    format: int
    policysched: str
    run: str
    number: int
    at_ns: int
    settings: RecordedSettings
    is_shadow: bool = False

    @property
    def is_start(self) -> bool:
        """Whether the run begins with this file."""
        return self.number == 1


@dataclass(frozen=True, slots=True)
class QueuedPod:
    """What a snapshot says of a pod that waits: since when (ns) and after how many attempts."""

    uid: PodUid
    queued_ns: int
    attempts: int


@dataclass(frozen=True, slots=True)
class AssumedPod:
    """A pod whose bind was not answered at the time of a snapshot."""

    uid: PodUid
    node: NodeName


@dataclass(frozen=True, slots=True)
class SchedulerState:
    """What a snapshot has beside objects, policies and samples. `decisions`: how many were made before."""

    decisions: int = 0
    queued: tuple[QueuedPod, ...] = ()
    assumed: tuple[AssumedPod, ...] = ()


def run_name(began_ns: int, identity: str) -> str:
    """The name of a run: it sorts by time, and two replicas that begin in one second have different ones."""
    began = datetime.fromtimestamp(began_ns // 10**9, UTC)
    safe = re.sub(r"[^a-z0-9.-]+", "-", identity.lower())[-80:].strip("-.") or "scheduler"
    return f"{began:%Y%m%dT%H%M%SZ}-{safe}"


def file_name(run: str, number: int) -> str:
    return f"{run}.{number:06d}{FILE_SUFFIX}"


def parse_file_name(name: str) -> tuple[str, int] | None:
    """The run and the number of a recording's file; None for any other file."""
    match = _FILE_NAME.fullmatch(name)
    return None if match is None else (match["run"], int(match["number"]))
