"""Policies are checked in a worker that may die without harm."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from unittest.mock import patch

from policysched.daemon import policy_checker
from policysched.daemon.event_loop import run_event_loop
from policysched.daemon.policy_checker import (
    WorkerChecker,
    check_texts,
    decode_text,
    policy_texts,
)

TEXTS = {
    "base.policy": "library base version 1\nfilter node_name\n",
    "main.policy": 'policy main version 1\ninclude "base.policy"\n',
    "bad.policy": "policy bad version 1\nfilter x require y\n",
}


async def check_once(checker: WorkerChecker) -> policy_checker.PolicyBundle:
    try:
        return await checker(TEXTS, "ConfigMap a/b")
    finally:
        await checker.close()


def test_a_worker_reports_the_diagnostics_of_an_inline_check() -> None:
    in_worker = asyncio.run(check_once(WorkerChecker(timeout_s=30)))

    in_process = check_texts(TEXTS, "ConfigMap a/b")
    assert list(in_worker.sources) == list(in_process.sources)
    for key, source in in_process.sources.items():
        other = in_worker.sources[key]
        assert (other.program and other.program.sha256) == (source.program and source.program.sha256)
        assert [(d.code, d.message) for d in other.diagnostics] == [
            (d.code, d.message) for d in source.diagnostics
        ]
    (finding,) = in_worker.sources["bad.policy"].diagnostics
    assert finding.span is not None
    assert finding.span.source.name == "ConfigMap a/b key bad.policy"
    assert finding.span.text == "y"


def test_a_check_that_takes_too_long_is_a_diagnostic_and_the_next_check_works() -> None:
    async def scenario() -> tuple[policy_checker.PolicyBundle, policy_checker.PolicyBundle]:
        checker = WorkerChecker(timeout_s=0.0001)
        slow = await checker(TEXTS, "ConfigMap a/b")
        checker._timeout_s = checker._text_timeout_s = 30
        good = await check_once(checker)
        return slow, good

    slow, good = asyncio.run(scenario())

    assert [source.diagnostics[0].code for source in slow.sources.values()] == ["PS909"] * 3
    assert "longer than 0.0001 s" in slow.sources["main.policy"].diagnostics[0].message
    assert good.sources["main.policy"].program is not None


def test_a_worker_that_does_not_notice_its_limit_is_killed() -> None:
    with patch.object(policy_checker, "KILL_TIMEOUT_FACTOR", 1e-6):
        killed = asyncio.run(check_once(WorkerChecker(timeout_s=30)))

    assert [source.diagnostics[0].code for source in killed.sources.values()] == ["PS901"] * 3
    assert "longer than 3.5e-05 s" in killed.sources["main.policy"].diagnostics[0].message


LETS = "".join(f"let a{index}: int = {index}\n" for index in range(10_000))
"""Takes more than a second, of CPU time; about as long as a text may be."""


def test_a_text_that_takes_too_long_is_rejected_alone_and_checked_last_the_next_time() -> None:
    texts = {
        "a-slow.policy": "policy slow version 1\n" + LETS,
        "library.policy": "library slow-too version 1\n" + LETS,
        "main.policy": "policy main version 1\ninclude kube_default\n",
        "user.policy": 'policy user version 1\ninclude "library.policy"\n',
    }

    async def scenario() -> tuple[policy_checker.PolicyBundle, WorkerChecker]:
        checker = WorkerChecker(timeout_s=60, text_timeout_s=0.5)
        try:
            return await checker(texts, "ConfigMap a/b"), checker
        finally:
            await checker.close()

    bundle, checker = asyncio.run(scenario())

    codes = {key: [d.code for d in source.diagnostics] for key, source in bundle.sources.items()}
    assert codes == {
        "a-slow.policy": ["PS909"],
        "library.policy": ["PS909"],
        "main.policy": [],
        "user.policy": ["PS227"],
    }
    (finding,) = bundle.sources["a-slow.policy"].diagnostics
    assert finding.message == "checking this text took longer than 0.5 s"
    assert bundle.sources["main.policy"].program is not None
    assert checker._too_slow == {"a-slow.policy", "library.policy"}


def test_texts_that_are_not_reached_in_the_time_of_all_are_rejected_and_the_others_are_not() -> None:
    texts = {
        "a.policy": "policy a version 1\ninclude kube_default\n",
        # The kernel's timer may fire a little early, so that something is left for the next text.
        **{f"slow{index}.policy": f"policy slow{index} version 1\n{LETS}" for index in range(4)},
        "z.policy": "policy z version 1\ninclude kube_default\n",
    }

    async def scenario() -> policy_checker.PolicyBundle:
        checker = WorkerChecker(timeout_s=2.0)
        try:
            return await checker(texts, "ConfigMap a/b")
        finally:
            await checker.close()

    checked = asyncio.run(scenario()).sources

    assert checked["a.policy"].program is not None
    (finding,) = checked["z.policy"].diagnostics
    assert finding.message == "checking the texts of this ConfigMap took longer than 2 s"


def test_the_operators_limit_on_the_cost_is_that_of_the_worker() -> None:
    texts = {"main.policy": "policy main version 1\ninclude kube_default\n"}

    async def scenario() -> policy_checker.PolicyBundle:
        checker = WorkerChecker(timeout_s=30, cost_max=100)
        try:
            return await checker(texts, "ConfigMap a/b")
        finally:
            await checker.close()

    (finding,) = asyncio.run(scenario()).sources["main.policy"].diagnostics
    assert finding.code == "PS501"
    assert "the limit is 100" in finding.message


def test_a_worker_that_gets_no_processor_for_longer_than_its_limit_is_waited_for() -> None:
    """Found by the chaos seeds on a busy machine: good policies were refused, and the scheduler ended at its start."""

    async def scenario() -> policy_checker.PolicyBundle:
        checker = WorkerChecker(timeout_s=1.5)
        await checker.warm_up()
        assert checker._spare_worker is not None
        pid = checker._spare_worker.pid
        os.kill(pid, signal.SIGSTOP)
        asyncio.get_running_loop().call_later(2.0, os.kill, pid, signal.SIGCONT)
        return await check_once(checker)

    assert asyncio.run(scenario()).sources["main.policy"].program is not None


def test_a_worker_that_hangs_is_a_finding(tmp_path: Path) -> None:
    hangs = tmp_path / "hangs"
    hangs.write_text("#!/bin/sh\nexec sleep 600\n")
    hangs.chmod(0o755)

    async def scenario() -> policy_checker.PolicyBundle:
        with (
            patch.object(sys, "executable", str(hangs)),
            patch.object(policy_checker, "HANG_TIMEOUT_MIN_S", 0.1),
        ):
            return await check_once(WorkerChecker(timeout_s=0.001))

    bundle = asyncio.run(scenario())

    assert "no result within 0.1 s" in bundle.sources["main.policy"].diagnostics[0].message


def test_a_spare_that_died_while_it_waited_is_replaced() -> None:
    async def scenario() -> policy_checker.PolicyBundle:
        checker = WorkerChecker(timeout_s=30)
        await checker.warm_up()
        assert checker._spare_worker is not None
        await checker._spare_worker.end()
        return await check_once(checker)

    assert asyncio.run(scenario()).sources["main.policy"].program is not None


FORKS: list[None] = []
os.register_at_fork(before=lambda: FORKS.append(None))


def test_a_worker_is_started_without_a_copy_of_the_scheduler() -> None:
    """A fork stopped the main loop for 14 ms at each edit of a policy."""

    async def scenario() -> None:
        checker = WorkerChecker(timeout_s=30)
        await checker.warm_up()
        await checker.close()

    FORKS.clear()
    run_event_loop(scenario())

    assert FORKS == []


def test_checks_leave_the_processor_to_the_scheduler() -> None:
    async def scenario() -> int:
        checker = WorkerChecker(timeout_s=30)
        await checker.warm_up()
        worker = checker._spare_worker
        assert worker is not None
        niceness = os.getpriority(os.PRIO_PROCESS, worker.pid)
        await checker.close()
        return niceness

    own = os.getpriority(os.PRIO_PROCESS, 0)

    assert asyncio.run(scenario()) == min(own + policy_checker.CHECK_NICENESS, 19) > min(own, 18)


def test_a_worker_that_crashes_is_a_diagnostic_with_its_last_output() -> None:
    async def scenario() -> policy_checker.PolicyBundle:
        with patch.object(sys, "executable", "/bin/false"):
            return await check_once(WorkerChecker(timeout_s=30))

    bundle = asyncio.run(scenario())

    assert "exited with 1" in bundle.sources["main.policy"].diagnostics[0].message


def test_only_keys_of_policies_are_read() -> None:
    assert policy_texts({"b.policy": "2", "README.md": "x", "a.policy": "1"}) == {
        "a.policy": "1",
        "b.policy": "2",
    }


def test_a_binary_key_is_rejected_in_the_worker_and_the_others_are_checked() -> None:
    latin = decode_text("policy latin version 1\n# Zürich\n".encode("latin-1"))
    texts = {**TEXTS, "latin.policy": latin}

    async def scenario() -> policy_checker.PolicyBundle:
        checker = WorkerChecker(timeout_s=30)
        try:
            return await checker(texts, "ConfigMap a/b")
        finally:
            await checker.close()

    checked = asyncio.run(scenario()).sources
    (finding,) = checked["latin.policy"].diagnostics
    assert (finding.code, finding.message) == ("PS907", "not UTF-8 text (byte 26)")
    assert (checked["latin.policy"].program, checked["latin.policy"].policy_name) == (None, "latin")
    assert checked["main.policy"].program is not None
    assert list(checked) == sorted(texts)


def test_parameters_that_are_not_text_reject_their_policy() -> None:
    texts = {
        "a.policy": "policy a version 1\nparam crowd: int = 3\n",
        "a.params.yaml": decode_text("# Größe\ncrowd: 4\n".encode("latin-1")),
    }

    checked = check_texts(texts, "ConfigMap a/b").sources

    messages = [
        diagnostic.message for diagnostic in checked["a.policy"].diagnostics if diagnostic.code == "PS262"
    ]
    assert messages == ["the parameters cannot be read: not UTF-8 text (byte 4)"]
    assert checked["a.policy"].program is None


def test_windows_line_ends_in_a_configmap_are_read_as_lint_reads_them() -> None:
    text = "\ufeffpolicy win version 1\r\ninclude kube_default\r\nfilter few require node.pods < 3\r\n"

    taken = check_texts({"win.policy": text}, "here").sources["win.policy"]

    clean = check_texts({"win.policy": text[1:].replace("\r", "")}, "here").sources["win.policy"]
    assert taken.diagnostics == ()
    assert taken.program is not None and clean.program is not None
    assert taken.program.sha256 == clean.program.sha256


def test_where_no_worker_can_be_started_the_check_waits_and_says_why(tmp_path: Path) -> None:
    """It ended the process."""
    delays: list[str] = []
    worker = sys.executable

    async def scenario() -> policy_checker.PolicyBundle:
        checker = WorkerChecker(timeout_s=30)
        checker.report_delay = delays.append
        with patch.object(sys, "executable", str(tmp_path / "missing")):
            await checker.warm_up()
            check = asyncio.create_task(checker(TEXTS, "ConfigMap a/b"))
            while not delays:
                await asyncio.sleep(0.01)
        assert sys.executable == worker
        bundle = await check
        await checker.close()
        return bundle

    bundle = asyncio.run(scenario())

    assert bundle.sources["main.policy"].program is not None
    assert len(delays) == 1
    assert delays[0].startswith("cannot start a process to check the policies; retrying: ")
