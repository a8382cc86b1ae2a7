"""Paths of files shipped with the program and of its cache files.

Shipped files are in the package when installed, and in the root of a checkout otherwise.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path


def data_file(*parts: str) -> Path:
    """The path of a shipped file, such as `data_file("grammar", "policy.lark")`."""
    installed = Path(__file__).parent / "_data"
    return (installed if installed.is_dir() else Path(__file__).parent.parent).joinpath(*parts)


def expand_home(path: str) -> Path:
    """Expands `~` and `~user` like a shell. The path is unchanged where there is no such home directory."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 (pathlib raises instead)


_file_cache_enabled = ContextVar("file_cache_enabled", default=False)


def enable_file_cache() -> None:
    """Lets this process cache files. Only an entry point may call it. The cache folder is created on first use."""
    _file_cache_enabled.set(True)


def cache_folder() -> Path | None:
    """The user's cache folder (`policysched` in `$XDG_CACHE_HOME` or `~/.cache`), created if necessary. None where it
    cannot be created, or where other users can write to it, since its content is trusted."""
    configured = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        folder = (configured if configured.is_absolute() else Path.home() / ".cache") / "policysched"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except (OSError, RuntimeError):  # RuntimeError: no home directory
        return None
    is_own = hasattr(os, "getuid") and status.st_uid == os.getuid()
    return folder if is_own and not status.st_mode & 0o022 else None


@contextmanager
def cached_file(name: str) -> Iterator[Path | None]:
    """The path of a cache file, which may not exist yet, locked against other processes. None where the cache is disabled
    or unusable: no folder, not writable, or a file system without locks."""
    folder = cache_folder() if _file_cache_enabled.get() else None
    if folder is None:
        yield None
        return
    import fcntl  # POSIX only, as is the owner check of `cache_folder`

    path: Path | None = folder / name
    with ExitStack() as stack:
        try:
            lock = stack.enter_context((folder / f"{name}.lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:
            path = None
        yield path
