"""The changes that users, controllers and machines make to a cluster, drawn from one random stream.

Each action is registered by its name (nodes, storage and devices have their own `actions`), and takes
effect at once through the sandbox's client. An action without an object to act on does nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import orjson

from policysched.kube.client.transport import ApiResponse
from policysched.sandbox.apiserver.requests import ServerRequest
from policysched.sandbox.apiserver.server import ApiServer
from policysched.sandbox.kubelet import RUN_SECONDS, Kubelet
from policysched.sandbox.local_client import LocalClient
from tests.simulation.churn_devices import DeviceChurn
from tests.simulation.churn_nodes import ZONES, NodeChurn, labels_of, random_object
from tests.simulation.churn_storage import StorageChurn

Json = dict[str, Any]
PolicyVersions = Mapping[str, Sequence[str]]

OTHER_SCHEDULER = "somebody-else"
"""The schedulerName of pods that another scheduler binds."""
UNKNOWN_SCHEDULER = "nobody"
"""The schedulerName of pods that no scheduler binds."""

PROTECTED_LABEL = "keep"
"""Pods with this label are victims under no policy."""
_DAEMON_SET = {
    "apiVersion": "apps/v1",
    "kind": "DaemonSet",
    "name": "agent",
    "uid": "uid-agent",
    "controller": True,
}

NAMESPACES = ("default", "team-a")
_CPU = ("100m", "250m", "500m", "1", "2")
_CPU_SMALL_NODES = ("500m", "1")
_MEMORY = ("64Mi", "256Mi", "1Gi")


class Churn:
    """`schedulers` are the schedulerNames of pods. `good` and `bad` are the policy texts by key;
    the ConfigMap `config_map` starts with good ones, mostly the first of each key. `log` gets a
    line for each action.
    """

    def __init__(
        self,
        server: ApiServer,
        random: Random,
        *,
        schedulers: Sequence[str],
        good: PolicyVersions,
        bad: PolicyVersions,
        config_map: tuple[str, str],
        kubelet: Kubelet,
        pods_max: int,
        small_nodes: bool,
        log: Callable[[str], None],
    ) -> None:
        self._server = server
        self._local = LocalClient(server)
        self._random = random
        self._schedulers = schedulers
        self._good = good
        self._bad = bad
        self._config_map = config_map
        self._kubelet = kubelet
        self._pods_max = pods_max
        self._cpu = _CPU_SMALL_NODES if small_nodes else _CPU
        self._log = log
        self._count = 0
        self._storage = StorageChurn(self._local, random, log=log, number=self._next_number)
        self._devices = DeviceChurn(self._local, random, log=log, number=self._next_number)
        self._nodes = NodeChurn(
            self._local, random, small=small_nodes, log=log, on_deleted=self._devices.on_node_deleted
        )
        self._actions: dict[str, Callable[[], None]] = {
            "create a pod": self.create_pod,
            "create an urgent pod": self.create_urgent_pod,
            "create a gang": self.create_gang,
            "create an urgent gang": self.create_urgent_gang,
            "delete a pod": self.delete_pod,
            "recreate a pod": self.recreate_pod,
            "ungate a pod": self.ungate_pod,
            "edit a pod": self.edit_pod,
            "relabel a namespace": self.relabel_namespace,
            "edit a policy": self.edit_policy,
            "break a policy": self.break_policy,
            "delete a policy": self.delete_policy,
            "delete the ConfigMap": self.delete_config_map,
            "forget the history": self.compact_history,
            "start a static pod": self.start_static_pod,
            "create a budget": self.create_budget,
            **self._nodes.actions,
            **self._storage.actions,
            **self._devices.actions,
        }

    def has_action(self, action: str) -> bool:
        return action in self._actions

    def perform(self, action: str) -> None:
        self._actions[action]()

    def populate(self, *, nodes: int, pods: int) -> None:
        """Create the initial cluster."""
        self._local.create("namespaces", "", {"metadata": {"name": "team-a", "labels": {"tier": "gold"}}})
        first = self._random.random() < 0.6
        self.write_policies(
            {key: texts[0] if first else self._random.choice(texts) for key, texts in self._good.items()}
        )
        self._storage.create_classes()
        self._devices.create_classes()
        for _ in range(nodes):
            self._nodes.add()
        self._storage.populate()
        self._devices.populate()
        for _ in range(pods):
            self.create_pod()

    def restore_policies(self) -> None:
        """Restore a valid text for every policy: its own, or a random one."""
        data = self.policies()
        wanted = data | {
            key: data[key] if data.get(key) in texts else self._random.choice(texts)
            for key, texts in self._good.items()
        }
        self._log("the policies are put in order")
        self.write_policies(wanted)

    # ── pods ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def create_pod(self) -> None:
        random = self._random
        scheduler = random.choices(
            (*self._schedulers, OTHER_SCHEDULER, UNKNOWN_SCHEDULER), (*(6,) * len(self._schedulers), 2, 1)
        )[0]
        self._make_pod(f"pod-{self._next_number()}", random.choice(NAMESPACES), scheduler, {})

    def create_urgent_pod(self) -> None:
        pod = self._random_object("pods", lambda pod: pod["spec"]["schedulerName"] in self._schedulers)
        if pod is not None:
            self.create_competing_pod(pod)

    def create_competing_pod(self, pod: Json) -> None:
        """Create a pod with the same requests and a high priority."""
        name, namespace = f"urgent-{self._next_number()}", pod["metadata"]["namespace"]
        spec = {
            key: value
            for key, value in pod["spec"].items()
            if key in ("schedulerName", "containers", "nodeSelector")
        }
        spec["priorityClassName"] = "system-node-critical"
        self._log(f"pod {namespace}/{name} wants what {_name(pod)} wants")
        metadata = {"name": name, "namespace": namespace, "labels": {"rank": "9"}}
        self._local.create("pods", namespace, {"metadata": metadata, "spec": spec})

    def create_gang(self) -> None:
        """Later calls can add members to an existing gang."""
        random = self._random
        scheduler, namespace = random.choice(("gamma", "delta")), random.choice(NAMESPACES)
        existing = sorted(
            {
                (pod["spec"]["schedulerName"], pod["metadata"]["namespace"], group, least)
                for pod in self._local.list("pods")
                if (group := labels_of(pod).get("group")) and (least := labels_of(pod).get("least"))
            }
        )
        group, least = f"gang-{self._next_number()}", str(random.randint(2, 4))
        if existing and random.random() < 0.4:
            scheduler, namespace, group, least = random.choice(existing)
        cpu = random.choice(self._cpu)
        members = random.randint(1, 4)
        self._log(f"{members} members of gang {group}, at least {least}")
        for _ in range(members):
            self._make_pod(
                f"{group}-{self._next_number()}",
                namespace,
                scheduler,
                {"group": group, "least": least},
                cpu=cpu,
            )

    def create_urgent_gang(self) -> None:
        """A whole gang whose members request what a running pod requests."""
        random = self._random
        pod = self._random_object("pods", lambda pod: bool(pod["spec"].get("nodeName")))
        if pod is None:
            return
        members, group = random.randint(2, 3), f"rivals-{self._next_number()}"
        namespace = pod["metadata"]["namespace"]
        self._log(f"{members} members of gang {group} want what {_name(pod)} has")
        for _ in range(members):
            labels = {"group": group, "least": str(members)}
            spec = {key: value for key, value in pod["spec"].items() if key in ("containers", "nodeSelector")}
            spec |= {"schedulerName": "gamma", "priorityClassName": "system-node-critical"}
            metadata = {"name": f"{group}-{self._next_number()}", "namespace": namespace, "labels": labels}
            self._local.create("pods", namespace, {"metadata": metadata, "spec": spec})

    def _make_pod(
        self, name: str, namespace: str, scheduler: str, labels: Mapping[str, str], cpu: str | None = None
    ) -> None:
        random = self._random
        if sum(1 for _ in self._local.list("pods")) >= self._pods_max:
            return
        labels = {**labels, **({"rank": str(random.randint(0, 3))} if random.random() < 0.5 else {})}
        annotations = {RUN_SECONDS: str(random.randint(2, 60))} if random.random() < 0.5 else {}
        container: Json = {
            "name": "c",
            "image": "app:1",
            "resources": {
                "requests": {"cpu": cpu or random.choice(self._cpu), "memory": random.choice(_MEMORY)}
            },
        }
        if random.random() < 0.15:
            port = random.choice((8080, 9090))
            container["ports"] = [{"containerPort": port, "hostPort": port}]
        spec: Json = {"schedulerName": scheduler, "containers": [container], "priority": 0}
        if random.random() < 0.1:
            spec["schedulingGates"] = [{"name": "example.com/wait"}]
        if random.random() < 0.15:
            spec["nodeSelector"] = {"zone": random.choice(ZONES)}
        if random.random() < 0.2:
            spec["tolerations"] = [{"key": "dedicated", "operator": "Exists"}]
        if random.random() < 0.3:
            spec["priorityClassName"] = random.choice(("system-cluster-critical", "system-node-critical"))
            del spec["priority"]
        if random.random() < 0.1:
            labels[PROTECTED_LABEL] = "me"
        if random.random() < 0.03:
            spec["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": "none"}}]
        elif "group" not in labels and (volumes := self._storage.volumes_for_pod(namespace)):
            spec["volumes"] = volumes
        if devices := self._devices.claims_for_pod(namespace, 0.1 if "group" in labels else 0.3):
            spec["resourceClaims"] = devices
        metadata: Json = {"name": name, "namespace": namespace, "labels": labels, "annotations": annotations}
        if scheduler == OTHER_SCHEDULER and self._count % 2 == 0:
            metadata["ownerReferences"] = [_DAEMON_SET]
        claims = "".join(f" with {_claim_of(source)}" for source in (*spec.get("volumes", ()), *devices))
        self._log(f"pod {namespace}/{name} of {scheduler}{claims}")
        self._local.create("pods", namespace, {"metadata": metadata, "spec": spec})

    def delete_pod(self) -> None:
        pod = self._random_object("pods")
        if pod is not None:
            self.delete(pod)

    def delete(self, pod: Json) -> None:
        grace_s = self._random.choice((None, 0, 1))
        self._log(f"pod {_name(pod)} is deleted, grace {grace_s}")
        self._local.delete("pods", pod, grace_period_s=grace_s)

    def recreate_pod(self) -> None:
        pod = self._random_object("pods")
        if pod is not None:
            self.recreate(pod)

    def recreate(self, pod: Json) -> None:
        """Replace the pod with another one of the same name, as a StatefulSet does."""
        self._log(f"pod {_name(pod)} is deleted and made anew")
        self._local.delete("pods", pod, grace_period_s=0)
        self._make_pod(
            pod["metadata"]["name"],
            pod["metadata"]["namespace"],
            pod["spec"]["schedulerName"],
            {key: value for key, value in labels_of(pod).items() if key != "rank"},
        )

    def ungate_pod(self) -> None:
        pod = self._random_object("pods", lambda pod: bool(pod["spec"].get("schedulingGates")))
        if pod is not None:
            self._log(f"pod {_name(pod)} is let through its gates")
            self._local.update(
                "pods", pod, lambda pod: {**pod, "spec": {**pod["spec"], "schedulingGates": []}}
            )

    def edit_pod(self) -> None:
        """Change a label that its policy orders by, or add a toleration."""
        pod = self._random_object("pods", lambda pod: not pod["spec"].get("nodeName"))
        if pod is None:
            return
        self._log(f"pod {_name(pod)} is edited")
        if self._random.random() < 0.5:
            labels = {**labels_of(pod), "rank": self._random.choice(("0", "1", "7", "many"))}
            self._local.update(
                "pods", pod, lambda pod: {**pod, "metadata": {**pod["metadata"], "labels": labels}}
            )
        else:
            more = {"key": f"key-{self._next_number()}", "operator": "Exists"}
            if self._random.random() < 0.5:
                more = {"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}
            self._local.update("pods", pod, lambda pod: _with_toleration(pod, more))

    def create_budget(self) -> None:
        """A budget for the pods of one rank. `disruptionsAllowed` is set here because no controller runs."""
        rank, namespace = str(self._random.randint(0, 3)), self._random.choice(NAMESPACES)
        name, allowed = f"rank-{rank}", self._random.choice((0, 0, 1))
        if self._local.get("poddisruptionbudgets", namespace, name) is not None:
            return
        self._log(f"of {namespace}'s pods of rank {rank} {allowed} may be disrupted")
        spec = {"minAvailable": 1, "selector": {"matchLabels": {"rank": rank}}}
        made = self._local.create(
            "poddisruptionbudgets", namespace, {"metadata": {"name": name}, "spec": spec}
        )
        self._local.set_status("poddisruptionbudgets", made, disruptionsAllowed=allowed)

    # ── namespaces, policies and the server ───────────────────────────────────────────────────────────────────────────

    def relabel_namespace(self) -> None:
        space = self._local.get("namespaces", "", "team-a")
        assert space is not None, "nobody deletes namespaces here"
        labels = {**labels_of(space), "tier": self._random.choice(("gold", "standard"))}
        self._log(f"namespace team-a is {labels['tier']}")
        self._local.update(
            "namespaces",
            space,
            lambda namespace: {**namespace, "metadata": {**namespace["metadata"], "labels": labels}},
        )

    def edit_policy(self) -> None:
        key = self._random.choice(sorted(self._good))
        self._log(f"{key} is edited")
        self.write_policies({**self.policies(), key: self._random.choice(self._good[key])})

    def break_policy(self) -> None:
        key = self._random.choice(sorted(self._bad))
        self._log(f"{key} is broken")
        self.write_policies({**self.policies(), key: self._random.choice(self._bad[key])})

    def delete_policy(self) -> None:
        key = self._random.choice(sorted(self._good))
        self._log(f"{key} is deleted")
        self.write_policies({name: text for name, text in self.policies().items() if name != key})

    def delete_config_map(self) -> None:
        config_map = self._local.get("configmaps", *self._config_map)
        if config_map is not None:
            self._log("the policies' ConfigMap is deleted")
            self._local.delete("configmaps", config_map)

    def compact_history(self) -> None:
        self._log("the server forgets its history and ends all watches")
        self._server.compact_history()
        self._server.cut_watches()

    def policies(self) -> dict[str, str]:
        config_map = self._local.get("configmaps", *self._config_map)
        return dict((config_map or {}).get("data") or {})

    def write_policies(self, data: Mapping[str, str]) -> None:
        namespace, name = self._config_map
        config_map = self._local.get("configmaps", namespace, name)
        if config_map is None:
            self._local.create("configmaps", namespace, {"metadata": {"name": name}, "data": dict(data)})
        else:
            self._local.update(
                "configmaps", config_map, lambda config_map: {**config_map, "data": dict(data)}
            )

    def start_static_pod(self) -> None:
        """Only the kubelet of its node knows the pod at first."""
        node = self._random_object("nodes")
        if node is None or sum(1 for _ in self._local.list("pods")) >= self._pods_max:
            return
        name, random = node["metadata"]["name"], self._random
        requests = {"cpu": random.choice(self._cpu), "memory": random.choice(_MEMORY)}
        container = {"name": "c", "image": "app:1", "resources": {"requests": requests}}
        metadata = {"name": f"static-{self._next_number()}-{name}", "namespace": "kube-system"}
        manifest = {
            "metadata": metadata,
            "spec": {"schedulerName": OTHER_SCHEDULER, "containers": [container]},
        }
        after_s = random.uniform(0.5, 20.0)
        if self._kubelet.start_static_pod(name, manifest, mirror_after_s=after_s):
            self._log(
                f"{name} runs {metadata['name']}, which asks for {requests} and is shown in {after_s:.1f} s"
            )

    # ── another scheduler ──────────────────────────────────────────────────────────────────────────────────────────

    def bind_by_other_scheduler(self) -> None:
        """Another scheduler binds one of its pods to a random node."""
        pod = self._random_object(
            "pods",
            lambda pod: (
                pod["spec"]["schedulerName"] == OTHER_SCHEDULER
                and not pod["spec"].get("nodeName")
                and not pod["spec"].get("schedulingGates")
            ),
        )
        node = self._random_object("nodes")
        if pod is None or node is None:
            return
        metadata, target = pod["metadata"], node["metadata"]["name"]
        self._log(f"another scheduler binds {_name(pod)} to {target}")
        body = {"metadata": {"uid": metadata["uid"]}, "target": {"kind": "Node", "name": target}}
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/binding"
        answer = self._server.handle(ServerRequest("POST", path, body=orjson.dumps(body)))
        assert isinstance(answer, ApiResponse) and answer.status == 201, f"{path}: {answer}"

    # ── random choices ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _random_object(self, plural: str, wanted: Callable[[Json], bool] = lambda _: True) -> Json | None:
        return random_object(self._local, self._random, plural, wanted)

    def _next_number(self) -> int:
        self._count += 1
        return self._count


def _name(obj: Json) -> str:
    return f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"


def _claim_of(wanted: Json) -> str:
    """The name of the claim of a volume or of a device entry."""
    volume = wanted.get("persistentVolumeClaim")
    return str(
        volume["claimName"]
        if volume
        else wanted.get("resourceClaimName") or f"devices of template {wanted['resourceClaimTemplateName']}"
    )


def _with_toleration(pod: Json, more: Json) -> Json:
    tolerations = [*(pod["spec"].get("tolerations") or ()), more]
    return {**pod, "spec": {**pod["spec"], "tolerations": tolerations}}


__all__ = ["OTHER_SCHEDULER", "PROTECTED_LABEL", "UNKNOWN_SCHEDULER", "Churn"]
