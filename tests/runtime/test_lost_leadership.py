"""A process that lost its leadership ends soon, whatever its main loop and its other threads do."""

import subprocess
import sys
import textwrap

import pytest

PROCESS = """
    import asyncio, contextlib, sys, threading, time
    from policysched.kube.leader_election import LeadershipStatus
    from policysched.runtime.leadership import ThreadedLeaderElection, exit_within

    class Elector:
        holder, stalls, status = "", 0, LeadershipStatus.LEADING

        async def run(self):
            if {loses}:
                while not started.is_set():
                    await asyncio.sleep(0.01)
                return
            await asyncio.sleep(3600)

        async def release(self, *, nothing_in_flight):
            pass

    @contextlib.asynccontextmanager
    async def make():
        yield Elector()

    started = threading.Event()

    async def main():
        election = ThreadedLeaderElection(make, lambda: exit_within(0.2, 7))
        await election.start(lambda status: None)
        print("started", flush=True)
        started.set()
        {then}

    {around}
"""
STOP = "await election.stop(nothing_in_flight=True); time.sleep(2); sys.exit(3)"


def outcome(*, loses: bool = True, then: str = "", around: str = "asyncio.run(main())") -> tuple[int, str]:
    """The exit code, and what was logged."""
    code = textwrap.dedent(PROCESS).format(loses=loses, then=then, around=around)
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.stdout.startswith("started"), ended.stderr
    return ended.returncode, ended.stderr


@pytest.mark.parametrize(
    "then",
    [
        "time.sleep(3600)",
        "exec('while True: pass')",
        "await asyncio.to_thread(time.sleep, 3600)",
        "asyncio.get_running_loop().run_in_executor(None, time.sleep, 3600)",
        "threading.Thread(target=time.sleep, args=(3600,)).start()",
    ],
    ids=[
        "the loop waits",
        "the loop computes",
        "the loop is idle",
        "an executor never ends",
        "a thread never ends",
    ],
)
def test_a_process_that_lost_its_leadership_ends_whatever_it_does(then: str) -> None:
    exit_code, log = outcome(then=then)

    assert exit_code == 7
    assert "still running after the lease was lost; exiting at once" in log


def test_a_process_whose_log_is_blocked_ends_without_a_word() -> None:
    """Whoever waits for a full pipe has the handler's lock."""
    blocked = "import logging; logging.lastResort.acquire(); time.sleep(3600)"

    assert outcome(then=blocked) == (7, "")


def test_a_process_that_gives_its_leadership_up_is_not_ended() -> None:
    assert outcome(loses=False, then=STOP) == (3, "")


def test_a_process_that_ends_in_time_keeps_its_own_exit_code() -> None:
    assert outcome(loses=False, then="exit_within(3600, 7); sys.exit(1)") == (1, "")
