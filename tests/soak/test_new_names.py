"""Nothing is kept for names that are gone, and a container that keeps them is found."""

from typing import Any
from unittest.mock import patch

import pytest

from policysched.cluster.cache import ClusterCache
from tests.soak.new_names import entries_after, grown


def test_nothing_is_kept_for_names_that_are_gone() -> None:
    assert grown(entries_after(rounds=10), rounds=10) == []


@pytest.mark.search
def test_a_container_that_keeps_names_is_reported() -> None:
    drop_namespace = ClusterCache.drop_namespace

    def drop_and_keep(self: ClusterCache, name: str) -> Any:
        self.__dict__.setdefault("gone_names", set()).add(name)
        return drop_namespace(self, name)

    with patch.object(ClusterCache, "drop_namespace", drop_and_keep):
        found = grown(entries_after(rounds=3, readings=2), rounds=3)

    assert any("gone_names" in line for line in found), found
