"""The same events give the same commands in every process, whatever its hash seed."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

SCRIPT = """
from tests.scheduler.rig import GANG, Rig
from policysched.scheduler import events as e
from tests.builders import node, pod
rig = Rig(GANG.format(more=""), *[node(f"n{i}", cpu="2", zone=f"z{i % 3}") for i in range(8)])
for i in range(60):
    labels = {"group": f"g{i % 4}", "least": "5"} if i % 3 else {"rank": str(i)}
    rig.observe(pod(f"p{i}", cpu=str(1 + i % 2), labels=labels, priority=i % 5))
rig.settle()
for bind in rig.in_flight_binds()[::2]:
    rig.handle(e.BindRefused(bind.uid, "no"))
rig.confirm_binds()
rig.pass_time(30)
for bind in rig.in_flight_binds()[:3]:
    rig.handle(e.PodDeleted(bind.uid))
rig.observe(node("late", cpu="9"))
rig.pass_time(30)
for command in rig.commands:
    print(command)
"""


def trace(hash_seed: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_the_hash_seed_changes_no_command() -> None:
    first, other = trace("1"), trace("4711")

    assert first == other
    assert first.count("Bind(") > 10
