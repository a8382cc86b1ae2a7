"""Policies from files instead of a ConfigMap of the API: single files, and the `*.policy`, `*.params.yaml` and `*.removed`
of folders.

A folder is read without subfolders, like a mounted ConfigMap. On any change all texts are delivered together, as for a
ConfigMap. A folder that cannot be read for a moment (a mount being replaced) changes nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path

from policysched.files import UnreadableFile, is_file, is_folder, read_text
from policysched.kube.watch.resources import ConfigMapUpdated
from policysched.policy_files.source_set import PARAMETERS_SUFFIX, POLICY_SUFFIX, UnusableFile, removed_name

log = logging.getLogger(__name__)

POLL_INTERVAL_S = 1.0


def read_policy_folder(paths: Sequence[Path]) -> dict[str, str]:
    """Texts by file name. Raises UnusableFile for an unreadable file or two files of the same name."""
    texts: dict[str, str] = {}
    for file in [file for path in paths for file in _files(path)]:
        if file.name in texts:
            raise UnusableFile(f"{file}: another file has the same name, so an `include` of it is ambiguous")
        try:
            texts[file.name] = read_text(file)
        except UnreadableFile as error:
            raise UnusableFile(f"{file}: {error}") from None
    if not any(name.endswith(POLICY_SUFFIX) or removed_name(name) for name in texts):
        raise UnusableFile(f"{', '.join(map(str, paths))}: no file there ends in {POLICY_SUFFIX}")
    return texts


class PolicyFolder:
    """Delivers the texts, and again when they change."""

    def __init__(self, paths: Sequence[Path], take: Callable[[ConfigMapUpdated], None]) -> None:
        """Raises UnusableFile, so that a start without policies fails at once."""
        self._paths = paths
        self._on_config_map = take
        self._texts = read_policy_folder(paths)
        self._last_error = ""

    async def run(self) -> None:
        """Runs until cancelled."""
        self._offer()
        while True:
            await asyncio.sleep(POLL_INTERVAL_S)
            self.poll()

    def poll(self) -> None:
        try:
            texts = read_policy_folder(self._paths)
        except UnusableFile as error:
            if str(error) != self._last_error:
                log.warning(
                    "cannot read the policies; the active ones are unchanged", extra={"error": str(error)}
                )
            self._last_error = str(error)
            return
        self._last_error = ""
        if texts != self._texts:
            self._texts = texts
            self._offer()

    def _offer(self) -> None:
        stamp = sha256(repr(sorted(self._texts.items())).encode()).hexdigest()
        self._on_config_map(ConfigMapUpdated(self._texts, f"files-{stamp[:12]}", ""))


def _files(path: Path) -> list[Path]:
    try:
        return (
            sorted(file for file in path.iterdir() if _is_read(file.name) and is_file(file))
            if is_folder(path)
            else [path]
        )
    except OSError as error:
        raise UnusableFile(f"{path}: {error.strerror or error}") from None


def _is_read(name: str) -> bool:
    return name.endswith((POLICY_SUFFIX, PARAMETERS_SUFFIX)) or removed_name(name) is not None
