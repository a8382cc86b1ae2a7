"""Policies are checked in a worker that may die without harm."""

import asyncio
import signal
import sys
from pathlib import Path
from unittest.mock import patch

from policysched.daemon import compiling
from policysched.daemon.compiling import WorkerCompiler, as_text, compile_here, policy_texts

TEXTS = {
    "base.policy": "library base version 1\nfilter node_name\n",
    "main.policy": 'policy main version 1\ninclude "base.policy"\n',
    "bad.policy": "policy bad version 1\nfilter x require y\n",
}


async def compile_once(compiler: WorkerCompiler) -> compiling.Bundle:
    try:
        return await compiler(TEXTS, "ConfigMap a/b")
    finally:
        await compiler.close()


def test_a_worker_finds_what_is_found_in_line() -> None:
    there = asyncio.run(compile_once(WorkerCompiler(timeout_s=30)))

    here = compile_here(TEXTS, "ConfigMap a/b")
    assert list(there.checked) == list(here.checked)
    for key, one in here.checked.items():
        other = there.checked[key]
        assert (other.program and other.program.sha256) == (one.program and one.program.sha256)
        assert [(d.code, d.message) for d in other.diagnostics] == [
            (d.code, d.message) for d in one.diagnostics
        ]
    (finding,) = there.checked["bad.policy"].diagnostics
    assert finding.span is not None
    assert finding.span.source.name == "ConfigMap a/b key bad.policy"
    assert finding.span.text == "y"


def test_a_check_that_takes_too_long_is_a_finding_and_the_next_one_works() -> None:
    async def scenario() -> tuple[compiling.Bundle, compiling.Bundle]:
        compiler = WorkerCompiler(timeout_s=0.0001)
        slow = await compiler(TEXTS, "ConfigMap a/b")
        compiler._timeout_s = 30
        good = await compile_once(compiler)
        return slow, good

    slow, good = asyncio.run(scenario())

    assert [one.diagnostics[0].code for one in slow.checked.values()] == ["PS901"] * 3
    assert "longer than" in slow.checked["main.policy"].diagnostics[0].message
    assert good.checked["main.policy"].program is not None


def test_a_worker_that_gets_no_processor_for_longer_than_its_limit_is_waited_for() -> None:
    """Found by the chaos seeds on a busy machine: good policies were refused, and the scheduler ended at its start."""

    async def scenario() -> compiling.Bundle:
        compiler = WorkerCompiler(timeout_s=1.5)
        await compiler.warm_up()
        assert compiler._spare is not None
        compiler._spare.send_signal(signal.SIGSTOP)
        asyncio.get_running_loop().call_later(2.0, compiler._spare.send_signal, signal.SIGCONT)
        return await compile_once(compiler)

    assert asyncio.run(scenario()).checked["main.policy"].program is not None


def test_a_worker_that_hangs_is_a_finding(tmp_path: Path) -> None:
    hangs = tmp_path / "hangs"
    hangs.write_text("#!/bin/sh\nexec sleep 600\n")
    hangs.chmod(0o755)

    async def scenario() -> compiling.Bundle:
        with patch.object(sys, "executable", str(hangs)), patch.object(compiling, "HANGS_AFTER_LEAST_S", 0.1):
            return await compile_once(WorkerCompiler(timeout_s=0.001))

    bundle = asyncio.run(scenario())

    assert "no answer within 0.1 s" in bundle.checked["main.policy"].diagnostics[0].message


def test_a_spare_that_died_while_it_waited_is_replaced() -> None:
    async def scenario() -> compiling.Bundle:
        compiler = WorkerCompiler(timeout_s=30)
        await compiler.warm_up()
        assert compiler._spare is not None
        compiler._spare.kill()
        await compiler._spare.wait()
        return await compile_once(compiler)

    assert asyncio.run(scenario()).checked["main.policy"].program is not None


def test_a_worker_that_breaks_is_a_finding_with_its_last_words() -> None:
    async def scenario() -> compiling.Bundle:
        with patch.object(sys, "executable", "/bin/false"):
            return await compile_once(WorkerCompiler(timeout_s=30))

    bundle = asyncio.run(scenario())

    assert "ended with 1" in bundle.checked["main.policy"].diagnostics[0].message


def test_only_keys_of_policies_are_read() -> None:
    assert policy_texts({"b.policy": "2", "README.md": "x", "a.policy": "1"}) == {
        "a.policy": "1",
        "b.policy": "2",
    }


def test_a_key_that_is_no_text_is_refused_in_the_worker_and_the_others_stand() -> None:
    latin = as_text("policy latin version 1\n# Zürich\n".encode("latin-1"))
    texts = {**TEXTS, "latin.policy": latin}

    async def scenario() -> compiling.Bundle:
        compiler = WorkerCompiler(timeout_s=30)
        try:
            return await compiler(texts, "ConfigMap a/b")
        finally:
            await compiler.close()

    checked = asyncio.run(scenario()).checked
    (finding,) = checked["latin.policy"].diagnostics
    assert (finding.code, finding.message) == ("PS907", "not UTF-8 text (byte 26)")
    assert (checked["latin.policy"].program, checked["latin.policy"].policy) == (None, "latin")
    assert checked["main.policy"].program is not None
    assert list(checked) == sorted(texts)


def test_parameters_that_are_no_text_refuse_their_policy() -> None:
    texts = {
        "a.policy": "policy a version 1\nparam crowd: int = 3\n",
        "a.params.yaml": as_text("# Größe\ncrowd: 4\n".encode("latin-1")),
    }

    checked = compile_here(texts, "ConfigMap a/b").checked

    said = [one.message for one in checked["a.policy"].diagnostics if one.code == "PS262"]
    assert said == ["the parameters cannot be read: not UTF-8 text (byte 4)"]
    assert checked["a.policy"].program is None


def test_a_file_of_windows_is_taken_from_a_configmap_as_lint_takes_it() -> None:
    text = "\ufeffpolicy win version 1\r\ninclude kube_default\r\nfilter few require node.pods < 3\r\n"

    taken = compile_here({"win.policy": text}, "here").checked["win.policy"]

    clean = compile_here({"win.policy": text[1:].replace("\r", "")}, "here").checked["win.policy"]
    assert taken.diagnostics == ()
    assert taken.program is not None and clean.program is not None
    assert taken.program.sha256 == clean.program.sha256
