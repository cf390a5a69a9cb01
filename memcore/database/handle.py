"""Database: the open file, the administrator's handle. Scope: the handle that serves one user."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

from memcore import names
from memcore.blobs import BlobStore
from memcore.compaction import CompactionRule
from memcore.database.check import check_database
from memcore.errors import InvalidOptionError, NotFoundError, ReadOnlyError
from memcore.formats import policy_name
from memcore.kv import KeyValue
from memcore.log import Head
from memcore.log.head import head_key
from memcore.model import SessionEntry
from memcore.session import Address, Backing, Session, SessionOptions, delete_session
from memcore.store.base import ReadTxn, Txn
from memcore.tokens import TokenCounter, get_counter

__all__ = ["Database", "Scope"]

_LIST_PAGE = 256
_ORPHANS = ("raise", "keep")


class Database:
    """An open memcore file. Use it as a context manager, or close it."""

    def __init__(self, backing: Backing, rule: CompactionRule) -> None:
        self._backing = backing
        self._rule = rule

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Database({self.path!r}, durability={self.durability!r})"

    @property
    def backing(self) -> Backing:
        """What all handles of this database share (for memcore's own facades)."""
        return self._backing

    @property
    def path(self) -> str:
        """The file."""
        return self._backing.store.path

    @property
    def durability(self) -> str:
        """What an acknowledged change has survived: ``"full"`` or ``"none"``."""
        return self._backing.store.durability

    @property
    def read_only(self) -> bool:
        """Whether this handle refuses writes."""
        return self._backing.store.read_only

    @property
    def needs_recovery(self) -> bool:
        """Advisory, read-only handles: the last commit is whole only after a writer opens."""
        return self._backing.store.needs_recovery

    def close(self) -> None:
        """Close the handle; the last one of a process closes the file. Idempotent."""
        self._backing.store.close()

    # --- scopes and sessions ----------------------------------------------------------------------

    def scope(self, *, user: str = "default", app: str = "default") -> Scope:
        """The handle that serves one user of one application and can reach nothing else."""
        names.check_name(app, "app")
        names.check_name(user, "user")
        return Scope(self._backing, self._rule, app, user)

    def session(
        self,
        session_id: str,
        *,
        user: str = "default",
        app: str = "default",
        policy: str | None = None,
        orphans: str = "raise",
        counter: str | TokenCounter | None = None,
        create: bool = True,
    ) -> Session:
        """A session of a scope: ``db.scope(user=, app=).session(session_id, ...)``."""
        return self.scope(user=user, app=app).session(
            session_id, policy=policy, orphans=orphans, counter=counter, create=create
        )

    def scopes(self) -> list[tuple[str, str]]:
        """All ``(app, user)`` that own anything."""
        return self._backing.store.read(
            lambda txn: [(app, user) for _, app, user in names.scopes(txn)]
        )

    def sessions(
        self, *, user: str | None = None, app: str | None = None
    ) -> Iterator[SessionEntry]:
        """All sessions, or those of one user or application, a page a read transaction."""
        for found_app, found_user in self.scopes():
            if (user is None or user == found_user) and (app is None or app == found_app):
                yield from self.scope(user=found_user, app=found_app).sessions()

    def delete_session(
        self, session_id: str, *, user: str = "default", app: str = "default"
    ) -> bool:
        """Delete a session and its rows; whether there was one."""
        return self.scope(user=user, app=app).delete_session(session_id)

    # --- care -------------------------------------------------------------------------------------

    def check(self, *, progress: Callable[[int, int], None] | None = None) -> list[str]:
        """Walk everything: structure, checksums, index, chains, references. Empty means sound.

        Args:
            progress: called with (sessions done, sessions in all).
        """
        return check_database(self._backing, progress)

    def stats(self) -> dict[str, Any]:
        """Sizes and counters of the file and of this process's handle on it."""
        found = dict(self._backing.store.stats())
        scopes = sessions = items = tokens = 0
        for app, user in self.scopes():
            scopes += 1
            for entry in self.scope(app=app, user=user).sessions():
                sessions += 1
                items += entry.items
                tokens += entry.tokens
        found.update(scopes=scopes, sessions=sessions, items=items, tokens=tokens)
        return found

    def backup(self, path: str | os.PathLike[str], *, compact: bool = True) -> None:
        """Copy the database to a new file while others read and write.

        Raises:
            StoreAccessError: the target exists or cannot be written.
            StoreFullError: no space is left for the copy.
        """
        self._backing.store.backup(os.fspath(path), compact=compact)

    def flush(self) -> None:
        """Push everything committed so far to the device."""
        self._backing.store.flush()


class Scope:
    """Everything of one ``(app, user)``. No method of it reaches another scope."""

    def __init__(self, backing: Backing, rule: CompactionRule, app: str, user: str) -> None:
        self._backing = backing
        self._rule = rule
        self._app = app
        self._user = user

    def __repr__(self) -> str:
        return f"Scope(user={self._user!r}, app={self._app!r})"

    @property
    def user(self) -> str:
        """The user whom it serves."""
        return self._user

    @property
    def app(self) -> str:
        """The application it belongs to."""
        return self._app

    def session(
        self,
        session_id: str,
        *,
        policy: str | None = None,
        orphans: str = "raise",
        counter: str | TokenCounter | None = None,
        create: bool = True,
    ) -> Session:
        """A session by name; it comes into being with its first change.

        Args:
            session_id: any non-empty string.
            policy: the pair policy of a new session; an existing one must have it.
            orphans: ``"raise"`` refuses results without their call, ``"keep"`` stores them as they
                come and leaves them out of every context.
            counter: the token counter of a new session; an existing one must have it.
            create: False raises NotFoundError if there is no such session.

        Raises:
            InvalidOptionError, NotFoundError, PolicyMismatchError, CounterUnavailableError
        """
        names.check_name(session_id, "session")
        if orphans not in _ORPHANS:
            msg = f"orphans: expected 'raise' or 'keep', got {orphans!r}"
            raise InvalidOptionError(msg)
        name = None if policy is None else policy_name(policy)
        by = None if counter is None else get_counter(counter)
        if by is not None:
            self._backing.counters.setdefault(by.id, by)
        options = SessionOptions(name, by, orphans, self._rule)
        session = Session(Address(self._backing, self._app, self._user, session_id, options))
        if not session.exists() and not create:
            msg = f"there is no session {session_id!r} of user {self._user!r} in app {self._app!r}"
            raise NotFoundError(msg)
        return session

    def sessions(self) -> Iterator[SessionEntry]:
        """The scope's sessions in the order of their names, a page a read transaction."""
        after: str | None = None
        while True:
            page = self._backing.store.read(lambda txn, after=after: self._page(txn, after))  # type: ignore[misc]
            yield from page
            if len(page) < _LIST_PAGE:
                return
            after = page[-1].session_id

    def _page(self, txn: ReadTxn, after: str | None) -> list[SessionEntry]:
        scope = names.scope_of(txn, self._app, self._user)
        found: list[SessionEntry] = []
        if scope is None:
            return found
        for name, session in names.sessions(txn, scope, after):
            key = head_key(scope, session)
            value = txn.get(key)
            if value is not None:
                found.append(self._entry(name, Head.unpack(key, value)))
            if len(found) == _LIST_PAGE:
                break
        return found

    def _entry(self, name: str, head: Head) -> SessionEntry:
        return SessionEntry(
            session_id=name,
            app=self._app,
            user=self._user,
            items=head.count,
            tokens=head.tokens,
            open_calls=head.open_calls,
            revision=head.revision,
            policy=head.policy,
            created_at=head.created_ms / 1000,
            updated_at=head.updated_ms / 1000,
        )

    def delete_session(self, session_id: str) -> bool:
        """Delete a session; its rows leave when no fork shares them. Whether there was one."""
        names.check_name(session_id, "session")
        self._need_writable()

        def closure(txn: Txn) -> bool:
            scope = names.scope_of(txn, self._app, self._user)
            return scope is not None and delete_session(txn, self._backing, scope, session_id)

        return self._backing.store.transact(closure)

    def kv(self, namespace: str) -> KeyValue:
        """Ordered key/value storage of this scope under a namespace.

        Raises:
            InvalidOptionError: the namespace is no non-empty string.
        """
        names.check_name(namespace, "namespace")

        def find(txn: ReadTxn) -> tuple[int, int] | None:
            scope = self._find(txn)
            number = None if scope is None else names.namespace_of(txn, scope, namespace)
            return None if scope is None or number is None else (scope, number)

        def ensure(txn: Txn) -> tuple[int, int]:
            scope = self._ensure(txn)
            return scope, names.ensure_namespace(txn, scope, namespace)

        return KeyValue(self._backing.store, find, ensure, now_ms=self._backing.now_ms)

    @property
    def blobs(self) -> BlobStore:
        """Content-addressed bytes of this scope."""
        seed = int.from_bytes(self._backing.seed[:8], "little")
        return BlobStore(self._backing.store, self._find, seed=seed, ensure=self._ensure)

    def _find(self, txn: ReadTxn) -> int | None:
        return names.scope_of(txn, self._app, self._user)

    def _ensure(self, txn: Txn) -> int:
        return names.ensure_scope(txn, self._app, self._user)

    def _need_writable(self) -> None:
        if self._backing.store.read_only:
            msg = "the database is open read-only; open it for writing"
            raise ReadOnlyError(msg)
