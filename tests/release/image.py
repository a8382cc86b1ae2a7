"""Whether an assembled image is what nodes can run."""

import struct
import tarfile

from deploy.image.layers import SITE_PACKAGES
from deploy.image.oci import Image

SIZE_MAX = 120e6
ELF_MACHINES = {"amd64": 62, "arm64": 183}
"""`e_machine` of the ELF header."""


def image_problems(image: Image) -> list[str]:
    """Its size, files of another processor, and modes that would let the user change it."""
    name = image.platform.name
    problems = []
    if image.size >= SIZE_MAX:
        problems.append(
            f"the image for {name} has {image.size / 1e6:.0f} MB compressed, not below {SIZE_MAX / 1e6:.0f}"
        )
    programs = 0
    for layer in image.layers:
        with tarfile.open(layer.path) as tar:
            for member in tar:
                if member.name != "tmp" and not member.issym() and member.mode & 0o6022:
                    problems.append(f"{name}: {member.name} has mode {member.mode:o}")
                if not member.isreg() or (
                    ".so" not in member.name and not member.name.startswith("usr/bin/")
                ):
                    continue
                content = tar.extractfile(member)
                header = content.read(20) if content is not None else b""
                if header[:4] != b"\x7fELF":
                    continue
                programs += 1
                (machine,) = struct.unpack_from("<H", header, 18)
                if machine != ELF_MACHINES[name]:
                    problems.append(f"{name}: {member.name} is for another processor (ELF machine {machine})")
    if not programs:
        problems.append(f"the image for {name} has no program, not even in {SITE_PACKAGES}")
    return problems
