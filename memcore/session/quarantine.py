"""Quarantine: what a guard put aside in one scope, listed, released or dropped by an operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from memcore import names
from memcore.errors import BlockedError, NotFoundError, ReadOnlyError
from memcore.log.quarantine import drop_held, held_in, read_held
from memcore.model import Message
from memcore.privacy.guard import is_operator
from memcore.session.backing import Backing
from memcore.session.rewriting import rewrite_items
from memcore.store.base import ReadTxn, Txn

__all__ = ["Quarantine", "Quarantined"]

T = TypeVar("T")


class Quarantined(NamedTuple):
    """An item that was put aside; the log holds a placeholder under its seq."""

    session_id: str
    """Empty where the session was deleted and only its forks live on."""
    seq: int
    source: str
    """Who said it, as guards were told."""
    reason: str
    message: Message


class Quarantine:
    """The quarantine of a scope: the handle ``scope.quarantine``."""

    def __init__(self, backing: Backing, find: Callable[[ReadTxn], int | None], label: str) -> None:
        self._backing = backing
        self._find = find
        self._label = label

    def __repr__(self) -> str:
        return f"Quarantine({self._label})"

    def __iter__(self) -> Iterator[Quarantined]:
        return iter(self.list())

    def __len__(self) -> int:
        return len(self.list())

    def __bool__(self) -> bool:
        return True

    def list(self, session_id: str | None = None) -> list[Quarantined]:
        """What is put aside, in the order of sessions and seqs; of one session or of all.

        Raises:
            CorruptValueError: a row is damaged.
        """

        def look(txn: ReadTxn) -> list[Quarantined]:
            scope = self._find(txn)
            if scope is None:
                return []
            named = {number: name for name, number in names.sessions(txn, scope)}
            found = (
                Quarantined(named.get(held.session, ""), *held[1:]) for held in held_in(txn, scope)
            )
            return [each for each in found if session_id in (None, each.session_id)]

        return self._backing.store.read(look)

    def release(self, session_id: str, seq: int) -> None:
        """Put an original in the place of its placeholder, for everybody who sees the item.

        It counts as many tokens as before: the placeholder was counted as the original.

        Raises:
            NotFoundError: nothing is put aside there.
            BlockedError: outside ``memcore.as_operator()``.
            ReadOnlyError, CorruptValueError, StorageError
        """
        self._need_operator("released")

        def look(txn: ReadTxn) -> tuple[int, int, Message]:
            scope, session = self._place(txn, session_id)
            held = read_held(txn, scope, session, seq)
            if held is None:
                raise self._missing(session_id, seq)
            return scope, session, held.message

        done = False
        while not done:  # the placeholder was written anew meanwhile
            scope, session, message = self._backing.store.read(look)
            done = self._put_back(scope, session, seq, message)

    def _put_back(self, scope: int, session: int, seq: int, message: Message) -> bool:
        """Let go of an original in the commit that shows it; whether the placeholder was there."""
        done = rewrite_items(
            self._backing,
            scope,
            session,
            {seq: message},
            may_grow=True,
            along=lambda txn: drop_held(txn, scope, session, seq),
        )
        return bool(done.seqs)

    def drop(self, session_id: str, seq: int) -> None:
        """Remove an original; the placeholder stays. Raises what ``release`` raises."""
        self._need_operator("dropped")

        def closure(txn: Txn) -> None:
            if not drop_held(txn, *self._place(txn, session_id), seq):
                raise self._missing(session_id, seq)

        self._backing.store.transact(closure, makes_room=True)

    def _place(self, txn: ReadTxn, session_id: str) -> tuple[int, int]:
        scope = self._find(txn)
        session = None if scope is None else names.session_of(txn, scope, session_id)
        if scope is None or session is None:
            msg = f"there is no session {session_id!r} in the scope of {self._label}"
            raise NotFoundError(msg)
        return scope, session

    def _missing(self, session_id: str, seq: int) -> NotFoundError:
        msg = f"item {seq} of session {session_id!r} is not in the quarantine of {self._label}"
        return NotFoundError(msg)

    def _need_operator(self, what: str) -> None:
        if self._backing.store.read_only:
            msg = "the database is open read-only; open it for writing"
            raise ReadOnlyError(msg)
        if not is_operator():
            msg = (
                f"what is in the quarantine is {what} by an operator alone: call it inside 'with "
                "memcore.as_operator():'"
            )
            raise BlockedError(msg, reason="no operator")
