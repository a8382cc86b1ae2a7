"""The playground's worker gets the running cluster, and its limits hold."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from policysched.cluster.metric_samples import MetricSamples, StateRow
from policysched.model.identifiers import NodeName
from policysched.runtime import policy_tries, worker_process
from policysched.runtime.policy_tries import WorkerTries
from policysched.serve.policy_try import TryFailed
from tests.builders import node, pod
from tests.scheduler.rig import FIT, Rig


def tries(rig: Rig) -> WorkerTries:
    app: Any = SimpleNamespace(
        scheduler=rig.scheduler, policy_feed=SimpleNamespace(texts={"main.policy": FIT})
    )
    return WorkerTries(app, 2**40, lambda: rig.now_ns)


def run(rig: Rig, text: str, *, simulates: bool = True, placed: bool = False) -> dict[str, Any]:
    trial = tries(rig)
    visible = trial.look("test", simulates=simulates)
    return asyncio.run(trial.run(visible, text, placed=placed))


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker has a low priority, and the machine may be busy."""
    monkeypatch.setattr(policy_tries, "WALL_MAX_S", 300.0)


@pytest.fixture
def rig() -> Rig:
    rig = Rig(FIT, node("a", cpu="4"), node("b", cpu="4"), pod("placed", cpu="1"), pod("huge", cpu="64"))
    rig.settle()
    rig.confirm_binds()
    return rig


def test_a_changed_line_moves_the_pods_of_the_running_cluster(rig: Rig) -> None:
    answer = run(rig, FIT + 'filter none reject node.name != "c" says "closed"\n', placed=True)

    assert "error" not in {result["severity"] for result in answer["diagnostics"]}
    result = answer["comparison"]
    assert result["placed_again"] == 1
    assert [(row["pod"], row["after"]) for row in result["pods"]] == [("default/placed", "pending")]
    assert "filter none (line 4)" in result["pods"][0]["cause"]


def test_the_samples_of_a_try_do_not_change_while_they_are_sent(rig: Rig) -> None:
    """They are pickled on the HTTP thread."""
    assumed: dict[NodeName, int | float] = {NodeName("a"): 1}
    rows = {"key": StateRow({})}
    by_metric = rig.scheduler.core.samples.by_policy.setdefault("test", {})
    by_metric["load"] = MetricSamples({}, 0, assumed=assumed, state_rows=rows)

    samples = tries(rig).look("test", simulates=True).job.samples
    assumed[NodeName("b")] = 2
    rows["other"] = StateRow({})
    by_metric["later"] = MetricSamples({}, 0)

    assert list(samples) == ["load"]
    assert dict(samples["load"].assumed) == {NodeName("a"): 1}
    assert list(samples["load"].state_rows) == ["key"]


def test_a_check_takes_nothing_of_the_cluster(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one after each pause in typing, and the texts of states may be large."""
    monkeypatch.setattr(rig.scheduler.core, "state_texts", lambda: pytest.fail("states are serialized"))
    monkeypatch.setattr(policy_tries, "sent_samples", lambda _: pytest.fail("samples are copied"))

    assert tries(rig).look("test", simulates=False).cluster == {}


def test_a_worker_that_answers_at_length_before_it_reads_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_tries, "WALL_MAX_S", 120.0)
    rig = Rig(FIT, *[node(f"n{number}", labels={f"l{number}": "v" * 400}) for number in range(1500)])
    wrong = "".join(f"filter f{number} reject node.{'x' * 420}{number} > 1\n" for number in range(520))

    answer = run(rig, FIT + wrong)

    assert answer["comparison"] is None
    assert len(answer["diagnostics"]) > 400


def test_a_policy_that_does_not_run_is_not_tried(rig: Rig) -> None:
    with pytest.raises(LookupError, match="no policy other runs"):
        tries(rig).look("other", simulates=False)


def test_a_worker_that_takes_too_long_is_ended(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_tries, "WALL_MAX_S", 0.01)

    with pytest.raises(TryFailed, match="no answer within"):
        run(rig, FIT, simulates=False)


def test_a_worker_that_fails_says_why(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_tries, "_WORKER", "policysched.no_such_module")

    with pytest.raises(TryFailed, match=r"the worker exited with 1: .*no_such_module"):
        run(rig, FIT, simulates=False)


def test_a_worker_that_the_kernel_kills_is_not_said_to_take_long(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "killed"
    program.write_text("#!/bin/sh\nkill -9 $$\n")
    program.chmod(0o700)
    monkeypatch.setattr(worker_process, "sys", SimpleNamespace(executable=str(program)))

    with pytest.raises(TryFailed, match="killed by signal 9, probably for lack of memory"):
        run(rig, FIT, simulates=False)


def test_the_processes_of_a_worker_without_an_answer_end_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\nsleep 600 &\necho $! > {tmp_path}/pid\nwait\n")
    program.chmod(0o700)
    monkeypatch.setattr(worker_process, "sys", SimpleNamespace(executable=str(program)))

    async def scenario() -> None:
        worker = asyncio.create_task(worker_process.run_worker("any", None, {}, wall_max_s=600.0))
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text().endswith("\n"):
            await asyncio.sleep(0.05)
        worker.cancel()
        await asyncio.wait([worker], timeout=60)
        assert worker.cancelled()

    asyncio.run(scenario())

    state = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] in "ZX"
