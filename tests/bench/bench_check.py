"""From text to a plan with 500 rules, and the lint command."""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

from policysched.evaluate import compile as compile_program
from policysched.lang.check import check_text
from tests.bench.clusters import NETWORK_AWARE, program
from tests.bench.measuring import Row, median_s, shown


def five_hundred_rules() -> str:
    rules = [
        f'filter rule_{number} when pod.requests.cpu > {number}m reject node.labels["key-{number % 20}"] == "{number}"'
        for number in range(500)
    ]
    return "\n".join(("policy bench version 1", *rules, ""))


def measure() -> Iterable[Row]:
    text = five_hundred_rules()
    check_text(text)
    yield Row("500 rules: parse and check", shown(median_s(lambda: check_text(text), 5)))
    checked = program(text)
    yield Row("500 rules: lower", shown(median_s(lambda: compile_program(checked), 5)))
    pigeon = (Path(__file__).parents[2] / "policies" / "pigeon.policy").read_text()
    yield Row(
        "pigeon.policy, names of names: parse and check",
        shown(median_s(lambda: check_text(pigeon), 9)),
        "150 ms",
    )
    named = program(pigeon)
    yield Row("pigeon.policy: lower", shown(median_s(lambda: compile_program(named), 9)), "50 ms")
    with TemporaryDirectory() as folder:
        policy = Path(folder) / "bench.policy"
        policy.write_text(NETWORK_AWARE)

        def lint() -> None:
            subprocess.run(
                [sys.executable, "-m", "policysched", "lint", str(policy)], check=False, capture_output=True
            )

        yield Row("lint as a process", shown(median_s(lint, 5)))
