"""Build upstream's integration tests of the scheduler, with another program in place of the scheduler that they start.

Such a test starts an API server and kube-scheduler in its own process. Its packages are copied from the module of the
release, and three things are changed in the copies: what starts the scheduler calls `src/integration/external.go` instead, waits
last longer, and the tests of all packages become one program, which is linked once. All other packages are those of the module, which
the builds of the control plane and of the e2e tests have compiled already.

By hand: `python -m tests.upstream.integration_build` prints the path of the binary.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.go_program import BuildFailed, GoProgram, say
from tests.upstream.build import FLAGS, SOURCES

KUBERNETES = "k8s.io/kubernetes"
MODULE = "policysched.test/upstream"
INTEGRATION = "test/integration"
EXTERNAL = SOURCES / "integration" / "external.go"
SHARED = ("framework", "util", "scheduler", "scheduler/podgroup/stepsframework")
"""Packages that others import."""

PACKAGES = (
    "scheduler",
    "scheduler/bind",
    "scheduler/filters",
    "scheduler/nominated_node_name",
    "scheduler/podgroup",
    "scheduler/podgroup/topology_aware_scheduling",
    "scheduler/preemption",
    "scheduler/preemption/misc",
    "scheduler/preemption/nominatednodename",
    "scheduler/preemption/podgroup",
    "scheduler/scoring",
    "scheduler/taint",
    "volumescheduling",
)
"""Those with tests of decisions, below test/integration."""

NOT_BUILT = {
    "scheduler/batch": "counts calls of plugins in the scheduler's process",
    "scheduler/eventhandler": "registers plugins in the scheduler's process",
    "scheduler/extender": "configures kube-scheduler's own extenders",
    "scheduler/plugins": "registers plugins in the scheduler's process",
    "scheduler/podgroup/queueing": "reads the queue of the scheduler's process",
    "scheduler/prequeueinghint": "registers plugins in the scheduler's process",
    "scheduler/queueing": "reads the queue of the scheduler's process",
    "scheduler/serving": "asks kube-scheduler's own HTTP server",
}

CHANGES = (
    (re.compile(r"\bgo (\w+\.Scheduler)\.Run\("), r"external.Start(\1, "),
    (re.compile(r"\bwait\.(Poll\w*)\("), r"external.\1("),
)
"""What starts a scheduler, and what waits for an outcome, call external.go."""

TEST = re.compile(r"^func (Test\w+)\(", re.MULTILINE)
MAIN = "TestMain"


@dataclass(frozen=True, slots=True)
class IntegrationTests(GoProgram):
    """Built in a copy of `sources` with the packages of the tests."""

    def _run_go_build(self, go: str, output: Path, environ: Mapping[str, str]) -> None:
        upstream = Path(self._go(go, environ, "list", "-m", "-f", "{{.Dir}}", KUBERNETES)) / INTEGRATION
        with tempfile.TemporaryDirectory(prefix="policysched-integration-") as temporary:
            folder = Path(temporary)
            write_module(upstream, folder)
            say(f"building {self.title} once for this cache; it takes minutes")
            built = subprocess.run(
                ["nice", "-n", "10", go, "test", "-c", "-vet=off", *self.flags, "-o", output],
                cwd=folder,
                env=self._go_environ(environ),
                stderr=subprocess.PIPE,
                text=True,
            )
            if built.returncode != 0:
                raise BuildFailed(f"no {self.title}: {built.stderr[-4000:].strip()}")


def write_module(upstream: Path, folder: Path) -> None:
    """The module with the tests of `upstream`, which is the folder test/integration of Kubernetes. Raises `BuildFailed`."""
    for name in ("go.mod", "go.sum"):
        shutil.copy(SOURCES / name, folder)
    (folder / "external").mkdir()
    shutil.copy(EXTERNAL, folder / "external")
    changed = [0] * len(CHANGES)
    tests: dict[str, list[str]] = {}
    for package in dict.fromkeys((*SHARED, *PACKAGES)):
        copies = folder / package
        copies.mkdir(parents=True, exist_ok=True)
        for path in sorted((upstream / package).glob("*.go")):
            text = path.read_text()
            if path.name.endswith("_test.go"):
                tests.setdefault(package, []).extend(name for name in TEST.findall(text) if name != MAIN)
            counts = list[int]()
            for pattern, replacement in CHANGES:
                text, count = pattern.subn(replacement, text)
                counts.append(count)
            if any(counts):
                text = text.replace("import (\n", f'import (\n\t"{MODULE}/external"\n', 1)
            if counts[-1]:
                text += "\nvar _ = wait.ForeverTestTimeout // its import may have no other use\n"
            for shared in SHARED:
                text = text.replace(f'"{KUBERNETES}/{INTEGRATION}/{shared}"', f'"{MODULE}/{shared}"')
            (copies / path.name.replace("_test.go", ".go")).write_text(text)
            changed = [sum(pair) for pair in zip(changed, counts, strict=True)]
    for (pattern, _), count in zip(CHANGES, changed, strict=True):
        if not count:
            raise BuildFailed(f"no integration tests: `{pattern.pattern}` is nowhere in {upstream}")
    (folder / "all_test.go").write_text("\n".join(_main(tests)) + "\n")


def _main(tests: Mapping[str, list[str]]) -> Iterator[str]:
    """The tests of all packages as one package."""
    yield "package integration"
    yield "import ("
    yield f'"testing"; "{MODULE}/framework"'
    yield from (f'p{index} "{MODULE}/{package}"' for index, package in enumerate(tests))
    yield ")"
    yield f"func {MAIN}(m *testing.M) {{ framework.EtcdMain(m.Run) }}"
    for index, (package, names) in enumerate(tests.items()):
        yield from (
            f"func {function(package, name)}(t *testing.T) {{ p{index}.{name}(t) }}" for name in names
        )


def function(package: str, name: str) -> str:
    """The name of a test in the binary. It is short, because folders are named after a test and its case."""
    return f"Test{PACKAGES.index(package):X}{name.removeprefix('Test')}"


def integration_binary(environ: Mapping[str, str] = os.environ) -> Path:
    """The cached binary, or a new build. Raises `BuildFailed`; progress goes to stderr."""
    program = IntegrationTests(
        name="integration",
        title="upstream's integration tests of the scheduler",
        sources=SOURCES,
        go_mod="go.mod",
        inputs={
            **{name: SOURCES / name for name in ("go.mod", "go.sum")},
            "external.go": EXTERNAL,
            "integration_build.py": Path(__file__),
        },
        flags=FLAGS,
    )
    return program.binary(environ)


def main() -> int:
    try:
        print(integration_binary())
    except BuildFailed as failure:
        say(str(failure))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
