"""The container image, checked without building it: its packages are pinned, and the manifests fit it."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from deploy.image import debian, oci
from deploy.image.layers import PLATFORMS
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


def test_a_user_without_a_passwd_entry_can_run_it() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "HOME"}

    process = subprocess.run(
        [sys.executable, "-c", WITHOUT_A_HOME], env=environment, capture_output=True, text=True, timeout=60
    )

    assert process.stderr == "policysched: /no/such/file: no such kubeconfig file\n"
    assert process.returncode == 2
