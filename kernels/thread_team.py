"""Threads that help with one piece of shared work at a time and sleep between."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kernels.errors import require

Work = Callable[[int], None]  # called with a thread's number, 0 .. num_threads - 1


class ThreadTeam:
    """`num_threads` - 1 helpers beside the calling thread; a helper sleeps on its semaphore.

    Raises:
        KernelArgumentError: `num_threads` is not positive.
    """

    def __init__(self, num_threads: int) -> None:
        require(num_threads > 0, f"a team needs at least one thread, got {num_threads}")
        self.num_threads = num_threads
        self._turn = threading.Lock()
        self._work: Work | None = None
        self._wake = [threading.Semaphore(0) for _ in range(num_threads - 1)]
        for index, wake in enumerate(self._wake):
            helper = threading.Thread(
                target=self._help, args=(index + 1, wake), name=f"decoder-{index + 1}", daemon=True
            )
            helper.start()

    def run(self, work: Work) -> None:
        """Call `work(0)` here and `work(thread)` in the helpers; returns when `work(0)` does.

        `work` must be such that its calls together do everything once, and that whoever comes when
        nothing is left returns at once: helpers are not waited for, and may come late or twice.
        One caller after the other.
        """
        with self._turn:
            self._work = work
            for wake in self._wake:
                wake.release()
            work(0)
            self._work = None

    def _help(self, thread: int, wake: threading.Semaphore) -> None:
        while True:
            wake.acquire()
            work = self._work
            if work is not None:
                work(thread)
            del work  # a finished pass must not keep its arrays until the next


_teams: dict[int, ThreadTeam] = {}
_teams_lock = threading.Lock()


def team_of(num_threads: int) -> ThreadTeam:
    """The process's team of that size; models share it, so that two do not ask for more cores."""
    with _teams_lock:
        if num_threads not in _teams:
            _teams[num_threads] = ThreadTeam(num_threads)
        return _teams[num_threads]
