"""Prefers nodes that have the pod's images already, the less so the rarer an image is in the cluster."""

from policysched.builtins.declaration import BuiltinDeclaration, BuiltinParameter

DECLARATION = BuiltinDeclaration(
    name="image_locality",
    plugin="ImageLocality",
    summary="prefers nodes that have the images already, by their size and by how many nodes have them",
    filters=False,
    scores=True,
    parameters=(
        BuiltinParameter(
            name="image_volumes",
            kind="choice",
            default="yes",
            choices=("yes", "no"),
            doc="whether images of volumes count as those of containers do; with `no` as kube-scheduler did until 1.35",
        ),
    ),
    pod_reads=("images", "image_volumes"),
    node_reads=("images", "cluster"),
    filter_requeue_events=frozenset(),
    reasons=(),
    default_weight=1,
    scaleup=True,
    cost_per_node=4,
    source="kubernetes v1.36.2 pkg/scheduler/framework/plugins/imagelocality/image_locality.go",
)
