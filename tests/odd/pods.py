"""Pods with extreme and odd values in the fields that policysched reads, as the API server would send them."""

from collections.abc import Mapping, Sequence
from typing import Any

from tests.odd.values import (
    DIGITS,
    INT32_MAX,
    KEYS,
    LABELS,
    NAMES,
    NAMESPACES,
    NODES,
    PREFERRED,
    REQUIRED,
    RESOURCES,
    TEXTS,
    TIMES,
    Json,
    OddValues,
)


class OddPods(OddValues):
    def pod(self, name: str, **more: Any) -> Json:
        placed, self.rarity = self.random.one_in(3), self.any((2, 4, 10))
        owner = {
            "apiVersion": self.any(("apps/v1", "v1", "")),
            "kind": self.any(("ReplicaSet", "Node", "DaemonSet", "")),
            "name": self.any(NAMES),
            "uid": "u",
            "controller": True,
        }
        return {
            "metadata": self.meta(
                name,
                **self.maybe(("ownerReferences", lambda: [owner]), ("deletionTimestamp", lambda: self.any(TIMES[:1]))),
                managedFields=self.several(lambda: {"manager": self.any(("policysched", "")), "fieldsV1": {"f:status": {"f:nominatedNodeName": {}}}}),
            ),
            "spec": {
                "schedulerName": self.any(("test", "test", "test", "other")),
                "containers": [self.container("c0"), *[self.container(f"c{n + 1}") for n in range(self.random.randint(0, 2))]],
                **self.maybe(
                    ("priority", lambda: self.any((0, 1, -1, -(2**31), INT32_MAX))),
                    ("preemptionPolicy", lambda: self.any(("Never", "PreemptLowerPriority"))),
                    ("activeDeadlineSeconds", lambda: self.int32(1)),
                    ("hostNetwork", True),
                    ("hostUsers", False),
                    ("overhead", lambda: self.amounts(RESOURCES[:2])),
                    ("nodeSelector", self.labels),
                    ("serviceAccountName", lambda: self.any(NAMES)),
                    ("schedulingGates", lambda: [{"name": self.any(KEYS)}] if self.random.one_in(5) else []),
                    ("initContainers", lambda: [self.container(f"i{n}", init=True) for n in range(2)]),
                    ("affinity", self.affinity),
                    ("tolerations", lambda: self.several(self.toleration)),
                    ("topologySpreadConstraints", lambda: self.several(self.spread)),
                    ("volumes", lambda: self.volumes()),
                    ("resourceClaims", lambda: self.several(self.claim_use)),
                    ("resources", lambda: {"requests": self.amounts(RESOURCES[:2]), **self.maybe(("limits", lambda: self.amounts(RESOURCES[:2])))}),
                    ("schedulingGroup", lambda: {"podGroupName": self.any(NAMES)}),
                    ("workloadRef", lambda: None),
                ),
                **({"nodeName": self.any(NODES)} if placed else {}),
            },
            "status": self.pod_status(placed),
            **more,
        }  # fmt: skip

    def pod_status(self, placed: bool) -> Json:
        phases = ("Running", "Pending", "Succeeded", "Failed", "Unknown") if placed else ("Pending",)
        return {
            "phase": self.any(phases),
            **self.maybe(
                ("nominatedNodeName", lambda: self.any(NODES)),
                ("startTime", lambda: self.any(TIMES)),
                ("reason", lambda: self.any(("OutOfcpu", "OutOf", "Evicted", *TEXTS))),
                ("message", lambda: self.any((f"Pod was rejected: Node didn't have enough resource: cpu, requested: {'9' * 19}, used: {'9' * 19}, capacity: 0", *TEXTS))),
                ("qosClass", lambda: self.any(("BestEffort", "Burstable", "Guaranteed"))),
                ("conditions", lambda: self.several(self.condition)),
                ("containerStatuses", lambda: [self.container_status("c0"), self.container_status("x")]),
                ("initContainerStatuses", lambda: [self.container_status("i0")]),
                ("allocatedResources", self.amounts),
                ("resources", lambda: self.maybe(("requests", self.amounts), ("limits", self.amounts))),
                ("resourceClaimStatuses", lambda: [{"name": "r0", **self.maybe(("resourceClaimName", "c0"))}]),
            ),
        }  # fmt: skip

    def condition(self) -> Json:
        return {
            "type": self.any(("Ready", "PodScheduled", "DisruptionTarget", "PodResizePending", *TEXTS)),
            "status": self.any(("True", "False", "Unknown")),
            **self.maybe(
                ("reason", lambda: self.any(("PreemptionByScheduler", "Infeasible", *TEXTS))),
                ("message", lambda: self.any(TEXTS)),
                ("lastTransitionTime", lambda: self.any((None, *TIMES))),
            ),
        }

    def container_status(self, name: str) -> Json:
        run = self.maybe(
            ("startedAt", lambda: self.any((None, *TIMES))),
            ("finishedAt", lambda: self.any((None, *TIMES))),
            ("exitCode", lambda: self.any((0, -1, INT32_MAX))),
            ("reason", lambda: self.any(TEXTS)),
            ("containerID", lambda: self.any(TEXTS)),
        )
        return {
            "name": name,
            "restartCount": self.int32(),
            **self.maybe(
                ("state", lambda: {self.any(("running", "terminated", "waiting")): run}),
                ("lastState", lambda: {"terminated": run}),
                ("containerID", lambda: self.any(TEXTS)),
                ("allocatedResources", self.amounts),
                ("resources", lambda: self.maybe(("requests", self.amounts), ("limits", self.amounts))),
            ),
        }

    def container(self, name: str, *, init: bool = False) -> Json:
        port = {"containerPort": self.random.choice((1, 65535)), "protocol": self.any(("TCP", "UDP", "SCTP"))}
        port |= self.maybe(("hostPort", lambda: self.any((0, 1, 65535))), ("hostIP", lambda: self.any(("", "0.0.0.0", "::", "127.0.0.1"))))  # fmt: skip
        return {
            "name": name,
            **self.maybe(
                ("image", lambda: self.any(TEXTS)),
                ("resources", lambda: self.maybe(("requests", self.amounts), ("limits", self.amounts))),
                ("ports", lambda: [port]),
                ("restartPolicy", lambda: "Always" if init else None),
                ("restartPolicyRules", lambda: [{"action": "RestartAllContainers"}]),
                ("volumeMounts", lambda: [{"bindMountOptions": ["noexec"]}]),
            ),
        }

    def toleration(self) -> Json:
        return self.maybe(
            ("key", lambda: self.any(KEYS)),
            ("operator", lambda: self.any(("Exists", "Equal", "Gt", "Lt", ""))),
            ("value", lambda: self.any((*LABELS, DIGITS))),
            ("effect", lambda: self.any(("", "NoSchedule", "PreferNoSchedule", "NoExecute"))),
            ("tolerationSeconds", self.int64),
        )

    def affinity(self) -> Json:
        def pods() -> Json:
            return self.maybe(
                (REQUIRED, lambda: self.several(self.pod_term)),
                (PREFERRED, lambda: self.several(lambda: {"weight": self.any((1, 100)), "podAffinityTerm": self.pod_term()})),
            )  # fmt: skip

        def nodes() -> Json:
            return self.maybe(
                (REQUIRED, self.node_selector),
                (PREFERRED, lambda: self.several(lambda: {"weight": self.any((1, 100)), "preference": self.node_term()})),
            )  # fmt: skip

        return self.maybe(("nodeAffinity", nodes), ("podAffinity", pods), ("podAntiAffinity", pods))

    def pod_term(self) -> Json:
        return {
            "topologyKey": self.any(KEYS),
            **self.maybe(
                ("labelSelector", self.selector),
                ("namespaceSelector", self.selector),
                ("namespaces", lambda: [self.any(NAMESPACES)]),
                ("matchLabelKeys", lambda: [self.any(KEYS)]),
                ("mismatchLabelKeys", lambda: [self.any(KEYS)]),
            ),
        }

    def spread(self) -> Json:
        return {
            "topologyKey": self.any(KEYS),
            "maxSkew": self.int32(1),
            "whenUnsatisfiable": self.any(("DoNotSchedule", "ScheduleAnyway")),
            **self.maybe(
                ("labelSelector", self.selector),
                ("minDomains", lambda: self.int32(1)),
                ("nodeAffinityPolicy", lambda: self.any(("Honor", "Ignore"))),
                ("nodeTaintsPolicy", lambda: self.any(("Honor", "Ignore"))),
                ("matchLabelKeys", lambda: [self.any(KEYS)]),
            ),
        }

    def volumes(self) -> list[Json]:
        odd = self.any(TEXTS)
        kinds: Sequence[Mapping[str, Any]] = (
            {"persistentVolumeClaim": {"claimName": self.any(("c0", "c1", "c2", "gone"))}},
            {"ephemeral": {"volumeClaimTemplate": {}}},
            {"gcePersistentDisk": {"pdName": odd, "readOnly": True}},
            {"awsElasticBlockStore": {"volumeID": odd}},
            {"azureDisk": {"kind": self.any(("Managed", "Shared", "Dedicated")), "diskURI": odd}},
            {"cinder": {"volumeID": odd}},
            {"portworxVolume": {"volumeID": odd}},
            {"iscsi": {"iqn": f"iqn.2026-01.com.example:{'x' * 200}", "readOnly": True}},
            {"rbd": {"image": odd, "monitors": [odd, odd], "pool": odd}},
            {"image": {"reference": odd}},
            {"emptyDir": {}},
        )
        return [{"name": f"v{index}", **self.any(kinds)} for index in range(self.random.randint(0, 4))]

    def claim_use(self) -> Json:
        return {"name": f"r{self.random.randrange(3)}", **self.any(({"resourceClaimName": "c0"}, {"resourceClaimName": "c1"}, {"resourceClaimTemplateName": "t"}))}  # fmt: skip
