"""Reads files written by users as bytes and text, with a message for each way in which that fails.

`-` is standard input. The messages omit the file name; callers add it.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

STANDARD_INPUT = "-"


TEXT_BYTES_MAX = 64 * 2**20
"""Far above any real file; an endless pipe would exhaust memory. Cluster dumps have no such limit."""


FOREIGN_FOLDERS = frozenset(
    {
        *(".git", ".hg", ".svn", ".venv", "venv", "site-packages", "node_modules", "__pycache__"),
        *(".tox", ".nox", ".mypy_cache", ".pytest_cache", ".ruff_cache", "build", "dist"),
    }
)
"""Folders of tools, whose files are not the user's own. They are skipped below a folder, but read if they are named,
except `.git`."""


MEMORY_FOLDER = "/dev/shm"


class UnreadableFile(Exception):
    """A file cannot be read; the message is a short reason."""


# Unlike these, the methods of pathlib raise where a folder is not accessible or a name is too long.


def is_folder(path: str | Path) -> bool:
    return os.path.isdir(path)  # noqa: PTH112


def is_file(path: str | Path) -> bool:
    return os.path.isfile(path)  # noqa: PTH113


def memory_folder() -> str | None:
    """The machine's folder in memory, or None for Python's temporary folder. Libraries that read keys only from files get
    them here: in a pod it is writable even where the root file system is not."""
    return MEMORY_FOLDER if os.access(MEMORY_FOLDER, os.W_OK | os.X_OK) else None


def files_below(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """The files with one of the suffixes in the folder and its subfolders without FOREIGN_FOLDERS, sorted."""

    def walk() -> Iterator[Path]:
        for parent, folders, names in os.walk(folder):
            folders[:] = [name for name in folders if name not in FOREIGN_FOLDERS]
            yield from (Path(parent, name) for name in names if name.endswith(suffixes))

    return sorted(path for path in walk() if is_file(path))


def require_project_file(path: Path, folder: Path) -> None:
    """A file that a file in `folder` names, or that a command found there, must belong to the same project: whoever changes a
    project must not read the rest of the machine through what a check of the change prints. Raises UnreadableFile."""
    folder = folder.resolve()
    here = Path.cwd()
    fallback = here if here != here.parent and folder.is_relative_to(here) else folder
    _require_below(path, _repository(folder) or fallback)
    if path_exists(path) and not is_file(path) and not is_folder(path):
        raise UnreadableFile("is not a regular file")


def require_repository_file(path: Path) -> None:
    """What the user named may be anywhere, but a pattern of the shell names links too: one in a Git repository must not lead
    out of it. Raises UnreadableFile."""
    repository = _repository(Path(os.path.abspath(path)).parent)  # noqa: PTH100, follows no links
    if repository is not None:
        _require_below(path, repository.resolve())


def _require_below(path: Path, project: Path) -> None:
    try:
        resolved = path.resolve()
    except (OSError, RuntimeError, ValueError) as error:  # links in a circle, a name with a NUL in it
        raise UnreadableFile(str(error)) from None
    if not resolved.is_relative_to(project):
        raise UnreadableFile(f"is not below {project}")
    if (
        ".git" in resolved.relative_to(project).parts
    ):  # its settings have the token that the pipeline cloned with
        raise UnreadableFile("is a file of Git")


def _repository(folder: Path) -> Path | None:
    """The nearest one, which may be a submodule or a worktree (`.git` is a file there)."""
    return next((parent for parent in (folder, *folder.parents) if path_exists(parent / ".git")), None)


def path_exists(path: str | Path) -> bool:
    return os.path.exists(path)  # noqa: PTH110


def read_bytes(path: str | Path, *, bytes_max: int | None = None) -> bytes:
    """Raises UnreadableFile, also where the file is larger than `bytes_max`."""
    content = _read(path, -1 if bytes_max is None else bytes_max + 1)
    if bytes_max is not None and len(content) > bytes_max:
        raise UnreadableFile(f"larger than {bytes_max // 2**20} MiB")
    return content


def _read(path: str | Path, bytes_max: int) -> bytes:
    try:
        if path == "":
            raise UnreadableFile("the file name is empty")
        if path != STANDARD_INPUT:
            with Path(path).open("rb") as file:
                return file.read(bytes_max)
        if sys.stdin is None:  # `<&-`
            raise UnreadableFile("standard input is closed")
        return sys.stdin.buffer.read(bytes_max)
    except FileNotFoundError:
        raise UnreadableFile("no such file") from None
    except OSError as error:
        prefix = "standard input cannot be read: " if path == STANDARD_INPUT else ""
        raise UnreadableFile(f"{prefix}{error.strerror or error}") from None
    except ValueError as error:  # a name with a NUL in it
        raise UnreadableFile(str(error)) from None


def read_text(path: str | Path) -> str:
    """The normalized UTF-8 text. Raises UnreadableFile."""
    try:
        return normalize_text(read_bytes(path, bytes_max=TEXT_BYTES_MAX).decode())
    except UnicodeDecodeError as error:
        raise UnreadableFile(f"not UTF-8 text (byte {error.start})") from None


def normalize_text(text: str) -> str:
    """Removes a byte order mark and converts line breaks to `\\n`."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
