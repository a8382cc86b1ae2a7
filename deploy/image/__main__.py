"""`python -m deploy.image`: build the image, and write dist/policysched-VERSION-image.tar."""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from deploy.image.debian import debian_layer, write_lock
from deploy.image.layers import PLATFORMS, ImageError, Interpreter, native, unpack
from deploy.image.oci import Image, write_archive
from deploy.image.site_packages import ROOT, application_layer, build_wheel, dependencies_layer
from policysched import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m deploy.image", description="Build the container image.")
    parser.add_argument("--platform", action="append", choices=list(PLATFORMS), help="default: all")
    parser.add_argument(
        "--mirror",
        default=os.environ.get("DEBIAN_MIRROR") or None,
        help="the address of a Debian archive (default: this machine's)",
    )
    parser.add_argument(
        "--lock", action="store_true", help="pin Debian's newest packages in debian.lock, and build nothing"
    )
    parser.add_argument("--wheel", type=Path, help="a wheel of policysched (default: of this checkout)")
    parser.add_argument("--output", type=Path, default=ROOT / "dist" / f"policysched-{__version__}-image.tar")
    given = parser.parse_args(arguments)
    began_s = time.monotonic()
    try:
        if given.lock:
            write_lock(given.mirror)
            return 0
        images = build(given.platform or list(PLATFORMS), given.mirror, wheel=given.wheel)
        given.output.parent.mkdir(parents=True, exist_ok=True)
        digest = write_archive(given.output, images, f"policysched:{__version__}", labels(), epoch_s())
    except ImageError as error:
        print(f"no image: {error}", file=sys.stderr)
        return 1
    for image in images:
        parts = ", ".join(f"{layer.title} {layer.size / 1e6:.1f}" for layer in image.layers)
        print(f"{image.platform.name}: {image.size / 1e6:.1f} MB compressed ({parts})")
    print(f"{given.output}: {digest}, built in {time.monotonic() - began_s:.0f} s")
    return 0


def build(
    names: Iterable[str], mirror: str | None = None, *, wheel: Path | None = None, locked: bool = True
) -> list[Image]:
    """The images for these platforms, this machine's first. Raises `ImageError`."""
    own = native()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "debian"
        root.mkdir()
        base = {own.name: debian_layer(own, mirror, None, locked=locked)}
        unpack(base[own.name], root)
        interpreter = Interpreter(root, own)
        wheel = wheel or build_wheel(Path(folder) / "wheel", epoch_s())
        images = []
        for name in sorted(names, key=lambda name: name != own.name):
            platform = PLATFORMS[name]
            if name not in base:
                base[name] = debian_layer(platform, mirror, interpreter, locked=locked)
            layers = (
                base[name],
                dependencies_layer(platform, interpreter),
                application_layer(wheel, platform, interpreter, epoch_s()),
            )
            images.append(Image(platform, layers))
    return images


def epoch_s() -> int:
    """The date of the files: that of the commit, or SOURCE_DATE_EPOCH."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given is not None:
        return int(given)
    done = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return int(done.stdout) if done.returncode == 0 else 0


def labels() -> dict[str, str]:
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return {
        "org.opencontainers.image.title": "policysched",
        "org.opencontainers.image.description": "A Kubernetes scheduler whose rules are a policy that people can read.",
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.version": __version__,
        **({"org.opencontainers.image.revision": done.stdout.strip()} if done.returncode == 0 else {}),
    }


if __name__ == "__main__":
    sys.exit(main())
