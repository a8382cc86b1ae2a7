"""The real `helm`, built once from its Go module for the user's cache folder (four minutes of CPU time when Go's cache is cold).

By hand: `python -m tests.helm.program` prints the path.
"""

import os
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from tests.go_program import GoProgram

SOURCES = Path(__file__).parent / "src"
CHART = Path(__file__).parents[2] / "deploy" / "chart"
TIMEOUT_S = 120.0


@cache
def helm_binary() -> Path:
    """Raises `BuildFailed`."""
    return GoProgram.of_module("helm", "helm.sh/helm/v4/cmd/helm", SOURCES).binary(os.environ)


def run_helm(
    *arguments: str, folder: Path, environment: Mapping[str, str] = {}
) -> subprocess.CompletedProcess[str]:
    """Its caches and configuration are in `folder`."""
    own = {f"HELM_{kind}_HOME": str(folder / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
    return subprocess.run(
        [helm_binary(), *arguments],
        env={**os.environ, **own, **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )


if __name__ == "__main__":
    print(helm_binary())
