"""What the playground answers is what `diff` says of the same cluster, and what `lint` says of the text."""

import io
import pickle
from typing import Any

from policysched.comparison.comparison import compare
from policysched.comparison.try_worker import tried
from policysched.from_files.cluster_files import ClusterFiles
from policysched.from_files.cluster_snapshot import cluster_parts
from policysched.from_files.policy_try import PolicyTry
from tests.comparison.clusters import EDITS, NOW_NS, POLICY, compared, edited, policy, random_files

LOCATION = "ConfigMap ns/policies"


def job(text: str, *, simulates: bool = True, placed_max: int = 0, **texts: str) -> PolicyTry:
    return PolicyTry(
        "test",
        "test.policy",
        LOCATION,
        text,
        POLICY,
        {"test.policy": POLICY, **texts},
        2**40,
        simulates,
        NOW_NS,
        placed_max,
    )


def stream(files: ClusterFiles) -> io.BytesIO:
    parts = cluster_parts(files.build_cache())
    return io.BytesIO(b"".join(pickle.dumps(part) for part in (*parts.items(), None)))


def comparison(text: str, files: ClusterFiles, **options: Any) -> dict[str, Any]:
    answer = tried(job(text, **options), stream(files))
    assert answer["comparison"] is not None, answer
    result: dict[str, Any] = answer["comparison"]
    return result


def test_the_pods_that_move_are_those_of_diff_with_the_same_lines() -> None:
    files, text = random_files(1), edited(EDITS[:3])
    expected = compare(policy(POLICY), policy(text), compared(files)).record()

    result = comparison(text, files)

    assert result["decided"] == expected["pods"] > 0
    assert [row["pod"] for row in result["pods"]] == [pod["pod"] for pod in expected["changed_pods"]]
    assert all("(line " in row["cause"] for row in result["pods"])
    assert {row["namespace"] for row in result["pods"]} == {"default"}


def test_placed_pods_are_placed_again_up_to_a_limit() -> None:
    files = random_files(1)

    assert comparison(POLICY, files, placed_max=3)["placed_again"] == 3
    assert comparison(POLICY, files)["placed_again"] == 0


def test_an_error_has_its_place_in_the_text_and_nothing_is_simulated() -> None:
    text = POLICY.replace("node.pods < crowd", "node.pods < crowds")

    answer = tried(job(text), io.BytesIO())

    (error,) = [result for result in answer["diagnostics"] if result["severity"] == "error"]
    assert answer["comparison"] is None
    assert text.split("\n")[error["line"] - 1].startswith("filter few")
    assert text[error["start"] : error["end"]] == "crowds"


def test_libraries_of_the_config_map_are_included() -> None:
    text = POLICY.replace("include kube_default", 'include kube_default\ninclude "base.policy"')
    library = "library base version 1\n\nfilter less require node.pods < 3\n"

    without = tried(job(text, simulates=False), io.BytesIO())
    answer = tried(job(text, simulates=False, **{"base.policy": library}), io.BytesIO())

    assert [result["severity"] for result in without["diagnostics"]].count("error") == 1
    assert not [result for result in answer["diagnostics"] if result["severity"] == "error"]
