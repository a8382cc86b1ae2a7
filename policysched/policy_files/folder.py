"""Policies from files instead of a ConfigMap of the API: each `*.policy` and `*.params.yaml` of the
folders, and the files themselves.

A folder is read flat, as a ConfigMap that is mounted there is, and its texts are offered as that ConfigMap's would be:
whole, whenever one of them differs from before. A folder that cannot be read for a moment (a mount that is being
exchanged) changes nothing.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path

from policysched.files import UnreadableFile, is_file, is_folder, read_text
from policysched.kube.watch.resources import ConfigMapUpdated
from policysched.policy_files.source_set import PARAMETERS_SUFFIX, POLICY_SUFFIX, UnusableFile

log = logging.getLogger(__name__)

POLL_INTERVAL_S = 1.0


def read_policy_folder(paths: Sequence[Path]) -> dict[str, str]:
    """Texts by file name. Raises UnusableFile where one cannot be read, or two have one name."""
    texts: dict[str, str] = {}
    for file in [file for path in paths for file in _files(path)]:
        if file.name in texts:
            raise UnusableFile(f"{file}: there is another file of that name: an `include` could mean either")
        try:
            texts[file.name] = read_text(file)
        except UnreadableFile as error:
            raise UnusableFile(f"{file}: {error}") from None
    if not any(name.endswith(POLICY_SUFFIX) for name in texts):
        raise UnusableFile(f"{', '.join(map(str, paths))}: no file there ends in {POLICY_SUFFIX}")
    return texts


class PolicyFolder:
    """Offers what is there, and again when it changes. `run` begins with what was read last (`texts`)."""

    def __init__(self, paths: Sequence[Path], take: Callable[[ConfigMapUpdated], None]) -> None:
        """Raises UnusableFile: a start without policies is a mistake to be told at once."""
        self._paths = paths
        self._on_config_map = take
        self._texts = read_policy_folder(paths)
        self._last_error = ""

    async def run(self) -> None:
        """Until cancelled."""
        self._offer()
        while True:
            await asyncio.sleep(POLL_INTERVAL_S)
            self.poll()

    def poll(self) -> None:
        try:
            texts = read_policy_folder(self._paths)
        except UnusableFile as error:
            if str(error) != self._last_error:
                log.warning("the policies cannot be read; those that run, run on", extra={"why": str(error)})
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
            sorted(
                one
                for one in path.iterdir()
                if one.name.endswith((POLICY_SUFFIX, PARAMETERS_SUFFIX)) and is_file(one)
            )
            if is_folder(path)
            else [path]
        )
    except OSError as error:
        raise UnusableFile(f"{path}: {error.strerror or error}") from None
