"""Retention: handle for retention rules and expiry times."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

from memcore.errors import CorruptValueError, InvalidOptionError, NotFoundError, ReadOnlyError
from memcore.graph import Thread, thread_of
from memcore.log.checkpoint import checkpoint_numbers, read_checkpoint
from memcore.options import checked_int, checked_optional_text, refuse_copies, shown
from memcore.retention.erasure import scopes_of
from memcore.retention.rules import RetentionRule, retention_rules
from memcore.retention.sweeper import rules_in
from memcore.rows import names
from memcore.rows.head import SEQ_END
from memcore.rows.lifecycle import (
    ARCHIVED,
    REMOVED,
    Terms,
    read_terms,
    scope_terms,
    session_terms,
    thread_terms,
    write_terms,
)
from memcore.session import Engine
from memcore.state import APP, TEMPORARY, USER, packed_field, prefix_of
from memcore.store.interface import ReadTxn, Txn

__all__ = [
    "Retention",
]


_TTL_SECONDS_MAX: Final = 2**40
Edit = Callable[[Terms], Terms]


class Retention:
    """Retention rules and expiry times; ``Database.sweep`` applies them. Made by ``db.retention``.

    They are stored in the file, so every process that sweeps it applies the same rules.
    """

    __reduce__ = refuse_copies

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __repr__(self) -> str:
        return f"Retention(of {self._engine.store.path!r})"

    # --- rules ------------------------------------------------------------------------------------

    def set(
        self,
        rules: Any,
        *,
        user: str | None = None,
        app: str | None = None,
        session: str | None = None,
        thread: str | None = None,
    ) -> tuple[RetentionRule, ...] | None:
        """Set the rules of the database, a user, or one of their sessions or threads.

        A user's rules cover the applications that ``erase`` would: one that the user joins later
        follows the database's rules until they are set again.

        Args:
            rules: a preset's name, a mapping, a RetentionRule or a list; ``[]``: everything there
                stays, whatever outer rules say; None: outer rules apply again.
            user: the user; ``"default"`` if only ``app`` is given.
            app: only in this application; None: in all of the user's, or for a session or thread,
                in ``"default"``.
            session: only this session.
            thread: only this thread of a graph runtime.

        Raises:
            InvalidOptionError: they are not rules, or a thread's rules are not about threads.
            NotFoundError: the session or thread does not exist.
            ReadOnlyError, StorageError
        """
        _check_names(user=user, app=app, session=session, thread=thread)
        found = None if rules is None else retention_rules(rules)
        stored = None if found is None else tuple(rule.mapping() for rule in found)
        ids = {ARCHIVED, REMOVED, *(rule.id for rule in found or ())}

        def edit(terms: Terms) -> Terms:
            marks = {rule: seq for rule, seq in terms.marks.items() if rule in ids}
            return replace(terms, rules=stored, marks=marks)

        if thread is None:
            self._edit(user, app, session, edit)
            return found
        for rule in found or ():
            if session is not None or rule.what not in ("threads", "thread_checkpoints"):
                msg = f"thread={thread[:80]!r}: expected rules about threads or thread_checkpoints"
                raise InvalidOptionError(msg)
        self._edit_thread(thread, user or "default", app or "default", edit)
        return found

    def get(
        self,
        *,
        user: str | None = None,
        app: str | None = None,
        session: str | None = None,
        thread: str | None = None,
    ) -> tuple[RetentionRule, ...] | None:
        """Return the rules set for the database, a user, a session or thread itself; None: none.

        For a user without ``app``, those in ``"default"``, or in the first of their applications.

        Raises:
            InvalidOptionError: a name is no str.
        """
        _check_names(user=user, app=app, session=session, thread=thread)

        def look(txn: ReadTxn) -> Terms | None:
            if thread is not None:
                scope = names.scope_of(txn, app or "default", user or "default")
                found = None if scope is None else thread_of(txn, scope, thread)
                key = None if found is None else _terms_of(found)
            else:
                key = self._find(txn, user, app, session)
            return None if key is None else read_terms(txn, key)

        terms = self._engine.store.read(look)
        return None if terms is None or terms.rules is None else rules_in(terms)

    # --- times ------------------------------------------------------------------------------------

    def expire_session(
        self,
        session: str,
        ttl_seconds: float | None,
        *,
        user: str = "default",
        app: str = "default",
    ) -> int | None:
        """Expire a session after a time, whatever happens to it until then; None: it stays.

        Returns:
            Its expiry time, in milliseconds since 1970.

        Raises:
            NotFoundError: the session does not exist.
            InvalidOptionError, ReadOnlyError, StorageError
        """
        at = self._at(ttl_seconds)
        self._edit(user, app, session, lambda terms: replace(terms, expires_ms=at))
        return at

    def expire_field(
        self,
        field: str,
        ttl_seconds: float | None,
        *,
        session: str | None = None,
        user: str = "default",
        app: str = "default",
    ) -> int | None:
        """Expire a state field after a time, with all its earlier values; None: it stays.

        Args:
            field: its name; ``user:`` and ``app:`` fields are those that sessions share.
            ttl_seconds: time until it expires, whatever is written to it until then.
            session: the session, for a field without prefix.
            user: the owner.
            app: the application.

        Raises:
            NotFoundError: the session does not exist.
            InvalidOptionError, ReadOnlyError, StorageError
        """
        at, prefix = self._at(ttl_seconds), prefix_of(_checked_field(field))
        if prefix == TEMPORARY or (not prefix and session is None):
            msg = f"field {field[:80]!r}: expected one that is stored; of a session, name it, too"
            raise InvalidOptionError(msg)
        bare = field[len(prefix) :]
        packed_field(bare)

        def edit(terms: Terms) -> Terms:
            kept = {name: ms for name, ms in terms.fields.items() if name != bare}
            return replace(terms, fields=kept if at is None else {**kept, bare: at})

        if prefix == APP:
            self._edit_key(lambda txn: scope_terms(names.ensure_app_scope(txn, app)), edit)
        elif prefix == USER:
            self._edit_key(lambda txn: scope_terms(names.ensure_scope(txn, app, user)), edit)
        else:
            self._edit(user, app, session, edit)
        return at

    def expire_checkpoint(
        self,
        session: str,
        checkpoint: int | str,
        ttl_seconds: float | None,
        *,
        user: str = "default",
        app: str = "default",
    ) -> int | None:
        """Expire a session's checkpoint after a time, by number or the newest of a name.

        Raises:
            NotFoundError: the session or checkpoint does not exist.
            InvalidOptionError, ReadOnlyError, StorageError
        """
        at = self._at(ttl_seconds)
        which = _checked_checkpoint(checkpoint)
        self._need_writable()

        def closure(txn: Txn) -> None:
            key = self._need(txn, user, app, session)
            scope = names.scope_of(txn, app, user) or 0
            place = scope, names.session_of(txn, scope, session) or 0
            number = _checkpoint_of(txn, place, which)
            terms = read_terms(txn, key)
            kept = {n: ms for n, ms in terms.checkpoints.items() if n != number}
            if at is not None:
                kept[number] = at
            write_terms(txn, key, replace(terms, name=session, checkpoints=kept))

        self._engine.store.transact(closure)
        return at

    def expire_thread(
        self,
        thread: str,
        ttl_seconds: float | None,
        *,
        user: str = "default",
        app: str = "default",
    ) -> int | None:
        """Expire a graph thread after a time, with all its checkpoints; None: it stays.

        Raises:
            NotFoundError: the thread does not exist.
            InvalidOptionError, ReadOnlyError, StorageError
        """
        at = self._at(ttl_seconds)
        self._edit_thread(thread, user, app, lambda terms: replace(terms, expires_ms=at))
        return at

    def terms(
        self, *, user: str | None = None, app: str | None = None, session: str | None = None
    ) -> dict[str, Any]:
        """Return the terms of the database, a user or a session as a mapping; empty: none.

        Raises:
            InvalidOptionError: a name is no str.
        """
        _check_names(user=user, app=app, session=session)

        def look(txn: ReadTxn) -> Terms | None:
            key = self._find(txn, user, app, session)
            return None if key is None else read_terms(txn, key)

        found = self._engine.store.read(look)
        return {} if found is None else mapping_of(found)

    # --- places -----------------------------------------------------------------------------------

    def _find(
        self, txn: ReadTxn, user: str | None, app: str | None, session: str | None
    ) -> bytes | None:
        if user is None and app is None and session is None:
            return scope_terms(0)
        if session is None:
            places = {own: scope for scope, own in scopes_of(txn, user or "default", app)}
            first = places.get("default", next(iter(places.values()), None))
            return None if first is None else scope_terms(first)
        scope = names.scope_of(txn, app or "default", user or "default")
        if scope is None:
            return None
        number = names.session_of(txn, scope, session)
        return None if number is None else session_terms(scope, number)

    def _need(self, txn: ReadTxn, user: str | None, app: str | None, session: str) -> bytes:
        key = self._find(txn, user, app, session)
        if key is None:
            msg = (
                f"there is no session {session[:80]!r} of user {user or 'default'!r} in app "
                f"{app or 'default'!r}"
            )
            raise NotFoundError(msg)
        return key

    def _edit(self, user: str | None, app: str | None, session: str | None, edit: Edit) -> None:
        for name, what in ((user, "user"), (app, "app"), (session, "session")):
            if name is not None:
                names.check_name(name, what)

        def places(txn: Txn) -> list[bytes]:
            if session is not None:
                return [self._need(txn, user, app, session)]
            if user is None and app is None:
                return [scope_terms(0)]
            owner = user or "default"
            found = [scope_terms(scope) for scope, _ in scopes_of(txn, owner, app)]
            return found or [scope_terms(names.ensure_scope(txn, app or "default", owner))]

        named = "" if session is None else session
        self._edit_keys(places, lambda terms: replace(edit(terms), name=named))

    def _edit_thread(self, thread: str, user: str, app: str, edit: Edit) -> None:
        for name, what in ((user, "user"), (app, "app"), (thread, "thread")):
            names.check_name(name, what)

        def place(txn: Txn) -> bytes:
            scope = names.scope_of(txn, app, user)
            found = None if scope is None else thread_of(txn, scope, thread)
            if found is None:
                msg = f"there is no thread {thread[:80]!r} of user {user!r} in app {app!r}"
                raise NotFoundError(msg)
            return _terms_of(found)

        self._edit_key(place, lambda terms: replace(edit(terms), name=thread))

    def _edit_key(self, place: Callable[[Txn], bytes], edit: Edit) -> None:
        self._edit_keys(lambda txn: [place(txn)], edit)

    def _edit_keys(self, places: Callable[[Txn], list[bytes]], edit: Edit) -> None:
        self._need_writable()

        def closure(txn: Txn) -> None:
            for key in places(txn):
                before = _readable(txn, key)
                after = edit(before)
                if after != before:
                    write_terms(txn, key, after)

        self._engine.store.transact(closure)

    def _at(self, ttl_seconds: float | None) -> int | None:
        if ttl_seconds is None:
            return None
        is_number = isinstance(ttl_seconds, int | float) and not isinstance(ttl_seconds, bool)
        if not is_number or not 0 < ttl_seconds <= _TTL_SECONDS_MAX:
            msg = (
                f"ttl_seconds: expected more than 0 and up to {_TTL_SECONDS_MAX:,} seconds, or "
                f"None, got {shown(ttl_seconds)}"
            )
            raise InvalidOptionError(msg)
        return self._engine.now_ms() + math.ceil(ttl_seconds * 1000)

    def _need_writable(self) -> None:
        if self._engine.store.read_only:
            msg = "the database is open read-only; open it for writing"
            raise ReadOnlyError(msg)


def _terms_of(thread: Thread) -> bytes:
    return thread_terms(thread.place.scope, thread.place.thread)


def _readable(txn: ReadTxn, key: bytes) -> Terms:
    """Read the terms of a place; damaged ones count as empty and are about to be rewritten."""
    try:
        return read_terms(txn, key)
    except CorruptValueError:
        return Terms()


def _check_names(**given: str | None) -> None:
    for what, name in given.items():
        checked_optional_text(what, name)


def _checked_field(name: object) -> str:
    if not isinstance(name, str) or not name:
        msg = f"field: expected the name of a state field, got {shown(name)}"
        raise InvalidOptionError(msg)
    return name


def _checked_checkpoint(which: object) -> int | str:
    """Return the name of a checkpoint, or its number, which is written into the row of terms.

    Raises:
        InvalidOptionError: it is neither.
    """
    return which if isinstance(which, str) else checked_int("checkpoint", which)


def _checkpoint_of(txn: ReadTxn, place: tuple[int, int], which: int | str) -> int:
    for number in _numbers(txn, place, which):
        try:
            saved = read_checkpoint(txn, *place, number)
        except CorruptValueError:
            continue  # its name is unknown
        if saved is not None and which in (number, saved.checkpoint.name):
            return number
    msg = f"the session has no checkpoint {which!r:.80}; session.checkpoints() lists them"
    raise NotFoundError(msg)


def _numbers(txn: ReadTxn, place: tuple[int, int], which: int | str) -> Iterator[int]:
    if isinstance(which, int):
        return iter((which,) if which < SEQ_END else ())
    return checkpoint_numbers(txn, *place, newest_first=True)


def mapping_of(terms: Terms) -> dict[str, Any]:
    """Convert terms to a JSON mapping."""
    found: dict[str, Any] = {}
    if terms.rules is not None:
        found["rules"] = list(terms.rules)
    if terms.expires_ms is not None:
        found["expires_ms"] = terms.expires_ms
    if terms.fields:
        found["fields"] = dict(terms.fields)
    if terms.checkpoints:
        found["checkpoints"] = {str(number): at for number, at in terms.checkpoints.items()}
    return found
