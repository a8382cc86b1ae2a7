"""A folder becomes a layer: a compressed tar that depends on the content alone."""

import fcntl
import gzip
import hashlib
import json
import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

PYTHON = "3.13"
SITE_PACKAGES = f"opt/policysched/lib/python{PYTHON}/site-packages"
COMMAND_TIMEOUT_S = 600.0


class ImageError(Exception):
    """The image cannot be built here; the message says why."""


@dataclass(frozen=True, slots=True)
class Platform:
    """A processor, as Debian and OCI (`name`), the kernel (`machine`) and uv (`wheels`) call it."""

    name: str
    machine: str
    loader: str

    @property
    def wheels(self) -> str:
        return f"{self.machine}-manylinux_2_28"


PLATFORMS = {
    platform.name: platform
    for platform in (
        Platform("amd64", "x86_64", "ld-linux-x86-64.so.2"),
        Platform("arm64", "aarch64", "ld-linux-aarch64.so.1"),
    )
}


def native() -> Platform:
    """Raises `ImageError` on a processor that no image is built for."""
    for platform in PLATFORMS.values():
        if platform.machine == os.uname().machine:
            return platform
    raise ImageError(f"images are built on {' and '.join(PLATFORMS)}, not on {os.uname().machine}")


@dataclass(frozen=True, slots=True)
class Layer:
    path: Path
    title: str
    digest: str
    """Of the compressed file, such as `sha256:...`."""
    diff_id: str
    """Of the tar in it."""
    size: int


def cached(title: str, key: object, fill: Callable[[Path], None], *, epoch_s: int = 0) -> Layer:
    """The layer of these inputs; `fill` writes its files into an empty folder. Processes that want one at the same time wait for
    the first."""
    inputs = f"{title}\0{key}\0{epoch_s}\0{_recipe()}"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "policysched" / "image"
    cache.mkdir(parents=True, exist_ok=True)
    target = cache / f"{title}-{hashlib.sha256(inputs.encode()).hexdigest()[:16]}"
    with target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            with tempfile.TemporaryDirectory(dir=cache) as folder:
                root, unfinished = Path(folder) / "root", Path(folder) / "layer"
                root.mkdir()
                unfinished.mkdir()
                fill(root)
                layer = write_layer(title, root, unfinished / "layer.tar.gz", epoch_s)
                (unfinished / "layer.json").write_text(json.dumps(asdict(layer), default=str))
                unfinished.rename(target)
    return Layer(**{**json.loads((target / "layer.json").read_text()), "path": target / "layer.tar.gz"})


def _recipe() -> str:
    """What builds a layer is one of its inputs."""
    return "".join(
        hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(Path(__file__).parent.glob("*.py"))
    )


class _Hashed:
    """A file that hashes what is written to it."""

    def __init__(self, file: BinaryIO | gzip.GzipFile) -> None:
        self._file = file
        self._sha256 = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self._sha256.update(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()

    @property
    def digest(self) -> str:
        return f"sha256:{self._sha256.hexdigest()}"


def write_layer(title: str, root: Path, path: Path, epoch_s: int) -> Layer:
    """Every file belongs to root and nobody else may write to it, except to /tmp."""
    with path.open("wb") as file:
        compressed = _Hashed(file)
        with gzip.GzipFile(filename="", mode="wb", fileobj=compressed, mtime=0, compresslevel=6) as packer:  # type: ignore[arg-type]
            plain = _Hashed(packer)
            with tarfile.open(fileobj=plain, mode="w|", format=tarfile.PAX_FORMAT) as tar:  # type: ignore[arg-type]
                for member in sorted(root.rglob("*")):
                    name = member.relative_to(root).as_posix()
                    info = tar.gettarinfo(member, name)
                    info.uid = info.gid = 0
                    info.uname = info.gname = ""
                    info.mtime = epoch_s
                    info.mode = stat.S_IMODE(info.mode) & (0o1777 if name == "tmp" else 0o755)
                    if info.islnk():  # of two hard links, each is a file
                        info.type, info.linkname, info.size = tarfile.REGTYPE, "", member.stat().st_size
                    if info.isreg():
                        with member.open("rb") as content:
                            tar.addfile(info, content)
                    else:
                        tar.addfile(info)
    return Layer(path, title, compressed.digest, plain.digest, path.stat().st_size)


def unpack(layer: Layer, root: Path) -> None:
    with tarfile.open(layer.path) as tar:
        tar.extractall(root, filter="fully_trusted")  # our own, with its modes


def compile_python(interpreter: "Interpreter", root: Path, folder: str) -> None:
    """Write the byte code of `root/folder`. It names the sources as the image has them, and is never compared with them: nobody
    can change them there."""
    interpreter.run(
        *("-m", "compileall", "-q", "-s", str(root), "-p", "/", "--invalidation-mode", "unchecked-hash"),
        str(root / folder),
    )


@dataclass(frozen=True, slots=True)
class Interpreter:
    """The image's own Python for this processor, run where it lies, through its own loader: without root and without chroot."""

    root: Path
    platform: Platform

    def run(self, *arguments: str) -> None:
        libraries = self.root / f"usr/lib/{self.platform.machine}-linux-gnu"
        loader = next(self.root.glob(f"usr/lib*/**/{self.platform.loader}"), None)
        if loader is None:
            raise ImageError(f"Debian's libc6 has no {self.platform.loader}")
        run(
            *(str(loader), "--library-path", str(libraries)),
            *(str(self.root / f"usr/bin/python{PYTHON}"), "-S", *arguments),
            PYTHONHOME=str(self.root / "usr"),
            PYTHONHASHSEED="0",  # the order of sets in byte code
        )


def run(*command: str, **environment: str) -> str:
    """Its output. Raises `ImageError` with the end of what it said."""
    if shutil.which(command[0]) is None:
        raise ImageError(f"{command[0]} is not installed")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        command,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
    )
    if done.returncode:
        raise ImageError(f"{' '.join(command[:3])} ...: {(done.stdout + done.stderr)[-2000:].strip()}")
    return done.stdout
