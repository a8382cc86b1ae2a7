"""Where the files beside the code are, and those that a process keeps for the next one.

Shipped files are in the package when installed, at the top of the checkout when not.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def resource(*parts: str) -> Path:
    """The path of a shipped file, such as `resource("grammar", "policy.lark")`."""
    installed = Path(__file__).parent / "_data"
    return (installed if installed.is_dir() else Path(__file__).parent.parent).joinpath(*parts)


_kept_in: list[Path] = []


def keep_files(folder: Path | None) -> None:
    """From now on this process keeps files in `folder`, such as `cache_folder()`; None: none."""
    _kept_in[:] = [] if folder is None else [folder]


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
def kept_file(name: str) -> Iterator[Path | None]:
    """The path of a kept file, whether it is there or not, with no other process at it meanwhile. None where this one
    keeps nothing."""
    if not _kept_in:
        yield None
        return
    import fcntl  # the cache folder is given where there are owners, and there it is

    path = _kept_in[0] / name
    try:
        lock = path.with_suffix(".lock").open("w")
    except OSError:
        yield None
        return
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield path
