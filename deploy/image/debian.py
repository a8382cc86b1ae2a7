"""The first layer: Debian's Python without Debian.

`apt-get download` fetches the packages below and verifies them by the signatures of Debian's archive; their files are unpacked, and
no script of a package runs. So there is no shell, no dpkg and no set-uid program. /var/lib/dpkg/status.d says what is in it to those
who scan images.

`debian.lock` pins every package by its hash, and says when. Debian's mirrors keep only the newest version of a package; the archive of
old versions, snapshot.debian.org, still has the one of the lock, and `make lock` takes the new one.
"""

import re
import shutil
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from deploy.image.layers import (
    PLATFORMS,
    PYTHON,
    ImageError,
    Interpreter,
    Layer,
    Platform,
    cached,
    compile_python,
    run,
)

RELEASE = "trixie"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
PACKAGES = (
    "base-files",
    "ca-certificates",
    "libbz2-1.0",
    "libc6",
    "libexpat1",
    "libffi8",
    "libgcc-s1",
    "liblzma5",
    f"libpython{PYTHON}-minimal",
    f"libpython{PYTHON}-stdlib",
    "libsqlite3-0",
    "libssl3t64",
    "libstdc++6",
    "libuuid1",
    "libzstd1",
    f"python{PYTHON}-minimal",
    "tzdata",
    "zlib1g",
)
USER = 65532
"""As in deploy/deployment.yaml."""

FILES = {
    "etc/passwd": f"root:x:0:0:root:/:/sbin/nologin\npolicysched:x:{USER}:{USER}:policysched:/:/sbin/nologin\n",
    "etc/group": f"root:x:0:\npolicysched:x:{USER}:\n",
    "etc/nsswitch.conf": "hosts: files dns\n",
}
LEFT_OUT = (
    "usr/share/man",
    "usr/share/locale",
    "usr/share/lintian",
    "usr/share/bug",
    "usr/share/doc-base",
    "etc/init.d",
)


LOCK = Path(__file__).with_name("debian.lock")
SNAPSHOTS = "https://snapshot.debian.org/archive/debian"
DATE = re.compile(r"\b\d{8}T\d{6}Z\b")
"""A moment as snapshot.debian.org writes it."""


class OutdatedLock(ImageError):
    """Debian's mirror has other packages than the lock, and no archive of old versions can be reached."""


@dataclass(frozen=True, slots=True, order=True)
class Package:
    """`file` is as debian.lock names it, such as tzdata_2026b-0+deb13u1_all.deb."""

    file: str
    hash: str


def locked_packages(platform: Platform) -> list[Package]:
    """Sorted by file. Raises `ImageError` where debian.lock has none."""
    lines = [line.split() for line in LOCK.read_text().splitlines() if line and not line.startswith("#")]
    found = sorted(Package(file, digest) for name, file, digest in lines if name == platform.name)
    if not found:
        raise ImageError(f"{LOCK.name} has no packages for {platform.name}")
    return found


def lock_date() -> str:
    """When debian.lock was written. Raises `ImageError` where it does not say so."""
    date = DATE.search(LOCK.read_text().partition("\n")[0])
    if date is None:
        raise ImageError(f"the first line of {LOCK.name} has no date: run `make lock`")
    return date.group()


def write_lock(mirror: str | None) -> None:
    """Pin the newest packages."""
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    lines = [f"# platform, package, hash: written by `make lock` at {now}\n"]
    for platform in PLATFORMS.values():
        with TemporaryDirectory() as folder:
            packages = Archive(platform, mirror, Path(folder)).packages()
        lines += [f"{platform.name} {package.file} {package.hash}\n" for package in packages]
    LOCK.write_text("".join(lines))


class Archive:
    """Debian's archive for one processor, apart from the packages of this machine."""

    def __init__(self, platform: Platform, mirror: str | None, folder: Path) -> None:
        self._folder = folder
        for name in ("lists/partial", "archives/partial", "debs"):
            (folder / name).mkdir(parents=True)
        (folder / "status").touch()
        main, security = mirrors(mirror)
        options = f"signed-by={KEYRING}"
        if DATE.search(main):  # what was valid then has expired
            options += " check-valid-until=no"
        (folder / "sources.list").write_text(
            "".join(
                f"deb [{options}] {url} {suite} main\n"
                for url, suite in (
                    (main, RELEASE),
                    (main, f"{RELEASE}-updates"),
                    (security, f"{RELEASE}-security"),
                )
            )
        )
        configuration = {
            "Dir::State": folder,
            "Dir::State::status": folder / "status",
            "Dir::State::lists": folder / "lists",
            "Dir::Cache": folder,
            "Dir::Etc::sourcelist": folder / "sources.list",
            "Dir::Etc::sourceparts": "/dev/null",
            "Dir::Etc::preferencesparts": "/dev/null",
            "APT::Architecture": platform.name,
            "APT::Architectures": platform.name,
            "APT::Sandbox::User": "root",
            "APT::Update::Post-Invoke-Success": "",
            "Acquire::Languages": "none",
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
        }
        (folder / "apt.conf").write_text(
            "".join(f'{name} "{value}";\n' for name, value in configuration.items())
        )
        self._apt("update", "--error-on=any")

    def packages(self) -> list[Package]:
        """The newest of each."""
        lines = self._apt("download", "--print-uris", *PACKAGES).splitlines()
        found = [Package(file, digest) for _, file, _, digest in (line.split() for line in lines)]
        if len(found) != len(PACKAGES):
            raise ImageError(f"Debian's archive has {len(found)} of {len(PACKAGES)} packages: {found}")
        return sorted(found)

    def download(self) -> list[Path]:
        self._apt("download", *PACKAGES)
        return sorted((self._folder / "debs").glob("*.deb"))

    def _apt(self, *arguments: str) -> str:
        return run(
            *("sh", "-c", 'cd "$0" && exec apt-get -qq "$@"', str(self._folder / "debs"), *arguments),
            APT_CONFIG=str(self._folder / "apt.conf"),
        )


def mirrors(given: str | None) -> tuple[str, str]:
    """The addresses of Debian's archive and of its security archive: those that this machine uses, if none is given."""
    if given is not None:
        main = given.rstrip("/")
        return main, re.sub(r"/debian(?=/|$)", "/debian-security", main)
    targets = run("apt-get", "indextargets", "--format", "$(LABEL) $(REPO_URI)", "Created-By: Packages")
    known = dict(line.rsplit(" ", 1) for line in targets.splitlines())
    if not {"Debian", "Debian-Security"} <= known.keys():
        raise ImageError("this machine has no mirror of Debian: name one with --mirror")
    return known["Debian"], known["Debian-Security"]


def debian_layer(
    platform: Platform, mirror: str | None, interpreter: Interpreter | None, *, locked: bool
) -> Layer:
    """Without an `interpreter` the layer's own compiles it. Not `locked`: Debian's newest packages where the mirror no longer
    has those of the lock. Else they are looked for in the archive of old versions, and if they cannot be had this raises `OutdatedLock`.
    """
    title, pinned = f"debian-{platform.name}", locked_packages(platform)
    with TemporaryDirectory() as folder:
        newest: list[Package] = []

        def fill(root: Path) -> None:
            nonlocal newest
            archive = Archive(platform, mirror, Path(folder) / "mirror")
            newest = archive.packages()
            if newest != pinned:
                if not locked:
                    raise OutdatedLock
                archive = _archive_of_the_lock(platform, Path(folder) / "snapshot", pinned, newest)
            install(root, archive)

        def install(root: Path, archive: Archive) -> None:
            _fill(root, archive.download())
            compile_python(interpreter or Interpreter(root, platform), root, f"usr/lib/python{PYTHON}")

        try:
            return cached(title, pinned, fill)
        except OutdatedLock:
            if locked:
                raise
        print(f"not in {LOCK.name}: {_changed(newest, pinned)}", file=sys.stderr)
        return cached(
            title, newest, lambda root: install(root, Archive(platform, mirror, Path(folder) / "newest"))
        )


def _changed(newest: list[Package], pinned: list[Package]) -> str:
    return ", ".join(package.file for package in newest if package not in pinned)


def _archive_of_the_lock(
    platform: Platform, folder: Path, pinned: list[Package], newest: list[Package]
) -> Archive:
    """Raises `OutdatedLock`, which says in one line what to do."""
    snapshot = f"{SNAPSHOTS}/{lock_date()}"
    advice = f"run `make lock` and commit {LOCK.name}: Debian's mirror has {_changed(newest, pinned)} now"
    try:
        archive = Archive(platform, snapshot, folder)
    except ImageError as error:
        raise OutdatedLock(f"{advice}, and {snapshot} cannot be read") from error
    if archive.packages() != pinned:
        raise OutdatedLock(f"{advice}, and {snapshot} has not all packages of the lock either")
    return archive


def _fill(root: Path, debs: list[Path]) -> None:
    """Unpack, remove what a container does not need, and do what the scripts of the packages would."""
    status = root / "var/lib/dpkg/status.d"
    status.mkdir(parents=True)
    for deb in debs:
        run("dpkg-deb", "--extract", str(deb), str(root))
        (status / deb.name.split("_")[0]).write_text(run("dpkg-deb", "--field", str(deb)))
    for name in LEFT_OUT:
        shutil.rmtree(root / name, ignore_errors=True)
    for path in (root / "usr/share/doc").rglob("*"):
        if not path.is_dir() and path.name != "copyright":
            path.unlink()
    for name, content in FILES.items():
        (root / name).write_text(content)
    certificates = sorted((root / "usr/share/ca-certificates").rglob("*.crt"))
    (root / "etc/ssl/certs/ca-certificates.crt").write_text(
        "".join(path.read_text() for path in certificates)
    )
    (root / "usr/lib/ssl").mkdir(exist_ok=True)
    (root / "usr/lib/ssl/cert.pem").symlink_to("/etc/ssl/certs/ca-certificates.crt")
    (root / "tmp").mkdir(exist_ok=True)
    (root / "tmp").chmod(0o1777)
