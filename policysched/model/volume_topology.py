"""Zones and regions in the labels of volumes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
OLD_ZONE, OLD_REGION = "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"
TOPOLOGY_LABELS = (OLD_ZONE, OLD_REGION, ZONE, REGION)

ZONE_SEPARATOR = "__"
"""Separates the zones in the label of a volume in several zones."""


@dataclass(frozen=True, slots=True)
class VolumeTopology:
    label: str
    values: frozenset[str]


def volume_topologies(labels: Mapping[str, str]) -> Iterator[VolumeTopology]:
    """The zone and region labels that a volume requires of its node. A list with an empty entry is ignored, as in
    kube-scheduler."""
    for label in TOPOLOGY_LABELS:
        if label in labels:
            values = frozenset(part.strip() for part in labels[label].split(ZONE_SEPARATOR))
            if "" not in values:
                yield VolumeTopology(label, values)


def newer_label(label: str) -> str:
    return {OLD_ZONE: ZONE, OLD_REGION: REGION}.get(label, label)
