"""CEL selectors of devices, evaluated by the code of the API server and of kube-scheduler (`tests/controlplane/src/selectors`)."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.controlplane.build import SOURCES
from tests.go_program import GoProgram
from tests.upstream.build import FLAGS

DRIVER = "d.example.com"


@dataclass(frozen=True, slots=True)
class Judgement:
    """`error`: empty, or why there is no result. `is_refused`: the API server does not accept the selector."""

    matches: bool
    error: str = ""
    is_refused: bool = False


def judge_binary(environ: Mapping[str, str] = os.environ) -> Path:
    """The cached binary, or a new build of a minute after that of the control plane. Raises `BuildFailed`."""
    program = GoProgram(
        name="selectors",
        title="the evaluation of device selectors",
        sources=SOURCES,
        go_mod="go.mod",
        inputs={name: SOURCES / name for name in ("go.mod", "go.sum", "selectors/main.go")},
        flags=FLAGS,
        package="./selectors",
    )
    return program.binary(environ)


def judge(binary: Path, expressions: Sequence[str]) -> list[Judgement]:
    """For a device without attributes."""
    questions = [
        json.dumps({"expression": expression, "driver": DRIVER, "device": {"name": "d"}})
        for expression in expressions
    ]
    answers = subprocess.run(
        [binary], input="\n".join(questions), capture_output=True, check=True, text=True, timeout=300
    ).stdout
    return [
        Judgement(answer["matches"], answer.get("error", ""), answer.get("compiling", False))
        for answer in map(json.loads, answers.splitlines())
    ]
