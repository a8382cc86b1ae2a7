"""Jobs, JobSets and what Kueue admits them by."""

from collections.abc import Mapping

from tests.controlplane.api import Json
from tests.controlplane.objects import pod, ready_node

JOBS = "/apis/batch/v1/namespaces/default/jobs"
JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
WORKLOADS = f"{KUEUE}/namespaces/default/workloads"
RACK, HOST = "example.com/rack", "kubernetes.io/hostname"
QUEUE = "kueue.x-k8s.io/queue-name"
REQUIRED_TOPOLOGY = "kueue.x-k8s.io/podset-required-topology"


def template(scheduler: str, *, labels: Mapping[str, str] = {}, annotations: Mapping[str, str] = {}) -> Json:
    """Of pods with one CPU."""
    spec = pod("x", cpu="1", schedulerName=scheduler)["spec"]
    return {"metadata": {"labels": dict(labels), "annotations": dict(annotations)}, "spec": spec}


def job_spec(pods: int, template: Json) -> Json:
    template["spec"]["restartPolicy"] = "Never"
    return {"parallelism": pods, "completions": pods, "completionMode": "Indexed", "template": template}


def jobset(name: str, scheduler: str, *, jobs: int, pods: int, queue: str = "") -> Json:
    """`pods` of each job. `queue`: of Kueue, with all pods of the JobSet in one rack."""
    annotations = {REQUIRED_TOPOLOGY: RACK} if queue else {}
    members = template(scheduler, labels={"example.com/pods-of-a-job": str(pods)}, annotations=annotations)
    workers = {"name": "workers", "replicas": jobs, "template": {"spec": job_spec(pods, members)}}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name, "labels": {QUEUE: queue} if queue else {}},
        "spec": {"replicatedJobs": [workers]},
    }


def queue_of_racks() -> list[tuple[str, Json]]:
    """Paths and objects of the queue `batch`: 4 CPUs on the nodes with the label `example.com/pool=batch`, in racks."""

    def manifest(kind: str, name: str, spec: Json) -> Json:
        return {
            "apiVersion": "kueue.x-k8s.io/v1beta2",
            "kind": kind,
            "metadata": {"name": name},
            "spec": spec,
        }

    flavor = {"nodeLabels": {"example.com/pool": "batch"}, "topologyName": "racks"}
    quotas = [
        {"name": name, "nominalQuota": quantity} for name, quantity in (("cpu", "4"), ("memory", "8Gi"))
    ]
    queue = {
        "namespaceSelector": {},
        "resourceGroups": [
            {"coveredResources": ["cpu", "memory"], "flavors": [{"name": "batch", "resources": quotas}]}
        ],
    }
    levels = {"levels": [{"nodeLabel": RACK}, {"nodeLabel": HOST}]}
    return [
        (f"{KUEUE}/topologies", manifest("Topology", "racks", levels)),
        (f"{KUEUE}/resourceflavors", manifest("ResourceFlavor", "batch", flavor)),
        (f"{KUEUE}/clusterqueues", manifest("ClusterQueue", "batch", queue)),
        (
            f"{KUEUE}/namespaces/default/localqueues",
            manifest("LocalQueue", "batch", {"clusterQueue": "batch"}),
        ),
    ]


def nodes_in_racks() -> list[Json]:
    """Rack 1 has a and b, of which a policy closes b, what Kueue does not know; rack 2 has c. Each has 2 CPUs."""
    return [
        ready_node(
            name, cpu="2", labels={RACK: rack, "example.com/pool": "batch", "example.com/open": opened}
        )
        for name, rack, opened in (("a", "1", "yes"), ("b", "1", "no"), ("c", "2", "yes"))
    ]
