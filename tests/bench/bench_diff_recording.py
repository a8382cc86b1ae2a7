"""What `diff --recording` costs: 10,000 recorded decisions on 5,000 nodes, with one changed line, and with three."""

import tempfile
import time
from collections.abc import Iterable
from os import times
from pathlib import Path

from policysched.comparison.compared_recording import compared_recording
from policysched.comparison.comparison import compare
from policysched.kube.decode import core_objects as wire
from policysched.kube.decode.pods import decode_pod
from policysched.lang.check import check_text
from policysched.lang.ir.program import Program
from policysched.recording.reader import open_recording
from policysched.recording.recorder import Recorder
from policysched.recording.recording_settings import RecordingSettings
from policysched.recording.writer import RecordingWriter
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from tests.bench.clusters import NOW_NS
from tests.bench.measuring import Row, shown
from tests.builders import node_manifest, pod_manifest
from tests.recording.recorded import recorded_scheduler
from tests.scheduler.rig import bundle

_NODES, _PODS = 5000, 10_000

_POLICY = """policy main version 1
input pool: string = node.labels["pool"] default "general"
include kube_default
filter not_old reject pool == "old" says "an old node"
score calm weight 3 prefer pool == "a"
"""
_EDITS = (
    ('pool == "old"', 'pool == "a"'),
    ("score calm weight 3", "score calm weight 30"),
    ("include kube_default", "include kube_default\nreweight node_resources_fit 9"),
)


def measure() -> Iterable[Row]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _record(folder)
        for count in (1, len(_EDITS)):
            changed = _POLICY
            for before, after in _EDITS[:count]:
                changed = changed.replace(before, after)
            began_s, began_wall_s = _cpu_s(), time.monotonic()
            compared = compared_recording(open_recording(folder), "main", None, None)
            comparison = compare(_program(_POLICY), _program(changed), compared)
            assert comparison.pods == _PODS and comparison.changed
            assert comparison.as_recorded == (_PODS, _PODS), comparison.as_recorded
            yield Row(
                f"diff of {_PODS:,} decisions on {_NODES:,} nodes, {count} changed lines, all processes",
                shown(_cpu_s() - began_s),
                f"{comparison.simulations} simulations, {time.monotonic() - began_wall_s:.0f} s of wall clock "
                f"with {compared.workers} processes",
            )


def _cpu_s() -> float:
    of = times()
    return of.user + of.system + of.children_user + of.children_system


def _program(text: str) -> Program:
    checked = check_text(text, "main.policy")
    assert checked.program is not None, checked.diagnostics
    return checked.program


def _record(folder: Path) -> None:
    recorder = Recorder()
    scheduler = recorded_scheduler(recorder)
    writer = RecordingWriter(recorder, RecordingSettings(folder), "bench", lambda: NOW_NS)
    now_ns = NOW_NS
    for index in range(_NODES):
        labels = {"topology.kubernetes.io/zone": f"z{index % 3}", "pool": "abc"[index % 3]}
        observed = wire.decode_node(node_manifest(f"n{index}", cpu="32", memory="128Gi", labels=labels))
        scheduler.handle(e.NodeUpdated(observed), now_ns)
    scheduler.handle(e.PoliciesUpdated(bundle({"main.policy": _POLICY}), resource_version="1"), now_ns)
    scheduler.handle(e.Synced(), now_ns)
    for index in range(_PODS):
        manifest = pod_manifest(
            f"p{index}",
            cpu=f"{100 + index % 7}m",
            memory="64Mi",
            scheduler="main",
            labels={"app": f"a{index % 20}"},
        )
        now_ns += 1_000_000
        scheduler.handle(e.PodUpdated(decode_pod(manifest)), now_ns)
        while scheduler.ready(now_ns):
            for command in scheduler.decide(now_ns):
                if isinstance(command, c.Bind):
                    bound = {**manifest, "spec": {**manifest["spec"], "nodeName": command.node}}
                    scheduler.handle(e.BindConfirmed(command.uid, command.node), now_ns)
                    scheduler.handle(e.PodUpdated(decode_pod(bound)), now_ns)
        if index % 1000 == 0:
            writer.write_queued()
    writer.write_all()
