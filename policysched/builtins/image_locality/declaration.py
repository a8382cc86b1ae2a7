"""Prefers nodes that already have the pod's images, less so for images that few nodes have."""

from policysched.builtins.declaration import BuiltinDeclaration, BuiltinParameter

DECLARATION = BuiltinDeclaration(
    name="image_locality",
    plugin="ImageLocality",
    summary="prefers nodes that already have the pod's images, by their size and by how many nodes have them",
    filters=False,
    scores=True,
    parameters=(
        BuiltinParameter(
            name="image_volumes",
            kind="choice",
            default="yes",
            choices=("yes", "size", "no"),
            doc=(
                "whether images of volumes count like those of containers; with `size` (kube-scheduler 1.36) they add to the "
                "size and not to the number of images, with `no` (until 1.35) to neither"
            ),
        ),
    ),
    pod_reads=("images", "image_volumes"),
    node_reads=("images", "cluster"),
    filter_requeue_events=frozenset(),
    reasons=(),
    default_weight=1,
    scaleup=True,
    cost_per_node=4,
    source="kubernetes v1.37.2 pkg/scheduler/framework/plugins/imagelocality/image_locality.go",
)
