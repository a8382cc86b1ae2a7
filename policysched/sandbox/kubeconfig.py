"""The kubeconfig of a sandbox."""

from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Credentials:
    """A bearer token, and the certificate in PEM by which the server is verified."""

    token: str
    authority: bytes


_KUBECONFIG_NAME = "policysched-sandbox"


def write_kubeconfig(path: Path, url: str, credentials: Credentials | None = None) -> None:
    """Write a kubeconfig with mode 0600: kubectl warns about others. Raises OSError with the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.chmod(0o600)  # it may have been there
    try:
        path.write_text(_kubeconfig(url, credentials), encoding="utf-8")
    except OSError as error:  # the error of a full disk has no path
        raise OSError(error.errno, error.strerror, str(path)) from error


def _kubeconfig(url: str, credentials: Credentials | None) -> str:
    """The only and current context is the server at `url`."""
    cluster: Json = {"server": url}
    user: Json = {}
    if credentials is not None:
        cluster["certificate-authority-data"] = b64encode(credentials.authority).decode()
        user["token"] = credentials.token
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": _KUBECONFIG_NAME, "cluster": cluster}],
        "users": [{"name": _KUBECONFIG_NAME, "user": user}],
        "contexts": [
            {
                "name": _KUBECONFIG_NAME,
                "context": {"cluster": _KUBECONFIG_NAME, "user": _KUBECONFIG_NAME, "namespace": "default"},
            }
        ],
        "current-context": _KUBECONFIG_NAME,
    }
    return yaml.safe_dump(config, sort_keys=False)
