"""Compare policysched with a running kube-scheduler on random clusters.

    python -m tests.conformance.live [--clusters 500] [--seed N] [--draw plain|rare|all]
        [--save FILE.jsonl] [--record FILE.jsonl.xz]

Cluster i has the seed N + i; without `--seed`, N is random and printed. For every pending pod:
feasible nodes, each plugin's score on them, totals, node, victims and message. Exits 1 if anything
differs.
"""

import argparse
import json
import sys
from pathlib import Path
from random import SystemRandom

from tests.conformance.cluster_case import Json, write_compact
from tests.conformance.live.check import check
from tests.conformance.live.draw import Drawn
from tests.conformance.live.record import Recorder
from tests.controlplane.certificates import openssl_missing
from tests.controlplane.cluster import ControlPlane
from tests.controlplane.programs import find_programs

EVERY = 25
"""Clusters per line of progress when the output is not a terminal."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare with a running kube-scheduler on random clusters.")
    parser.add_argument("--clusters", type=int, default=500)
    parser.add_argument("--seed", type=int, help="of the first cluster; drawn without it")
    parser.add_argument(
        "--draw",
        type=Drawn,
        choices=tuple(Drawn),
        default=Drawn.ALL,
        help="nothing rare, what is rare, or devices besides (the default)",
    )
    parser.add_argument(
        "--save", type=Path, help="write clusters that differ to this file, as recorded cases"
    )
    parser.add_argument(
        "--record", type=Path, help="write every cluster to this file, as recorded cases, compressed"
    )
    options = parser.parse_args()
    programs = find_programs()
    missing = openssl_missing() or programs.missing("etcd", "kube-apiserver", "kube-scheduler")
    if missing:
        print(missing, file=sys.stderr)
        return 2
    first = SystemRandom().randrange(10**6) if options.seed is None else options.seed
    print(f"seeds from {first} on, beside kube-scheduler {programs['kube-scheduler'].kubernetes_version}")
    pods, differing, late = 0, 0, 0
    cases: list[Json] = []
    with ControlPlane(programs) as control_plane:
        recorder = Recorder(control_plane)
        for count, seed in enumerate(range(first, first + options.clusters), start=1):
            checked = check(recorder, seed, options.draw)
            pods += checked.pods
            if checked.at_first:
                late += 1
                print(f"\rseed {seed}: agrees only with a scheduler that starts on it; at first")
                print("\n".join(f"  {disagreement}" for disagreement in checked.at_first), flush=True)
            if checked.differences:
                differing += 1
                print(f"\r{checked}", flush=True)
                if options.save is not None:
                    with options.save.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(checked.case) + "\n")
            cases += [checked.case] if options.record is not None else []
            _show(count, options.clusters, f"{pods} pods decided, {differing} clusters differ")
    if options.record is not None:
        write_compact(cases, options.record)
    again = f", {late} clusters had to be asked about again" if late else ""
    print(f"{differing} of {options.clusters} clusters differ, {pods} pods decided{again}")
    return 1 if differing else 0


def _show(count: int, clusters: int, outcome: str) -> None:
    line = f"{count} of {clusters} clusters, {outcome}"
    if sys.stdout.isatty():
        print(f"\r{line}", end="\n" if count == clusters else "", flush=True)
    elif count % EVERY == 0 and count < clusters:
        print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
