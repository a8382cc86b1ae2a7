"""Whose fault an exception is, where neither the event nor the attempt in which it is raised says so.

A timer, a new policy text or an event reaches the objects of many. What concerns one of them alone runs under `raises_for`
with its name, so that it is left out (`daemon.failed_objects`), and nobody else.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from policysched.evaluate import NotCounted
from policysched.lang.ir.program import Program
from policysched.model.pods import Pod

METRIC, POLICY_TEXT = "metric", "policy text"
_NAMED_ALONE = ("Pod", "PersistentVolume", METRIC, POLICY_TEXT)
"""Kinds of which a name is enough: the namespace says only who is charged, and not each event has it."""


class ObjectId(NamedTuple):
    """`name` is the UID of a pod. `namespace` is empty where there is none, and where the event does not name it. Without a
    `name` nothing can be left out, but the exception counts for the namespace."""

    kind: str
    namespace: str
    name: str

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.kind, "", self.name) if self.kind in _NAMED_ALONE else self


class RaisedFor(Exception):
    """The cause is a fault of the program, which the object brings to light. The state may be half changed."""

    def __init__(self, object_id: ObjectId) -> None:
        super().__init__(" ".join(part for part in object_id if part))
        self.object_id = object_id


@contextmanager
def raises_for(object_id: ObjectId) -> Iterator[None]:
    """Say that the object is at fault, unless what was called has named one."""
    try:
        yield
    except (NotCounted, RaisedFor):
        raise
    except Exception as error:
        raise RaisedFor(object_id) from error


def pod_id(pod: Pod) -> ObjectId:
    return ObjectId("Pod", pod.namespace, pod.uid)


def change_id(namespace: str) -> ObjectId:
    """A change of many objects of the namespace, none of which is to blame."""
    return ObjectId("change", namespace, "")


def text_id(program: Program, owner: str | None) -> ObjectId:
    """This text of the policy: another one is not left out."""
    return ObjectId(POLICY_TEXT, owner or "", f"{program.name} {program.sha256}")


def metric_id(policy: str, metric: str, owner: str | None) -> ObjectId:
    return ObjectId(METRIC, owner or "", f"{policy}/{metric}")
