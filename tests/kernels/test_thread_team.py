"""Helpers of the CPU pass."""

import threading
import time

import pytest

from kernels.errors import KernelArgumentError
from kernels.thread_team import ThreadTeam, team_of


def test_every_thread_is_called_with_its_own_number():
    seen, all_in = set(), threading.Event()

    def work(thread):
        seen.add((thread, threading.current_thread().name))
        if len(seen) == 3:
            all_in.set()
        assert all_in.wait(5)

    ThreadTeam(3).run(work)
    assert {number for number, _ in seen} == {0, 1, 2}
    assert len({name for _, name in seen}) == 3


def test_a_late_helper_is_not_waited_for():
    release, was_helped = threading.Event(), threading.Event()

    def work(thread):
        if thread:
            release.wait(5)
            was_helped.set()

    begin = time.perf_counter()
    team = ThreadTeam(2)
    team.run(work)
    assert time.perf_counter() - begin < 4
    release.set()


def test_callers_take_turns():
    team, running, most = ThreadTeam(1), [], []

    def work(thread):
        running.append(thread)
        most.append(len(running))
        time.sleep(0.01)
        running.pop()

    callers = [threading.Thread(target=team.run, args=(work,)) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert most == [1, 1, 1, 1]


def test_a_failure_of_the_caller_reaches_it_and_the_team_goes_on():
    team, done = ThreadTeam(1), []

    def fail(thread):
        raise OSError("broken")

    with pytest.raises(OSError, match="broken"):
        team.run(fail)
    team.run(done.append)
    assert done == [0]


def test_models_share_the_team_of_a_size():
    assert team_of(2) is team_of(2)
    assert team_of(1) is not team_of(2)


def test_a_team_without_threads_is_refused():
    with pytest.raises(KernelArgumentError, match="got 0"):
        ThreadTeam(0)
