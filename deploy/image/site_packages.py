"""The layers of the dependencies and of the application: a virtual environment in /opt/policysched."""

import shutil
import sys
from pathlib import Path

from deploy.image.layers import (
    PYTHON,
    SITE_PACKAGES,
    ImageError,
    Interpreter,
    Layer,
    Platform,
    cached,
    compile_python,
    run,
)

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements.lock"
HOME = Path("opt/policysched")
LAUNCHER = f"""\
#!/{HOME}/bin/python
from policysched.cli import main
main()
"""


def dependencies_layer(platform: Platform, interpreter: Interpreter) -> Layer:
    """Wheels by the hashes of the lock; nothing is built from source."""

    def fill(root: Path) -> None:
        install(platform, root, "--require-hashes", "--requirements", str(LOCK))
        (root / HOME / "pyvenv.cfg").write_text(
            f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {PYTHON}\n"
        )
        (root / HOME / "bin").mkdir()
        (root / HOME / "bin" / "python").symlink_to(f"/usr/bin/python{PYTHON}")
        compile_python(interpreter, root, SITE_PACKAGES)

    return cached(f"dependencies-{platform.name}", LOCK.read_text(encoding="utf-8"), fill)


def application_layer(wheel: Path, platform: Platform, interpreter: Interpreter, epoch_s: int) -> Layer:
    def fill(root: Path) -> None:
        install(platform, root, str(wheel))
        (root / HOME / "bin").mkdir()
        for name in ("policysched", "kubectl-policysched"):
            launcher = root / HOME / "bin" / name
            launcher.write_text(LAUNCHER)
            launcher.chmod(0o755)
        compile_python(interpreter, root, SITE_PACKAGES)

    return cached("application", wheel.read_bytes(), fill, epoch_s=epoch_s)


def install(platform: Platform, root: Path, *what: str) -> None:
    """The scripts of the packages are left out: they would name the Python of this machine."""
    target = root / SITE_PACKAGES
    target.mkdir(parents=True)
    run(
        *(uv(), "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:", "--link-mode", "copy"),
        *("--python-platform", platform.wheels, "--python-version", PYTHON, "--target", str(target)),
        *what,
    )
    shutil.rmtree(target / "bin", ignore_errors=True)
    (target / ".lock").unlink(missing_ok=True)


def build_wheel(folder: Path, epoch_s: int) -> Path:
    run(
        uv(),
        "build",
        "--quiet",
        "--wheel",
        "--out-dir",
        str(folder),
        str(ROOT),
        SOURCE_DATE_EPOCH=str(epoch_s),
    )
    return next(folder.glob("*.whl"))


def uv() -> str:
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.exists() else shutil.which("uv")
    if found is None:
        raise ImageError("uv is not installed")
    return found
