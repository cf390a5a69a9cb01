"""What a session handle stands on: what was asked of it, and where its session lies."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from threading import RLock
from typing import Any

from memcore import names
from memcore.access import Access
from memcore.compaction import CompactionPolicy
from memcore.errors import (
    CorruptValueError,
    PolicyMismatchError,
    ReadOnlyError,
)
from memcore.formats import policy_name
from memcore.log import Draft, Head, SessionLog
from memcore.log.head import FLAG_LEASED, head_key
from memcore.privacy.border import Passage
from memcore.session.backing import Backing
from memcore.session.tenure import Tenure, admit, admit_raw, fenced
from memcore.session.uses import Uses
from memcore.state import APP, StateSchema
from memcore.store.base import ReadTxn, Txn
from memcore.tokens import TokenCounter
from memcore.tombstone import is_erased

__all__ = ["Address", "Backing", "SessionOptions"]


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """What the caller asked of a session; None leaves it to the session or the database."""

    policy: str | None
    counter: TokenCounter | None
    orphans: str
    compaction: CompactionPolicy | None = None
    recount: bool = False
    """Whether the handle's first use recounts a session that another counter counted."""
    state: StateSchema | None = None
    """The fields of its state; None: any."""
    access_counts: bool | None = None
    """Whether reading through the handle is counted; None: as in the database."""
    recover: bool = False
    """Whether the handle's first use looks for damage and recovers the session."""


class Address:
    """The name of a session, and its numbers once they are known to be committed."""

    __slots__ = (
        "_passage",
        "_process",
        "_touching",
        "access",
        "app",
        "backing",
        "due",
        "lease",
        "log",
        "name",
        "options",
        "scope",
        "temporary",
        "user",
        "uses",
    )

    def __init__(
        self, backing: Backing, app: str, user: str, name: str, options: SessionOptions
    ) -> None:
        self.backing = backing
        self.app = app
        self.user = user
        self.name = name
        self.options = options
        self.scope: int | None = None
        self.log: SessionLog | None = None
        self.due: Callable[[], bool] | None = None
        """What the first use of the handle begins with; it tells whether it is done for good."""
        self.temporary: dict[str, Any] = {}
        """The fields of the state that are the handle's alone."""
        self.access: Access | None = None
        """Who is asked whether a handle beside it may be opened."""
        self.lease: Tenure | None = None
        """What the handle holds; see ``Session.lease``."""
        self._process, self._touching = os.getpid(), RLock()
        self._passage: Passage | None = None
        self.uses: Uses | None = None
        """Counts who reads it; None: nobody does."""
        counts = backing.access_counts if options.access_counts is None else options.access_counts
        if counts and not backing.store.read_only:
            key = (app, user, name)
            self.uses = backing.uses.setdefault(key, Uses(key, backing.unwritten))

    @property
    def passage(self) -> Passage | None:
        """What the session's content passes before it is stored; None: nothing."""
        border = self.backing.border
        if border is None:
            return None
        if self._passage is None:
            self._passage = border.at(self.app, self.user, self.name)
        return self._passage

    def touch(self) -> None:
        """Do what is due; whoever comes meanwhile waits. If it fails, the next one tries again."""
        if self.due is not None:
            if self._process != os.getpid():  # who held the lock is not in the child of a fork
                self._process, self._touching = os.getpid(), RLock()
            with self._touching:
                if self.due is not None and self.due():
                    self.due = None

    def peek(self) -> Head | None:
        """The head as it is now, None if there is no session. Needs no counter."""

        def look(txn: ReadTxn) -> Head | None:
            found = self.find(txn)
            value = None if found is None else txn.get(head_key(*found))
            if found is None or value is None:
                self.need_gone(txn)
                return None
            return Head.unpack(head_key(*found), value)

        return self.backing.store.read(look)

    def need(self, action: str, name: str | None = None) -> None:
        """Ask the authorizer, if there is one, about this session or the one of that name.

        Raises:
            AccessDeniedError: it refused.
        """
        if self.access is not None:
            whose = self.name if name is None else name
            self.access.need(action, app=self.app, user=self.user, name=whose)

    def beside(self, name: str, *, policy: str | None) -> Address:
        """The address of a fork: it takes its counter over with the history.

        Raises:
            AccessDeniedError: the authorizer refused to open it.
        """
        self.need("session", name)
        wanted = None if policy is None else policy_name(policy)
        options = replace(self.options, policy=wanted, counter=None, recount=False)
        address = Address(self.backing, self.app, self.user, name, options)
        address.access = self.access
        return address

    def find(self, txn: ReadTxn) -> tuple[int, int] | None:
        """``(scope, session)`` as the transaction sees it, without remembering it."""
        scope = self._scope_in(txn)
        if scope is None:
            return None
        session = names.session_of(txn, scope, self.name)
        return None if session is None else (scope, session)

    def _scope_in(self, txn: ReadTxn) -> int | None:
        """The scope's number; the one that is remembered may be that of a user who was erased."""
        scope = self.scope
        if scope is None or is_erased(txn, scope):
            return names.scope_of(txn, self.app, self.user)
        return scope

    def find_scope(self, txn: ReadTxn, prefix: str) -> int | None:
        """The scope that holds the fields of a prefix, None if there is none yet."""
        if prefix == APP:
            return names.app_scope_of(txn, self.app)
        return self._scope_in(txn)

    def ensure_scope(self, txn: Txn, prefix: str) -> int:
        """As ``find_scope``; it makes the scope."""
        if prefix == APP:
            return names.ensure_app_scope(txn, self.app)
        return names.ensure_scope(txn, self.app, self.user)

    def resolve(self) -> SessionLog | None:
        """The session's log, None if there is no such session. Remembers what is committed."""
        if self.log is None:
            found = self.backing.store.read(self.find)
            if found is not None:
                self.settle(*found)
        return self.log

    def settle(self, scope: int, session: int) -> None:
        """Remember numbers that are committed (they are never reused)."""
        self.scope = scope
        self.log = self.backing.logs.get(scope, session)

    def forget(self) -> None:
        """The session is gone; its name may stand for another one now."""
        self.log = None

    def draft(self, txn: Txn, *, create: bool) -> Draft | None:
        """The session's draft in a write transaction; made if it is missing and ``create``.

        Raises:
            ReadOnlyError, PolicyMismatchError
            LeaseHeldError, FencedError: the session is not this handle's to change.
        """
        draft = self.unguarded(txn, create=create and self.lease is None)
        if draft is None:
            if self.lease is not None and create:
                raise fenced(self.lease, None, self.name)
        elif self.lease is not None or draft.head.flags & FLAG_LEASED:
            now_ms = self.backing.now_ms()
            admit(txn, draft, self.lease, now_ms=now_ms, name=self.name)
        return draft

    def admit(self, txn: Txn, place: tuple[int, int]) -> None:
        """Let a change of the session begin that is made without a draft.

        Raises:
            LeaseHeldError, FencedError: the session is not this handle's to change.
        """
        admit_raw(txn, place, self.lease, now_ms=self.backing.now_ms(), name=self.name)

    def unguarded(self, txn: Txn, *, create: bool) -> Draft | None:
        """As ``draft``, whoever holds the session."""
        log = self.log
        if log is not None:
            draft = self.backing.drafts.of(txn, log)
            if draft is not None:
                self.check_head(draft.head)
                return draft
        found = self.find(txn)
        if found is not None:
            draft = self.backing.drafts.open(txn, *found)
            if draft is not None:
                self.check_head(draft.head)
                txn.on_commit(lambda: self.settle(*found))
                return draft
            raise self.headless(*found)
        return self._create(txn) if create else None

    def need_gone(self, txn: ReadTxn) -> None:
        """Refuse to call a session gone whose name is there.

        Raises:
            CorruptValueError: its head is missing.
        """
        found = self.find(txn)
        if found is not None and txn.get(head_key(*found)) is None:
            raise self.headless(*found)

    def headless(self, scope: int, session: int) -> CorruptValueError:
        """The error for a session that has a name and no head."""
        msg = f"the head of session {self.name[:40]!r} is missing; run 'memcore check'"
        return CorruptValueError(msg, key=head_key(scope, session))

    def _create(self, txn: Txn) -> Draft:
        scope = names.ensure_scope(txn, self.app, self.user)
        session = names.new_session(txn, scope, self.name)
        counter = self.options.counter or self.backing.counter
        policy = self.options.policy or self.backing.policy
        head = Head(policy=policy, counter=counter.id, now_ms=self.backing.now_ms())
        draft = self.backing.drafts.create(txn, scope, session, head)
        txn.on_commit(lambda: self.settle(scope, session))
        return draft

    def check_head(self, head: Head) -> None:
        """Compare what the caller asked for with what the session was created with.

        Raises:
            PolicyMismatchError: they differ.
        """
        wanted, counter = self.options.policy, self.options.counter
        if wanted is not None and wanted != head.policy:
            msg = (
                f"session {self.name!r} has policy {head.policy!r}, not {wanted!r}: open it "
                "without policy=, or change it with set_policy()"
            )
            raise PolicyMismatchError(msg)
        if counter is not None and counter.id != head.counter and self.due is None:
            msg = (
                f"session {self.name!r} is counted by {head.counter!r}, not {counter.id!r}: open "
                "it without counter=, or with recount=True to count it anew (see also "
                "session.recount() and 'memcore recount')"
            )
            raise PolicyMismatchError(msg)

    def allow_policy(self, policy: str) -> None:
        """The handle asked for this policy from now on."""
        if self.options.policy is not None:
            self.options = replace(self.options, policy=policy)

    def allow_counter(self, counter: TokenCounter) -> None:
        """The handle asked for this counter from now on."""
        self.due = None
        if self.options.counter is not None:
            self.options = replace(self.options, counter=counter)

    def need_writable(self) -> None:
        """Refuse writes early, before anything is encoded; then do what is due.

        Raises:
            ReadOnlyError: the database was opened read-only.
        """
        self.refuse_read_only()
        self.touch()

    def refuse_read_only(self) -> None:
        """Refuse writes.

        Raises:
            ReadOnlyError: the database was opened read-only.
        """
        if self.backing.store.read_only:
            msg = f"session {self.name!r}: the database is open read-only; open it for writing"
            raise ReadOnlyError(msg)
