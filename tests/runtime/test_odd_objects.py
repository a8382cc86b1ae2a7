"""Whatever a tenant writes that the API server stores, nothing raises: decoding, decisions, reports, pages and recordings."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from policysched.explanations.live import NotExplainable, explain_running
from policysched.kube.decode import core_objects as core
from policysched.kube.decode.devices import DEVICE_DECODERS
from policysched.kube.decode.pod_groups import decode_pod_group
from policysched.kube.decode.pod_updates import DecodedPod, decode_pod_update
from policysched.kube.decode.storage import STORAGE_DECODERS
from policysched.kube.write.report_content import truncate_note
from policysched.model.pod_groups import PodGroupApi
from policysched.model.workloads import SelectorOwnerKind
from policysched.recording.reader import open_recording
from policysched.recording.recorder import Recorder
from policysched.recording.recording_settings import RecordingSettings
from policysched.recording.replay import replay
from policysched.recording.writer import RecordingWriter
from policysched.runtime.live_endpoints import LiveEndpoints
from policysched.scheduler import commands as c
from policysched.scheduler import events as e
from tests.odd.objects import OddObjects
from tests.page.served_page import documents
from tests.recording.recorded import recorded_scheduler
from tests.scheduler.rig import Rig

POLICY = """\
policy test version 1
input load: float = pod.annotations["load"] optional invalid default
input rank: int = pod.labels["rank"] default 0 invalid default
include kube_default
quota team by pod.namespace { "b" { cpu = 100 borrow 5, "example.com/gpu" = 2 } others { cpu = 4000000 borrow any } }
quota org by pod.labels["a"] else "none" { others { pods = 100, cpu = 5000 borrow any } }
queue by pod.priority desc, pod.quota_share.team, rank desc, load, pod.queued
let busy: bytes = sum(other.requests.memory over pods where other.namespace == pod.namespace)
let many: int = count(pods where other.labels["a"] == pod.labels["a"])
filter room require node.free.cpu > 1m and many < 1000 says "{busy} {many} {rank}"
score gpu weight 3 higher node.free["example.com/gpu"] - pod.requests["example.com/gpu"] normalize minmax
score memory weight 3 lower busy + node.requested.memory normalize minmax
score rank weight 2 higher rank * node.allocatable.cpu / 1m normalize minmax
"""
RATIO = """\
replace score node_resources_fit weight 1 {
  strategy = requested_to_capacity_ratio
  resources = {"memory" = 1, "example.com/gpu" = 2}
}
"""
BY_LABEL = """\
input group: string = pod.labels["group"] optional
input least: int = pod.labels["least"] default 1 invalid default
gang by group { min = max(1, least) timeout = 5m }
"""
APIS: tuple[PodGroupApi | None, ...] = (
    "scheduling.k8s.io",
    "scheduling.x-k8s.io",
    "scheduling.volcano.sh",
    None,
)
OWNERS: tuple[SelectorOwnerKind, ...] = ("Service", "ReplicationController", "ReplicaSet", "StatefulSet")
STORAGE = (
    *(("StorageClass", name) for name in ("late", "now")),
    *(("CSIStorageCapacity", name) for name in ("small", "large")),
    *(("CSINode", "a"), ("CSIDriver", "d"), ("VolumeAttachment", "t")),
)
SEEDS = 24
MENDED_SEEDS = (519,)
"""It failed once, with a fault of policysched."""


class OddCluster:
    """`decoded`: what updates of pods are decoded with."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.odd = OddObjects(seed)
        self.odd.rarity = self.odd.any((2, 3, 6))
        self.rig = Rig(None, synced=False)
        recorder = Recorder()
        self.rig.scheduler = recorded_scheduler(recorder)
        self.writer = RecordingWriter(recorder, RecordingSettings(folder), "test", lambda: self.rig.now_ns)
        self.decoded: dict[str, DecodedPod | None] = {}
        self.api = self.odd.any(APIS)
        gangs = BY_LABEL if self.api is None else "include pod_groups\n"
        self.rig.apply_policies(POLICY + gangs + (RATIO if self.odd.random.one_in(2) else ""))
        assert self.rig.scheduler.core.policies.running
        self.rig.handle(*[e.DeviceKindServed(kind, True) for kind in DEVICE_DECODERS])
        if self.api is not None:
            self.rig.handle(e.PodGroupApiServed(self.api, "v1beta1"))

    def events(self) -> Iterator[e.Event]:
        """All objects, or a later version of them."""
        odd, storage, devices = self.odd, STORAGE_DECODERS, DEVICE_DECODERS
        for name in ("default", "b"):
            yield e.NamespaceUpdated(core.decode_namespace(odd.namespace(name)))
        for name in ("a", "b", "z" * 253):
            yield e.NodeUpdated(core.decode_node(odd.node(name)))
        for name in ("e0", "e1"):
            yield e.DisruptionBudgetUpdated(core.decode_disruption_budget(odd.budget(name)))
        for kind in OWNERS:
            yield e.SelectorOwnerUpdated(core.decode_selector_owner(odd.selector_owner("s", kind), kind))
        for name in ("v0", "v1", "v2"):
            yield e.StorageObjectUpdated(storage["PersistentVolume"](odd.volume(name)))
        for name in ("c0", "c1", "c2"):
            yield e.StorageObjectUpdated(storage["PersistentVolumeClaim"](odd.volume_claim(name)))
        for storage_kind, name in STORAGE:
            yield e.StorageObjectUpdated(storage[storage_kind](odd.storage(name, storage_kind)))
        for name in ("c0", "c1"):
            yield e.DeviceObjectUpdated(devices["ResourceClaim"](odd.claim(name)))
        yield e.DeviceObjectUpdated(devices["DeviceClass"](odd.device_class("k0")))
        yield e.DeviceObjectUpdated(devices["ResourceSlice"](odd.slice("l0")))
        for name in ("a", "p", "0") if self.api is not None else ():
            yield e.PodGroupUpdated(decode_pod_group(odd.group(name, self.api), self.api, "v1beta1"))
        for number in range(6):
            manifest = odd.pod(f"p{number}")
            uid = manifest["metadata"]["uid"]
            observed, self.decoded[uid] = decode_pod_update(manifest, self.decoded.get(uid))
            yield e.PodUpdated(observed)

    def live(self) -> None:
        for event in self.events():
            self.rig.handle(event)
        self.rig.handle(e.Synced())
        for is_changed in (False, True, False):
            self.rig.settle()
            self.rig.pass_time(40)
            self.rig.confirm_binds()
            for event in self.events() if is_changed else ():
                self.rig.handle(event)
        self.rig.settle()

    def read_all(self) -> None:
        """Explanations, pages and messages, as they are written."""
        rig, scheduler = self.rig, self.rig.scheduler
        for observed in list(scheduler.core.cache.pods.values()):
            with_reasons(
                lambda name=observed.pod.full_name: explain_running(scheduler.core, name, rig.now_ns)
            )
        live = LiveEndpoints(scheduler, lambda: None, lambda: rig.now_ns)
        pages = [live.pending, live.queue, live.samples, live.nodes]
        pages += [page for path, (page, _) in documents(rig).by_path().items() if not path.endswith("/pod")]
        for page in pages:
            for step in page({}):
                orjson.dumps(step if isinstance(step, dict) else None)
        for report in rig.of(c.ReportPending):
            orjson.dumps(truncate_note(report.message))


def with_reasons(explain: Callable[[], Iterator[Any]]) -> None:
    """Of the explanations that there are."""
    try:
        for result in explain():
            for _ in () if result is None else result.record_in_steps():
                pass
    except NotExplainable:
        pass


@pytest.mark.search
@pytest.mark.parametrize("seed", [*range(SEEDS), *MENDED_SEEDS])
def test_objects_with_odd_values_end_nothing(seed: int, tmp_path: Path) -> None:
    cluster = OddCluster(seed, tmp_path)

    cluster.live()
    cluster.read_all()
    cluster.writer.write_all()

    report = replay(open_recording(tmp_path))
    assert (report.different, report.problems, cluster.writer.counts.failure) == (0, [], "")
