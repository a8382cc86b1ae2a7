"""What a recording costs: the path of a pod through the core, as in `bench_burst`, recorded and not, in turns.

The decisions' thread pays for the detail of each decision and for queueing; encoding and compressing are on the
writer's thread, which takes part of the interpreter's lock.
"""

import tempfile
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from time import thread_time, time_ns

from policysched.kube.decode import core_objects as wire
from policysched.kube.decode.pods import decode_pod
from policysched.recording.recorder import Recorder
from policysched.recording.recording_settings import RecordingSettings
from policysched.recording.writer import RecordingWriter
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from policysched.scheduler.scheduler import Scheduler
from tests.bench.clusters import DEFAULT, NOW_NS
from tests.bench.measuring import Row, shown
from tests.builders import node_manifest, pod_manifest
from tests.recording.recorded import recorded_scheduler
from tests.scheduler.rig import bundle

_NODES, _PODS, _TURNS = 5000, 2000, 7


def measure() -> Iterable[Row]:
    plain: list[float] = []
    recorded: list[float] = []
    written: list[float] = []
    for _ in range(_TURNS):
        plain.append(_seconds_per_pod(Scheduler()))
        recorder = Recorder()
        scheduler = recorded_scheduler(recorder)
        recorded.append(_seconds_per_pod(scheduler))
        with tempfile.TemporaryDirectory() as folder:
            writer = RecordingWriter(recorder, RecordingSettings(Path(folder)), "bench", time_ns)
            calls, began_s = len(recorder.queue), thread_time()
            writer.write_all()
            written.append((thread_time() - began_s) / calls)
    cost = median(recorded) - median(plain)
    yield Row("a pod is read, decided, bound and seen bound, 5,000 nodes", shown(median(plain)))
    yield Row(
        "the same while it is recorded", shown(median(recorded)), f"+{100 * cost / median(plain):.1f} %"
    )
    yield Row("the writer's thread, for one call", shown(median(written)))


def _seconds_per_pod(scheduler: Scheduler) -> float:
    """CPU time of this thread."""
    for index in range(_NODES):
        labels = {"topology.kubernetes.io/zone": f"z{index % 3}"}
        observed = wire.decode_node(node_manifest(f"n{index}", cpu="32", memory="128Gi", labels=labels))
        scheduler.handle(e.NodeUpdated(observed), NOW_NS)
    scheduler.handle(e.PoliciesUpdated(bundle({"main.policy": DEFAULT}), resource_version="1"), NOW_NS)
    scheduler.handle(e.Synced(), NOW_NS)
    name = next(iter(scheduler.programs()))
    by_name = {
        f"p{index}": pod_manifest(f"p{index}", cpu="100m", memory="64Mi", scheduler=name)
        for index in range(_PODS)
    }
    began_s = thread_time()
    for pod in by_name.values():
        scheduler.handle(e.PodUpdated(decode_pod(pod)), NOW_NS)
    while by_name:
        for command in scheduler.decide(NOW_NS):
            if isinstance(command, c.Bind):
                pod = by_name.pop(command.name)
                bound = {**pod, "spec": {**pod["spec"], "nodeName": command.node}}
                scheduler.handle(e.BindConfirmed(command.uid, command.node), NOW_NS)
                scheduler.handle(e.PodUpdated(decode_pod(bound)), NOW_NS)
    return (thread_time() - began_s) / _PODS
