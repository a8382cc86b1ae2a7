"""The first layer: Debian's Python without Debian.

`apt-get download` fetches the packages below and verifies them by the signatures of Debian's archive; their files are unpacked, and
no script of a package runs. So there is no shell, no dpkg and no set-uid program. /var/lib/dpkg/status.d says what is in it to those
who scan images.

`debian.lock` pins every package by its hash. Debian's mirrors keep only the newest version of a package; after an update
`python -m deploy.image --lock` takes it, and a mirror such as https://snapshot.debian.org/archive/debian/DATE still has the older one.
"""

import re
import shutil
from dataclasses import dataclass
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


class OutdatedLock(ImageError):
    """Debian's mirror has other packages than the lock."""


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


def write_lock(mirror: str | None) -> None:
    """Pin the newest packages."""
    lines = ["# platform, package, hash: written by `python -m deploy.image --lock`\n"]
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
        (folder / "sources.list").write_text(
            "".join(
                f"deb [signed-by={KEYRING}] {url} {suite} main\n"
                for url, suite in (
                    (main, RELEASE),
                    (main, f"{RELEASE}-updates"),
                    (security, f"{RELEASE}-security"),
                )
            )
        )
        options = {
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
        (folder / "apt.conf").write_text("".join(f'{name} "{value}";\n' for name, value in options.items()))
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
        return main, re.sub(r"/debian$", "/debian-security", main)
    targets = run("apt-get", "indextargets", "--format", "$(LABEL) $(REPO_URI)", "Created-By: Packages")
    known = dict(line.rsplit(" ", 1) for line in targets.splitlines())
    if not {"Debian", "Debian-Security"} <= known.keys():
        raise ImageError("this machine has no mirror of Debian: name one with --mirror")
    return known["Debian"], known["Debian-Security"]


def debian_layer(
    platform: Platform, mirror: str | None, interpreter: Interpreter | None, *, locked: bool
) -> Layer:
    """Without an `interpreter` the layer's own compiles it. Not `locked`: Debian's newest packages where the mirror no longer
    has those of the lock; else this raises `OutdatedLock`.
    """
    with TemporaryDirectory() as folder:
        archive: Archive | None = None

        def fill(root: Path, wanted: list[Package]) -> None:
            nonlocal archive
            archive = archive or Archive(platform, mirror, Path(folder))
            newest = archive.packages()
            if newest != wanted:
                changed = ", ".join(package.file for package in newest if package not in wanted)
                raise OutdatedLock(
                    f"the mirror's {changed} is not in {LOCK.name}: `python -m deploy.image --lock` takes it, "
                    "or --mirror names a mirror that has the older one"
                )
            _fill(root, archive.download())
            compile_python(interpreter or Interpreter(root, platform), root, f"usr/lib/python{PYTHON}")

        title, pinned = f"debian-{platform.name}", locked_packages(platform)
        try:
            return cached(title, pinned, lambda root: fill(root, pinned))
        except OutdatedLock:
            if locked:
                raise
        assert archive is not None
        newest = archive.packages()
        return cached(title, newest, lambda root: fill(root, newest))


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
