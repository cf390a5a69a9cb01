"""What there is once: a session's log in a database, its draft in a transaction."""

from __future__ import annotations

import os
from threading import Lock
from typing import Final
from weakref import WeakSet, WeakValueDictionary

from memcore.errors import InternalError
from memcore.log.draft import Draft, SessionGone
from memcore.log.head import Head
from memcore.log.history import CounterOf, Recent, SessionLog
from memcore.store.base import Txn

__all__ = ["Drafts", "Logs"]

CLOSED: Final = "closed"
"""Marks in ``txn.local`` the sessions whose draft was closed, with their shared log."""

_all_logs: WeakSet[Logs] = WeakSet()


class Logs:
    """All SessionLogs of a database in this process."""

    __slots__ = ("__weakref__", "_lock", "_logs", "_resolve_counter")

    def __init__(self, resolve_counter: CounterOf) -> None:
        self._logs: WeakValueDictionary[tuple[int, int], SessionLog] = WeakValueDictionary()
        self._lock = Lock()
        self._resolve_counter = resolve_counter
        _all_logs.add(self)

    def get(self, scope: int, session: int) -> SessionLog:
        """The one SessionLog of that session."""
        with self._lock:
            log = self._logs.get((scope, session))
            if log is None:
                log = SessionLog(scope, session, self._resolve_counter)
                self._logs[scope, session] = log
            return log

    def forget_scope(self, scope: int) -> None:
        """Drop what is cached of a scope's sessions."""
        with self._lock:
            found = [log for log in self._logs.values() if log.scope == scope]
        for log in found:
            log.forget_all()

    def start_over(self) -> None:
        """In the child of a fork: no other thread is left that could release a lock."""
        self._lock = Lock()
        for log in list(self._logs.values()):
            log.lock = Lock()
            log.forget()


def _after_fork_in_child() -> None:
    for logs in list(_all_logs):
        logs.start_over()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class Drafts:
    """The drafts of one database: finds or makes the one of a session in a transaction."""

    __slots__ = ("_logs", "_seed")

    def __init__(self, logs: Logs, seed: bytes) -> None:
        self._logs = logs
        self._seed = int.from_bytes(seed[:8], "little")

    def open(self, txn: Txn, scope: int, session: int) -> Draft | None:
        """The draft of a session, None if the session is gone."""
        return self.of(txn, self._logs.get(scope, session))

    def of(self, txn: Txn, log: SessionLog) -> Draft | None:
        """As ``open``, of a log; other handles have other logs of the session, and one draft."""
        draft: Draft | None = txn.local.get(log.place)
        if draft is None:
            if (CLOSED, log.place) in txn.local:
                # The shared log must not see what this transaction did before: it may be aborted.
                log = log.twin()
            try:
                draft = Draft(txn, log, self._seed)
            except SessionGone:
                return None
            txn.local[log.place] = draft
        return draft

    def close(self, txn: Txn, draft: Draft) -> None:
        """The session was deleted or must be read anew: later closures open it again."""
        place = draft.log.place
        del txn.local[place]
        shared: SessionLog = txn.local.setdefault((CLOSED, place), draft.log)
        draft.drop()
        txn.on_commit(shared.forget_all)

    def flush_opened(self, txn: Txn, scope: int, session: int) -> None:
        """Write what the draft of a session holds, if this transaction has one."""
        draft: Draft | None = txn.local.get(self._logs.get(scope, session).place)
        if draft is not None:
            draft.flush()

    def close_unused(self, txn: Txn, scope: int, session: int) -> None:
        """As ``close``, for who changes the session's rows without a draft."""
        log = self._logs.get(scope, session)
        draft: Draft | None = txn.local.get(log.place)
        if draft is not None:
            self.close(txn, draft)
            return
        shared: SessionLog = txn.local.setdefault((CLOSED, log.place), log)
        txn.on_commit(shared.forget_all)

    def start_over(self, txn: Txn, scope: int, session: int, head: Head) -> Draft:
        """The draft of a session that goes on from another head than the one that is stored.

        Whoever asks for it closes it; the shared log never sees it.
        """
        self.close_unused(txn, scope, session)
        log = self._logs.get(scope, session).twin()
        draft = txn.local[log.place] = Draft(txn, log, self._seed, head)
        return draft

    def create(
        self, txn: Txn, scope: int, session: int, head: Head, *, base: Recent | None = None
    ) -> Draft:
        """The draft of a session that this transaction creates; ``base``: its ledger, if known."""
        log = self._logs.get(scope, session)
        if log.place in txn.local:
            msg = f"session {session} is created twice in one transaction"
            raise InternalError(msg)
        draft = txn.local[log.place] = Draft(txn, log, self._seed, head, base)
        return draft
