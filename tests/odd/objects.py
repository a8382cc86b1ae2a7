"""Objects of each kind with extreme and odd values in the fields that policysched reads.

Every object passes upstream's validation, or did in some version of Kubernetes.
"""

from collections.abc import Sequence

from tests.odd.pods import OddPods
from tests.odd.values import (
    CEL,
    INT32_MAX,
    INT64_MAX,
    KEYS,
    LABELS,
    NAMES,
    NODES,
    QUANTITIES,
    TEXTS,
    TIMES,
    Json,
)


class OddObjects(OddPods):
    # ── nodes, namespaces and what selects pods ────────────────────────────────────────────────────────────────────

    def node(self, name: str) -> Json:
        labels = {**self.labels(), "kubernetes.io/hostname": name[:63], "topology.kubernetes.io/zone": "z"}
        return {
            "metadata": {**self.meta(name, namespaced=False), "labels": labels},
            "spec": self.maybe(
                ("taints", lambda: self.several(lambda: {"key": self.any(KEYS), "effect": self.any(("NoSchedule", "PreferNoSchedule", "NoExecute")), **self.maybe(("value", lambda: self.any(LABELS)))}, 2)),
                ("unschedulable", lambda: self.random.one_in(4)),
            ),
            "status": {
                "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "110", **self.amounts()},
                "conditions": [{"type": "Ready", "status": "True"}, {"type": self.any(TEXTS), "status": "Unknown"}],
                **self.maybe(
                    ("images", lambda: [{"names": [self.any(TEXTS), "app:1"], "sizeBytes": self.int64()}]),
                    ("addresses", lambda: [{"address": self.any(TEXTS)}]),
                    ("declaredFeatures", lambda: [self.any(TEXTS)]),
                ),
            },
        }  # fmt: skip

    def namespace(self, name: str) -> Json:
        return {"metadata": {**self.meta(name, namespaced=False)}}

    def budget(self, name: str) -> Json:
        return {
            "metadata": self.meta(name),
            "spec": self.maybe(("selector", self.selector)),
            "status": {"disruptionsAllowed": self.int32(), **self.maybe(("disruptedPods", lambda: {"p0": self.any(TIMES)}))},
        }  # fmt: skip

    def selector_owner(self, name: str, kind: str) -> Json:
        by_labels = kind in ("Service", "ReplicationController")
        return {"metadata": self.meta(name), "spec": self.maybe(("selector", self.labels if by_labels else self.selector))}  # fmt: skip

    # ── volumes ────────────────────────────────────────────────────────────────────────────────────────────────────

    def volume(self, name: str) -> Json:
        odd = self.any(TEXTS)
        sources: Sequence[Json] = (
            {"csi": {"driver": "d", "volumeHandle": odd or "h"}},
            {"awsElasticBlockStore": {"volumeID": odd}},
            {"gcePersistentDisk": {"pdName": odd}},
            {"cinder": {"volumeID": odd}},
            {"azureDisk": {"diskURI": odd, "kind": "Managed"}},
            {"local": {"path": odd}},
        )
        zones = {"topology.kubernetes.io/zone": self.any(("__", "a__b", "a-b-c__a-b-d", "", "z"))}
        return {
            "metadata": {**self.meta(name, namespaced=False), "labels": {**self.labels(), **zones}},
            "spec": {
                "capacity": {"storage": self.any(QUANTITIES)},
                "accessModes": [
                    self.any(("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"))
                ],
                "storageClassName": self.any(("late", "now", "")),
                **self.any(sources),
                **self.maybe(
                    ("nodeAffinity", lambda: {"required": self.node_selector()}),
                    ("volumeMode", lambda: self.any(("Block", "Filesystem"))),
                    ("claimRef", lambda: {"namespace": "default", "name": "c0", **self.maybe(("uid", "u"))}),
                    ("volumeAttributesClassName", lambda: self.any(NAMES)),
                ),
            },
            "status": self.maybe(("phase", lambda: self.any(("Available", "Bound", "Released", "Failed")))),
        }

    def volume_claim(self, name: str) -> Json:
        return {
            "metadata": {**self.meta(name), "namespace": "default", **self.maybe(("annotations", lambda: {"volume.kubernetes.io/selected-node": self.any((*NODES, *TEXTS)), **self.annotations()}))},
            "spec": {
                "accessModes": [self.any(("ReadWriteOnce", "ReadOnlyMany", "ReadWriteOncePod"))],
                "resources": {"requests": {"storage": self.any(QUANTITIES[1:])}},
                **self.maybe(
                    ("storageClassName", lambda: self.any(("late", "late", "now", "gone", ""))),
                    ("selector", self.selector),
                    ("volumeName", lambda: self.any(("v0", "v1", *TEXTS[:3]))),
                    ("volumeMode", lambda: self.any(("Block", "Filesystem"))),
                ),
            },
            "status": self.maybe(("phase", lambda: self.any(("Pending", "Bound", "Lost")))),
        }  # fmt: skip

    def storage(self, name: str, kind: str) -> Json:
        """Of the other kinds of storage."""
        meta = {"metadata": {**self.meta(name, namespaced=kind == "CSIStorageCapacity")}}
        match kind:
            case "StorageClass":
                topologies = [{"matchLabelExpressions": [{"key": self.any(KEYS), "values": ["z"]}]}]
                modes = {"late": "WaitForFirstConsumer"}
                return meta | {
                    "provisioner": self.any(("d", "kubernetes.io/no-provisioner", "kubernetes.io/aws-ebs")),
                    "volumeBindingMode": modes.get(name, "Immediate"),
                    **self.maybe(("allowedTopologies", topologies)),
                }
            case "CSINode":
                driver = {
                    "name": "d",
                    **self.maybe(("allocatable", lambda: self.maybe(("count", self.int32)))),
                }
                return meta | {"spec": {"drivers": [driver]}}
            case "CSIDriver":
                return meta | {"spec": {"storageCapacity": True, "preventPodSchedulingIfMissing": True}}
            case "CSIStorageCapacity":
                sizes = [(field, lambda: self.any(QUANTITIES)) for field in ("maximumVolumeSize", "capacity")]
                return meta | {
                    "storageClassName": "late",
                    **self.maybe(("nodeTopology", self.selector), *sizes),
                }
            case _:
                source = self.maybe(("persistentVolumeName", lambda: self.any(("v0", "v1"))))
                return meta | {"spec": {"attacher": "d", "nodeName": "a", "source": source}}

    # ── devices ────────────────────────────────────────────────────────────────────────────────────────────────────

    def claim(self, name: str) -> Json:
        opaque = {
            "opaque": {
                "driver": "d",
                "parameters": self.any(({}, 1, "x", {"a": [2**64 - 1, -(2**63), 1e308]})),
            }
        }
        return {
            "metadata": {**self.meta(name), "namespace": "default", "finalizers": ["x"]},
            "spec": {
                "devices": {
                    "requests": [self.request(f"q{index}") for index in range(self.random.randint(1, 3))],
                    **self.maybe(
                        ("constraints", lambda: [{self.any(("matchAttribute", "distinctAttribute")): "d/x", **self.maybe(("requests", ["q0"]))}]),
                        ("config", lambda: [opaque]),
                    ),
                }
            },
            "status": self.maybe(
                ("allocation", lambda: self.allocation() if self.random.one_in(2) else None),
                ("reservedFor", lambda: [{"resource": self.any(("pods", "x")), "name": "p0", "uid": "uid-p0-default"}]),
                ("devices", lambda: [{"driver": "d", "pool": "a", "device": "x", "conditions": [{"type": "b", "status": "True", "reason": "r", "message": self.any(TEXTS)}]}]),
            ),
        }  # fmt: skip

    def allocation(self) -> Json:
        result = {"request": "q0", "driver": "d", "pool": "a", "device": "d0"}
        return {
            "devices": {
                "results": [{**result, **self.maybe(("adminAccess", True), ("shareID", "s"), ("consumedCapacity", lambda: {"m": self.any(QUANTITIES)}), ("bindingConditions", ["b"]), ("bindingFailureConditions", ["f"]))}]
            },
            **self.maybe(("nodeSelector", self.node_selector), ("allocationTimestamp", lambda: self.any(TIMES))),
        }  # fmt: skip

    def request(self, name: str) -> Json:
        return {"name": name, **self.any(({"exactly": self.subrequest()}, {"firstAvailable": [{"name": "s0", **self.subrequest()}, {"name": "s1", **self.subrequest()}]}))}  # fmt: skip

    def subrequest(self) -> Json:
        return {
            "deviceClassName": self.any(("k0", "k0", "gone")),
            **self.maybe(
                (
                    "selectors",
                    lambda: [{"cel": {"expression": self.any(CEL)}}] if self.random.one_in(2) else [],
                ),
                ("allocationMode", lambda: self.any(("ExactCount", "All"))),
                ("count", lambda: self.int64(1)),
                ("adminAccess", True),
                ("tolerations", lambda: self.several(self.toleration)),
                ("capacity", lambda: {"requests": {self.any(("m", "d/m")): self.any(("-1", *QUANTITIES))}}),
            ),
        }

    def device_class(self, name: str) -> Json:
        return {
            "metadata": self.meta(name, namespaced=False),
            "spec": self.maybe(
                ("selectors", lambda: [{"cel": {"expression": self.any(CEL)}}] if self.random.one_in(4) else []),
                ("extendedResourceName", "example.com/gpu"),
                ("config", [{"opaque": {"driver": "d", "parameters": {}}}]),
            ),
        }  # fmt: skip

    def slice(self, name: str) -> Json:
        return {
            "metadata": self.meta(name, namespaced=False),
            "spec": {
                "driver": "d",
                "pool": {"name": "a", "generation": self.any((0, 0, INT64_MAX)), "resourceSliceCount": self.any((1, 1, INT64_MAX))},
                **self.any(({"nodeName": "a"}, {"allNodes": True}, {"nodeSelector": self.node_selector()})),
                "devices": [self.device(f"d{index}") for index in range(3)],
                **self.maybe(("sharedCounters", lambda: [{"name": "s", "counters": {"m": {"value": self.any(QUANTITIES)}}}])),
            },
        }  # fmt: skip

    def device(self, name: str) -> Json:
        attribute: Sequence[Json] = ({"int": self.any((-(2**63), INT64_MAX))}, {"bool": True}, {"string": self.any(LABELS)}, {"version": "1.2.3-999999999999999999999999999999999999999999999999"})  # fmt: skip
        limits = {"min": self.any(QUANTITIES), "max": self.any(QUANTITIES), "step": self.any(QUANTITIES[1:])}
        policy = {"default": self.any(QUANTITIES), **self.any(({"validRange": self.maybe(*limits.items())}, {"validValues": [self.any(QUANTITIES)]}))}  # fmt: skip
        return {
            "name": name,
            **self.maybe(
                ("attributes", lambda: {self.any(("x", "d/x")): self.any(attribute)}),
                ("capacity", lambda: {"m": {"value": self.any(QUANTITIES), **self.maybe(("requestPolicy", policy))}}),
                ("consumesCounters", lambda: [{"counterSet": "s", "counters": {"m": {"value": self.any(QUANTITIES)}}}]),
                ("taints", lambda: [{"key": self.any(KEYS), "effect": self.any(("NoSchedule", "NoExecute", "None"))}] if self.random.one_in(3) else []),
                ("allowMultipleAllocations", True),
                ("bindingConditions", ["b"]),
                ("bindsToNode", True),
            ),
        }  # fmt: skip

    # ── groups ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def group(self, name: str, api: str) -> Json:
        if api == "scheduling.k8s.io":
            spec = self.maybe(
                (
                    "schedulingPolicy",
                    lambda: self.any(({"gang": {"minCount": self.int32(1)}}, {"basic": {}})),
                ),
                ("schedulingConstraints", lambda: {"topology": [{"key": self.any(KEYS)}]}),
                ("disruptionMode", lambda: self.any(({"all": {}}, {"single": {}}, "Pod", "PodGroup"))),
                ("priority", lambda: self.any((-(2**31), INT32_MAX, 0))),
                ("preemptionPolicy", lambda: self.any(("Never", "PreemptLowerPriority"))),
            )
        else:
            spec = self.maybe(
                ("minMember", self.int32),
                ("scheduleTimeoutSeconds", self.int32),
                (
                    "minResources",
                    lambda: self.any(({"cpu": self.any((*QUANTITIES, "1e999"))}, self.amounts())),
                ),
            )
        conditions = lambda: [{"type": self.any(("PodGroupInitiallyScheduled", "Scheduled", "Unschedulable")), "status": "True", "reason": "r", "message": self.any(TEXTS), "lastTransitionTime": self.any(TIMES)}]  # noqa: E731  # fmt: skip
        return {"metadata": self.meta(name), "spec": spec, "status": self.maybe(("conditions", conditions), ("running", self.int32), ("phase", "Pending"))}  # fmt: skip
