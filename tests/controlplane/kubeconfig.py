"""Self-contained kubeconfig files: one file is all that a client needs."""

import base64
import json
from pathlib import Path
from typing import Any

from tests.controlplane.certificates import KeyPair


def write_kubeconfig(path: Path, *, url: str, authority: Path, user: dict[str, Any]) -> Path:
    """A kubeconfig. `user` is its user entry: `with_certificate(...)` or `with_token(...)`. TLS is
    verified.
    """
    path.write_text(
        json.dumps(  # JSON is YAML
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [
                    {
                        "name": "tests",
                        "cluster": {"server": url, "certificate-authority-data": _base64(authority)},
                    }
                ],
                "users": [{"name": "tests", "user": user}],
                "contexts": [{"name": "tests", "context": {"cluster": "tests", "user": "tests"}}],
                "current-context": "tests",
            },
            indent=1,
        )
    )
    path.chmod(0o600)
    return path


def with_certificate(pair: KeyPair) -> dict[str, Any]:
    return {"client-certificate-data": _base64(pair.certificate), "client-key-data": _base64(pair.key)}


def with_token(token: str) -> dict[str, Any]:
    return {"token": token}


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
