"""The index of free volumes follows new volumes in place, as if it were built again."""

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from policysched.cluster.volumes.volume_cache import VolumeCache
from policysched.evaluate.columns import free_volume_index, volume_positions
from policysched.evaluate.columns.free_volume_index import (
    FreeVolumeIndex,
    FreeVolumeIndexCache,
    MatchingVolumes,
)
from policysched.evaluate.columns.interner import Interner
from policysched.model.selectors import volume_fits_labels
from policysched.model.storage import NodeSelectorTerms, PersistentVolume, PersistentVolumeClaim
from tests.volumes import HOSTNAME, claim, volume

ZONE = "zone"


class Nodes:
    """Each is one row, with a hostname and a zone."""

    def __init__(self) -> None:
        self.labels: list[dict[str, str]] = []
        self.strings: Interner[str] = Interner()
        self.topology_version = 0
        for _ in range(4):
            self.add()

    def add(self) -> None:
        number = len(self.labels)
        self.labels.append({HOSTNAME: f"n{number}", ZONE: f"z{number % 3}"})
        self.topology_version += 1

    @property
    def rows(self) -> Any:
        return np.arange(len(self.labels))

    def label_codes(self, label: str) -> Any:
        return np.array([self.strings.code(labels[label]) for labels in self.labels], np.int32)

    def matching_rows(self, terms: NodeSelectorTerms | None) -> Any:
        return np.array([volume_fits_labels(terms, labels) for labels in self.labels], np.bool_)


def best(volumes: MatchingVolumes, nodes: Nodes) -> list[str]:
    """By row, the name of the volume; and the same of each node by itself."""
    positions = volumes.best(nodes, [], np.ones(len(nodes.labels), np.bool_)).tolist()
    names = ["" if position < 0 else volumes.index.volumes[position].name for position in positions]
    for labels in nodes.labels:
        found = volumes.best_of(volumes.index.reachable(labels), ())
        names.append("" if found is None else found.name)
    return names


def any_volume(rng: Random, number: int) -> PersistentVolume:
    name, size = f"v{number}", f"{rng.randrange(1, 5)}Gi"
    labels = {"disk": rng.choice(("ssd", "hdd"))}
    expressions = [
        [],
        [{"key": HOSTNAME, "operator": "In", "values": [f"n{rng.randrange(7)}"]}],
        [{"key": ZONE, "operator": "In", "values": rng.sample(("z0", "z1", "z2", "z9"), 2)}],
        [{"key": ZONE, "operator": "NotIn", "values": ["z0"]}, {"key": HOSTNAME, "operator": "Exists"}],
    ][rng.randrange(4)]
    terms = {"required": {"nodeSelectorTerms": [{"matchExpressions": expressions}]}}
    spec = {"nodeAffinity": terms} if expressions else {}
    return volume(name, size=size, labels=labels, phase="Available", spec=spec)


def any_claim(rng: Random) -> PersistentVolumeClaim:
    spec = {"selector": {"matchLabels": {"disk": "ssd"}}} if rng.random() < 0.5 else {}
    return claim("data", size=f"{rng.randrange(1, 5)}Gi", spec=spec)


def change(rng: Random, volumes: VolumeCache, nodes: Nodes, number: int) -> None:
    known = sorted(volumes.volumes)
    match rng.randrange(10) if known else 0:
        case 7:
            volumes.drop_volume(rng.choice(known))
        case 8:
            taken = volumes.volumes[rng.choice(known)]
            volumes.put_volume(
                volume(taken.name, claim="other", claim_uid="u", phase="Bound", version=number)
            )
        case 9:
            nodes.add()
        case _:
            volumes.put_volume(any_volume(rng, number))


@patch.object(free_volume_index, "_CACHED_MATCHES_MAX", 2)  # so that few changes do not forget them
@patch.object(free_volume_index, "_FEW_ROWS_MAX", 2)  # so that some affinities select many of few nodes
@patch.object(free_volume_index, "_VOLUMES_PER_STEP", 2)
def is_wrong(seed: int) -> bool:
    rng, volumes, nodes = Random(seed), VolumeCache(), Nodes()
    indexes = FreeVolumeIndexCache(volumes)
    for number in range(40):
        wanted = any_claim(rng)
        before = indexes.volumes_for(wanted, 0, ())
        best_before, node_count = best(before, nodes), len(nodes.labels)
        if best_before != best(FreeVolumeIndexCache(volumes).volumes_for(wanted, 0, ()), nodes):
            return True
        if rng.random() < 0.3:
            indexes = FreeVolumeIndexCache(volumes)
        for _ in range(rng.randrange(3)):
            change(rng, volumes, nodes, 100 * number + rng.randrange(100))
            for _ in range(rng.randrange(4)):
                indexes.build_slice([any_claim(rng)], 0)
        indexes.volumes_for(any_claim(rng), 0, ())
        if len(nodes.labels) == node_count and best(before, nodes) != best_before:
            return True
    return False


def test_an_index_that_follows_new_volumes_equals_one_that_is_built_again() -> None:
    assert not [seed for seed in range(40) if is_wrong(seed)]


BUILD = FreeVolumeIndexCache._build


def build_that_follows_no_change(
    self: FreeVolumeIndexCache, class_name: str, *arguments: Any, **keywords: Any
) -> Iterator[None]:
    yield from BUILD(self, class_name, *arguments, **keywords)
    if class_name in self._indexes:
        index, _, codes_version = self._indexes[class_name]
        self._indexes[class_name] = index, self._volumes.volume_changes.version, codes_version


@pytest.mark.parametrize(
    "planted",
    [
        pytest.param(
            patch.object(FreeVolumeIndexCache, "_build", build_that_follows_no_change), id="while it is built"
        ),
        pytest.param(patch.object(volume_positions, "moved_up", lambda positions, _: positions), id="pairs"),
        pytest.param(
            patch.object(free_volume_index, "lists_moved_up", lambda lists, _: {**lists}), id="affinities"
        ),
        pytest.param(
            patch.object(free_volume_index._Matches, "with_volume", lambda self, *_: self), id="matches"
        ),
        pytest.param(patch.object(free_volume_index, "insort", list.append), id="not in order"),
        pytest.param(patch.object(free_volume_index, "copy", lambda index: index), id="the same index"),
        pytest.param(patch.object(volume_positions, "copy", lambda index: index), id="the same values"),
    ],
)
def test_an_index_that_follows_new_volumes_in_a_wrong_way_is_found(planted: Any) -> None:
    def is_found(seed: int) -> bool:
        try:
            return is_wrong(seed)
        except (IndexError, ValueError):
            return True

    with planted:
        assert any(map(is_found, range(200)))


@contextmanager
def builds() -> Iterator[list[int]]:
    built, real = [], FreeVolumeIndex.__init__

    def build(self: FreeVolumeIndex, volumes: Any) -> None:
        built.append(len(volumes))
        real(self, volumes)

    with patch.object(FreeVolumeIndex, "__init__", build):
        yield built


def test_a_new_free_volume_does_not_build_the_index_again() -> None:
    volumes, nodes = VolumeCache(), Nodes()
    for number in range(100):
        volumes.put_volume(volume(f"v{number}", node=f"n{number % 4}", phase="Available"))
    indexes = FreeVolumeIndexCache(volumes)

    with builds() as built:
        for number in range(20):
            assert "" not in best(indexes.volumes_for(claim("data"), 0, ()), nodes)
            volumes.put_volume(volume(f"new{number}", node=f"n{number % 4}", phase="Available"))

    assert built == [100]


def test_an_index_does_not_grow_with_the_volumes_that_are_gone() -> None:
    volumes = VolumeCache()
    indexes = FreeVolumeIndexCache(volumes)

    with builds() as built:
        for number in range(1_000):
            volumes.put_volume(volume(f"v{number}", phase="Available"))
            kept = len(indexes.volumes_for(claim("data"), 0, ()).index.volumes)
            volumes.drop_volume(f"v{number}")
            assert kept <= 70

    assert len(built) < 20
