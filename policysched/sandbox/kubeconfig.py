"""The kubeconfig of the sandbox: plain HTTP on the loopback interface, without credentials."""

from pathlib import Path

import yaml

NAME = "policysched-sandbox"


def kubeconfig(url: str) -> str:
    """The text of a kubeconfig whose only and current context is the server at `url`."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": NAME, "cluster": {"server": url}}],
        "users": [{"name": NAME, "user": {}}],
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME, "namespace": "default"}}],
        "current-context": NAME,
    }
    return yaml.safe_dump(config, sort_keys=False)


def write_kubeconfig(path: Path, url: str) -> None:
    """Write a kubeconfig with mode 0600: kubectl warns about others. Raises OSError with the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    try:
        path.write_text(kubeconfig(url), encoding="utf-8")
    except OSError as error:  # the error of a full disk has no path
        raise OSError(error.errno, error.strerror, str(path)) from error
