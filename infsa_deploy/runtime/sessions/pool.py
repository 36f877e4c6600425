"""Sessions lent to one call at a time, for runtimes whose sessions only one thread may use."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from infsa_deploy.errors import UsageError
from infsa_deploy.runtime.sessions.protocol import ModelSession


class SessionPool:
    """A session and up to `most` - 1 forks of it, made when calls meet; a reentrant session is lent to all at once."""

    def __init__(self, session: ModelSession, most: int = 1) -> None:
        self._first, self._most = session, most
        self._idle, self._forks, self._lent = [session], 0, 0
        self._closed = False
        self._changed = threading.Condition()

    @contextmanager
    def lent(self) -> Iterator[ModelSession]:
        """A session to run on; waits for one where `most` are out. UsageError once the pool is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._available())
            if self._closed:
                raise UsageError(
                    "the model is closed.", "close() was called, or its with block ended.", "load it anew."
                )
            session = self._take()
            self._lent += 1
        try:
            yield session
        finally:
            with self._changed:
                self._lent -= 1
                if not session.reentrant:
                    self._idle.append(session)
                self._changed.notify_all()

    def close(self) -> None:
        """Wait for the sessions that are out, then close all; closing again does nothing."""
        with self._changed:
            already, self._closed = self._closed, True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._lent == 0)
            if not already:
                for session in self._idle:
                    session.close()

    def _available(self) -> bool:
        return self._first.reentrant or bool(self._idle) or self._forks + 1 < self._most

    def _take(self) -> ModelSession:
        if self._first.reentrant:
            return self._first
        if self._idle:
            return self._idle.pop()
        fork = self._first.fork()
        self._forks += 1
        return fork
