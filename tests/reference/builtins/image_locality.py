"""Score: for every container (init containers included) and every image volume whose image the node
has, `size * nodes that have it / all nodes`, rounded down. The sum is clamped between 23 MiB and
1000 MiB per image and mapped to 0..100."""

from collections.abc import Mapping, Sequence

from policysched.model.identifiers import NodeName
from policysched.model.pods import Pod
from tests.reference.builtin_interface import (
    MAX_SCORE,
    BuiltinParams,
    ClusterFacts,
    NodeInfo,
    NodeScore,
)

_MIB = 1024 * 1024
_SIZE_MIN = 23 * _MIB
_SIZE_PER_IMAGE_MAX = 1000 * _MIB


def score(
    pod: Pod, candidates: Sequence[NodeInfo], params: BuiltinParams, facts: ClusterFacts
) -> Mapping[NodeName, NodeScore] | None:
    counted = {"yes": len(pod.image_volumes), "size": 0, "no": 0}[str(params["image_volumes"])]
    most = _SIZE_PER_IMAGE_MAX * (len(pod.images) + counted)
    images = pod.images + (pod.image_volumes if params["image_volumes"] != "no" else ())
    scores = {}
    for node_info in candidates:
        total = sum(
            _spread_size(image, node_info, facts) for image in images if image in node_info.node.images
        )
        held = max(_SIZE_MIN, min(most, total))
        scores[node_info.node.name] = NodeScore(total, MAX_SCORE * (held - _SIZE_MIN) // (most - _SIZE_MIN))
    return scores


def _spread_size(image: str, node_info: NodeInfo, facts: ClusterFacts) -> int:
    spread = facts.nodes_with_image[image] / facts.node_count
    return int(node_info.node.images[image] * spread)
