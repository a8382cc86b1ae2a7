"""The container image, checked without building it: its packages are pinned, and the manifests fit it."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.image import debian, oci
from deploy.image.debian import Package
from deploy.image.layers import PLATFORMS, ImageError, Interpreter, Platform
from policysched import __version__

Json = dict[str, Any]
ROOT = Path(__file__).parents[2]

WITHOUT_A_HOME = """\
import os, pwd, sys

def nobody(uid):
    raise KeyError(uid)

pwd.getpwuid = nobody
os.environ.pop("HOME", None)
sys.argv = ["policysched", "run", "--policies", "a/b", "--kubeconfig", "/no/such/file"]
from policysched.cli import main
main()
"""


def deployments() -> list[tuple[str, Json]]:
    """The pod templates that run the image, with their files."""
    references = []
    for path in sorted((ROOT / "deploy").rglob("deployment.yaml")):
        for document in yaml.safe_load_all(re.sub(r"^\{\{.*$", "", path.read_text(), flags=re.MULTILINE)):
            spec = document["spec"]["template"]["spec"]
            if any(container["image"].startswith("policysched") for container in spec["containers"]):
                references.append((path.relative_to(ROOT).as_posix(), spec))
    return references


def test_the_manifests_have_the_images_user_and_need_no_writable_folder() -> None:
    user, home = oci.USER, "/"
    references = deployments()

    assert {name for name, _ in references} >= {
        "deploy/deployment.yaml",
        "deploy/extender/deployment.yaml",
        "deploy/chart/manifests/deployment.yaml",
    }
    for name, spec in references:
        context = spec["securityContext"]
        assert (context["runAsUser"], context["runAsGroup"], context["runAsNonRoot"]) == (user, user, True), (
            name
        )
        assert not [volume for volume in spec["volumes"] if "emptyDir" in volume], name
        for container in spec["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"], name
            assert "command" not in container, f"{name}: the entry point is the image's"
    assert config()["User"] == f"{user}:{user}"
    assert f"HOME={home}" in config()["Env"]


def config() -> Json:
    made: Json = oci.config_of(oci.Image(PLATFORMS["amd64"], ()), {}, 0)["config"]
    return made


def test_the_kustomization_sets_an_image_of_this_version() -> None:
    (image,) = yaml.safe_load((ROOT / "deploy" / "kustomization.yaml").read_text())["images"]

    assert image["newTag"] == __version__


def test_every_package_of_the_image_is_pinned_by_its_hash_for_every_processor() -> None:
    for platform in PLATFORMS.values():
        locked = debian.locked_packages(platform)

        assert {package.file.split("_")[0] for package in locked} == set(debian.PACKAGES)
        assert all(re.fullmatch(r"SHA256:[0-9a-f]{64}", package.hash) for package in locked)


MIRROR = "https://deb.example.com/debian"


class Mirrors:
    """Stands for Debian's mirror, which has a newer tzdata than the lock, and for the archive of old versions."""

    def __init__(self, old_versions: list[Package] | None) -> None:
        self.old_versions = old_versions
        self.downloaded_from: list[str] = []

    def packages_at(self, address: str) -> list[Package]:
        if address == MIRROR:
            pinned = debian.locked_packages(PLATFORMS["amd64"])
            newer = Package("tzdata_2099a-0+deb13u1_all.deb", "SHA256:" + 64 * "0")
            return sorted([*(package for package in pinned if not package.file.startswith("tzdata")), newer])
        assert address == f"{debian.SNAPSHOTS}/{debian.lock_date()}"
        if self.old_versions is None:
            raise ImageError("apt-get: Could not resolve the host")
        return self.old_versions

    def archive(self, _: Platform, mirror: str, folder: Path) -> "Mirrors.Archive":
        return Mirrors.Archive(self, mirror, self.packages_at(mirror))

    class Archive:
        def __init__(self, mirrors: "Mirrors", address: str, packages: list[Package]) -> None:
            self._mirrors, self._address, self._packages = mirrors, address, packages

        def packages(self) -> list[Package]:
            return self._packages

        def download(self) -> list[Path]:
            self._mirrors.downloaded_from.append(self._address)
            return []


def layer_from(mirrors: Mirrors, monkeypatch: pytest.MonkeyPatch, cache: Path, *, locked: bool) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setattr(debian, "Archive", mirrors.archive)
    monkeypatch.setattr(debian, "_fill", lambda *_: None)
    monkeypatch.setattr(debian, "compile_python", lambda *_: None)
    platform = PLATFORMS["amd64"]
    debian.debian_layer(platform, MIRROR, Interpreter(cache, platform), locked=locked)


def test_packages_that_the_mirror_no_longer_has_come_from_the_archive_of_old_versions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    mirrors = Mirrors(debian.locked_packages(PLATFORMS["amd64"]))

    layer_from(mirrors, monkeypatch, tmp_path, locked=True)

    assert mirrors.downloaded_from == [f"{debian.SNAPSHOTS}/{debian.lock_date()}"]


@pytest.mark.parametrize("old_versions", [None, []], ids=["unreachable", "incomplete"])
def test_an_outdated_lock_says_in_one_line_what_to_do(
    old_versions: list[Package] | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(debian.OutdatedLock) as refused:
        layer_from(Mirrors(old_versions), monkeypatch, tmp_path, locked=True)

    line = str(refused.value)
    assert line.startswith(
        "run `make lock` and commit debian.lock: Debian's mirror has tzdata_2099a-0+deb13u1_all.deb now"
    )
    assert "\n" not in line


def test_a_check_without_a_tag_takes_the_newest_packages_and_says_which(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mirrors = Mirrors(None)

    layer_from(mirrors, monkeypatch, tmp_path, locked=False)

    assert mirrors.downloaded_from == [MIRROR]
    assert capsys.readouterr().err == "not in debian.lock: tzdata_2099a-0+deb13u1_all.deb\n"


def test_the_security_updates_of_the_past_are_beside_its_archive() -> None:
    past = f"{debian.SNAPSHOTS}/{debian.lock_date()}"

    assert debian.mirrors(past) == (past, past.replace("/debian/", "/debian-security/"))
    assert debian.mirrors(MIRROR + "/") == (MIRROR, f"{MIRROR}-security")


def test_a_user_without_a_passwd_entry_can_run_it() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "HOME"}

    process = subprocess.run(
        [sys.executable, "-c", WITHOUT_A_HOME], env=environment, capture_output=True, text=True, timeout=60
    )

    assert process.stderr == "policysched: /no/such/file: no such kubeconfig file\n"
    assert process.returncode == 2
