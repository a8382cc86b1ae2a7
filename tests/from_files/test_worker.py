"""The limits of a worker process."""

from pathlib import Path

import pytest

from policysched.from_files import worker
from policysched.from_files.worker import MEMORY_MAX_BYTES, memory_max_bytes


def test_the_memory_is_at_most_what_the_container_has_left(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With the caches of files, which the kernel gives up first."""
    monkeypatch.setattr(worker, "_CGROUP", tmp_path)
    assert memory_max_bytes() == MEMORY_MAX_BYTES

    (tmp_path / "memory.stat").write_text("anon 600\nactive_file 100\ninactive_file 200\n")
    (tmp_path / "memory.current").write_text("900\n")
    (tmp_path / "memory.max").write_text("2000\n")
    assert memory_max_bytes() == 1400

    (tmp_path / "memory.max").write_text("max\n")
    assert memory_max_bytes() == MEMORY_MAX_BYTES
