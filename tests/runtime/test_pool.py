"""Lending sessions that one thread may use at a time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from infsa_deploy.errors import HostError, UsageError
from infsa_deploy.runtime.sessions.pool import SessionPool


class _Session:
    """Counts itself, and fails when two threads are in it."""

    def __init__(self, made: list, reentrant: bool = False, forks: int = 99):
        self.reentrant, self.closed, self._made, self._busy, self._forks = reentrant, False, made, False, forks
        made.append(self)

    def fork(self):
        if len(self._made) > self._forks:
            raise HostError("no memory.", "", "")
        return _Session(self._made)

    def use(self, both: threading.Barrier | None = None):
        assert not self.closed
        assert self.reentrant or not self._busy
        self._busy = True
        if both:
            both.wait(10)
        self._busy = False

    def close(self):
        self.closed = True


def _use(pool, barrier=None):
    with pool.lent() as session:
        session.use(barrier)


@pytest.mark.parametrize("reentrant", [False, True])
def test_two_calls_run_at_once(reentrant):
    made, both = [], threading.Barrier(2)
    pool = SessionPool(_Session(made, reentrant), 2)
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(_use, [pool] * 2, [both] * 2))
    assert len(made) == (1 if reentrant else 2)


def test_no_more_sessions_than_allowed():
    made = []
    pool = SessionPool(_Session(made), 3)
    with ThreadPoolExecutor(12) as threads:
        list(threads.map(_use, [pool] * 200))
    assert len(made) <= 3
    pool.close()
    assert all(session.closed for session in made)


def test_a_fork_that_fails_takes_no_place():
    made = []
    pool = SessionPool(_Session(made, forks=0), 2)
    with pool.lent():
        for _ in range(3):
            with pytest.raises(HostError), pool.lent():
                pass
    _use(pool)
    assert len(made) == 1


def test_an_error_in_a_call_gives_the_session_back():
    pool = SessionPool(_Session([]))
    with pytest.raises(ZeroDivisionError), pool.lent():
        raise ZeroDivisionError
    _use(pool)


def test_closing_waits_for_the_call_and_refuses_those_that_wait():
    made, inside, leave = [], threading.Event(), threading.Event()
    pool = SessionPool(_Session(made))

    def hold():
        with pool.lent() as session:
            inside.set()
            leave.wait(10)
            assert not session.closed

    with ThreadPoolExecutor(3) as threads:
        holding = threads.submit(hold)
        inside.wait(10)
        waiting, closing = threads.submit(_use, pool), threads.submit(pool.close)
        with pytest.raises(UsageError, match="closed"):
            waiting.result(10)
        assert not made[0].closed
        leave.set()
        holding.result(10)
        closing.result(10)
    assert made[0].closed
