"""Layers become an OCI image of several platforms in one archive.

The archive is an OCI layout; `manifest.json`, for versions of Docker that read no OCI layouts, names the image of this machine's
processor.
"""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from deploy.image.debian import USER
from deploy.image.layers import Layer, Platform
from deploy.image.site_packages import HOME

Json = dict[str, Any]
INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


@dataclass(frozen=True, slots=True)
class Image:
    platform: Platform
    layers: Sequence[Layer]

    @property
    def size(self) -> int:
        """Compressed, in bytes: what a node pulls."""
        return sum(layer.size for layer in self.layers)


def config_of(image: Image, labels: Mapping[str, str], epoch_s: int) -> Json:
    return {
        "created": datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "architecture": image.platform.name,
        "os": "linux",
        "config": {
            "User": f"{USER}:{USER}",
            "Env": [
                f"PATH=/{HOME}/bin:/usr/bin",
                "HOME=/",
                "PYTHONDONTWRITEBYTECODE=1",
                "PYTHONUNBUFFERED=1",
            ],
            "Entrypoint": [f"/{HOME}/bin/policysched"],
            "Cmd": ["run", "--help"],
            "ExposedPorts": {"10259/tcp": {}},
            "Labels": dict(labels),
        },
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in image.layers]},
        "history": [{"created_by": layer.title} for layer in image.layers],
    }


def write_archive(
    path: Path, images: Sequence[Image], name: str, labels: Mapping[str, str], epoch_s: int
) -> str:
    """`name` is such as policysched:0.1.0; the first image is this machine's. Returns the digest to pin."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        writer = _Writer(tar, epoch_s)
        manifests, docker = [], []
        for image in images:
            for layer in image.layers:
                writer.blob_file(layer)
            config = writer.blob(config_of(image, labels, epoch_s), CONFIG)
            layers = [
                {"mediaType": LAYER, "digest": layer.digest, "size": layer.size} for layer in image.layers
            ]
            manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers}
            platform = {"architecture": image.platform.name, "os": "linux"}
            manifests.append({**writer.blob(manifest, MANIFEST), "platform": platform})
            docker.append(
                {
                    "Config": blob_path(config["digest"]),
                    "RepoTags": [name],
                    "Layers": [blob_path(layer.digest) for layer in image.layers],
                }
            )
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests, "annotations": dict(labels)}
        pinned = writer.blob(index, INDEX)
        named = {**pinned, "annotations": {"org.opencontainers.image.ref.name": name.rpartition(":")[2]}}
        writer.file("oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        writer.file("index.json", _json({"schemaVersion": 2, "mediaType": INDEX, "manifests": [named]}))
        writer.file("manifest.json", _json(docker[:1]))
    digest: str = pinned["digest"]
    return digest


class _Writer:
    def __init__(self, tar: tarfile.TarFile, epoch_s: int) -> None:
        self._tar = tar
        self._epoch_s = epoch_s
        self._names: set[str] = set()

    def blob(self, content: Json, media_type: str) -> Json:
        data = _json(content)
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        self.file(blob_path(digest), data)
        return {"mediaType": media_type, "digest": digest, "size": len(data)}

    def blob_file(self, layer: Layer) -> None:
        self.file(blob_path(layer.digest), layer.path.read_bytes())

    def file(self, name: str, data: bytes) -> None:
        if name in self._names:  # a layer that platforms share
            return
        self._names.add(name)
        info = tarfile.TarInfo(name)
        info.size, info.mtime, info.mode = len(data), self._epoch_s, 0o644
        self._tar.addfile(info, io.BytesIO(data))


def blob_path(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _json(content: object) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
