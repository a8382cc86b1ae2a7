"""Build the controllers of JobSet, LeaderWorkerSet and Kueue from their Go modules, with the manifests that install them.

Their go.mods have the control plane's versions of what both use, so that Go's cache is shared with its build. A file of a
dependency that does not compile with these versions, and that nothing needs, is named in `left_out` beside the go.mod.

By hand: `python -m tests.workloads.build` prints the paths.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tests.go_program import BuildFailed, GoProgram, say
from tests.upstream.build import FLAGS

SOURCES = Path(__file__).parent / "src"
PACKAGES = {
    "jobset": "sigs.k8s.io/jobset",
    "lws": "sigs.k8s.io/lws/cmd",
    "kueue": "sigs.k8s.io/kueue/cmd/kueue",
}
MANIFESTS = "config"
"""The folder beside the binary whose `default` is what `kubectl apply -k` would install."""

LEFT_OUT = "left_out"
"""Lines of a module and paths in it."""


@dataclass(frozen=True, slots=True)
class Controllers(GoProgram):
    """Built with copies of the modules that have a file in `left_out`."""

    def _run_go_build(self, go: str, output: Path, environ: Mapping[str, str]) -> None:
        with tempfile.TemporaryDirectory(prefix=f"policysched-{self.name}-") as temporary:
            folder = Path(temporary)
            for name in ("go.mod", "go.sum"):
                shutil.copy(self.sources / name, folder)
            with (folder / "go.mod").open("a") as go_mod:
                for number, (module, *paths) in enumerate(self._left_out()):
                    copy = folder / str(number)
                    root = self._module_folder(go, environ, module)
                    subprocess.run(["cp", "-r", "--no-preserve=mode", root, copy], check=True)
                    for path in paths:
                        (copy / path).unlink()
                    go_mod.write(f"\nreplace {module} => {copy}\n")
            changed = replace(self, go_mod=str(folder / "go.mod"))
            GoProgram._run_go_build(changed, go, output, environ)

    def _left_out(self) -> Iterator[list[str]]:
        if LEFT_OUT in self.inputs:
            yield from map(str.split, self.inputs[LEFT_OUT].read_text().splitlines())


def controller_binary(name: str, environ: Mapping[str, str] = os.environ) -> Path:
    """The cached binary, or a new build. Raises `BuildFailed`; progress goes to stderr."""
    folder = SOURCES / name
    files = ("go.mod", "go.sum", LEFT_OUT)
    program = Controllers(
        name=name,
        title=f"the controllers of {name}",
        sources=folder,
        go_mod="go.mod",
        inputs={file: folder / file for file in files if (folder / file).exists()},
        flags=FLAGS,
        package=PACKAGES[name],
        folders={MANIFESTS: (f"sigs.k8s.io/{name}", "config")},
    )
    return program.binary(environ)


def main() -> int:
    try:
        for name in PACKAGES:
            print(controller_binary(name))
    except BuildFailed as failure:
        say(str(failure))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
