"""Where the files beside the code are, and those that a process keeps for the next one.

Shipped files are in the package when installed, at the top of the checkout when not.
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
    """`~` and `~user` as a shell has them. Where nobody knows of such a home the path stays as it is, and is not there."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 (pathlib's raises then)


_file_cache_enabled = ContextVar("keeps", default=False)


def enable_file_cache() -> None:
    """From now on this process keeps files in the cache folder. It is for whoever owns the process to say so; nothing is
    made or looked at before there is something to keep."""
    _file_cache_enabled.set(True)


def cache_folder() -> Path | None:
    """The user's own (`$XDG_CACHE_HOME` or `~/.cache`, in it `policysched`), made if it is not there. None where others
    may write, for what is kept there is trusted, or where it cannot be made."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        folder = (given if given.is_absolute() else Path.home() / ".cache") / "policysched"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        seen = folder.stat()
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return None
    is_ours = hasattr(os, "getuid") and seen.st_uid == os.getuid()
    return folder if is_ours and not seen.st_mode & 0o022 else None


@contextmanager
def cached_file(name: str) -> Iterator[Path | None]:
    """The path of a kept file, whether it is there or not, with no other process at it meanwhile. None where this one
    keeps nothing, or cannot: no folder, nothing can be written there, a file system without locks."""
    folder = cache_folder() if _file_cache_enabled.get() else None
    if folder is None:
        yield None
        return
    import fcntl  # where there is a cache folder files have owners, and there it is

    path: Path | None = folder / name
    with ExitStack() as stack:
        try:
            lock = stack.enter_context((folder / f"{name}.lock").open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:
            path = None
        yield path
