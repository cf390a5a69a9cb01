"""What is known of a session's branches besides their items: rows of one key/value namespace.

They are read and written inside whatever transaction a caller has, so that a branch and its name,
or an item that goes and the usage of its turn, change in one commit. The keys of a session begin
with a digest of its id:

- ``generation``: another number after every clear; it is there once there was a branch
- ``branch/DIGEST``: a branch id that was used; it stays
- ``usage/DIGEST/TURN``: what a run used
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from memcore import names
from memcore.adapters.openai_agents.place import MAIN, branch_name_of, digest_of
from memcore.database import Scope
from memcore.database.scope import backing_of
from memcore.kv.lent import KeyValueTxn, KeyValueView
from memcore.kv.namespace import Reader, Writer
from memcore.session import Address, start_removal
from memcore.session.changes import Closure
from memcore.store.base import ReadTxn, Txn

__all__ = ["Book", "Branch", "Page", "WritablePage", "clearing"]

_NAMESPACE: Final = "openai_agents.branches"
_DIGEST_CHARS: Final = 32


class Branch(NamedTuple):
    """A branch id that was used; whether there are items under it is the sessions' to say."""

    branch_id: str
    created_ms: int


class Page:
    """The rows of one session in one snapshot."""

    def __init__(self, view: KeyValueView, prefix: str) -> None:
        self._view = view
        self._prefix = prefix

    def generation(self) -> int | None:
        """Which life of the session it is; None if it never had a branch but the first."""
        found = self._view.get(self._prefix + "generation")
        return None if found is None else found["number"]

    def branches(self) -> list[Branch]:
        """The ids that were ever used, but that of the first branch."""
        rows = self._view.scan(prefix=self._prefix + "branch/")
        return [Branch(row["branch_id"], row["created_ms"]) for _, row in rows]

    def is_used(self, branch_id: str) -> bool:
        """Whether a branch had this id at any time."""
        return branch_id == MAIN or self._view.get(self._branch_key(branch_id)) is not None

    def usage(self, branch_id: str | None) -> Iterator[dict[str, Any]]:
        """What was stored of a branch's turns in their order; None: of all branches."""
        for _, row in self._view.scan(prefix=self._usage_prefix(branch_id)):
            yield row

    def usage_of(self, branch_id: str, turn: int) -> dict[str, Any] | None:
        """What was stored of one turn."""
        found: dict[str, Any] | None = self._view.get(self._usage_key(branch_id, turn))
        return found

    def _branch_key(self, branch_id: str) -> str:
        return f"{self._prefix}branch/{_short(branch_id)}"

    def _usage_prefix(self, branch_id: str | None) -> str:
        rows = self._prefix + "usage/"
        return rows if branch_id is None else f"{rows}{_short(branch_id)}/"

    def _usage_key(self, branch_id: str, turn: int) -> str:
        return f"{self._usage_prefix(branch_id)}{turn:016d}"


class WritablePage(Page):
    """The rows of one session in a write transaction."""

    def __init__(self, txn: KeyValueTxn, prefix: str, session_id: str) -> None:
        super().__init__(txn, prefix)
        self._txn = txn
        self._session_id = session_id

    def add_branch(self, branch_id: str, *, now_us: int) -> int:
        """Take a branch id for good; the session's generation."""
        row = {"branch_id": branch_id, "created_ms": now_us // 1000}
        self._txn.put(self._branch_key(branch_id), row)
        generation = self.generation()
        return self._begin(now_us) if generation is None else generation

    def put_usage(self, branch_id: str, row: dict[str, Any]) -> None:
        """Store what a turn used in the place of what was stored of it."""
        self._txn.put(self._usage_key(branch_id, row["user_turn_number"]), row)

    def last_usage(self, branch_id: str) -> dict[str, Any] | None:
        """What was stored of the last turn that has any."""
        prefix = self._usage_prefix(branch_id)
        for _, row in self._txn.scan(prefix=prefix, reverse=True, limit=1):
            found: dict[str, Any] = row
            return found
        return None

    def delete_usage(self, branch_id: str, turn: int | None = None) -> int:
        """Delete what was stored of a turn, or of all turns of a branch; how many rows went."""
        if turn is not None:
            return int(self._txn.delete(self._usage_key(branch_id, turn)))
        return self._delete(self._usage_prefix(branch_id))

    def clear(self, *, now_us: int) -> None:
        """The session was cleared: nothing was used, and who is in a branch learns of it."""
        self._delete(self._usage_prefix(None))
        if self.generation() is not None:
            self._begin(now_us)

    def forget(self) -> None:
        """Delete all rows."""
        self._delete(self._prefix)

    def _begin(self, now_us: int) -> int:
        generation = max(now_us, (self.generation() or 0) + 1)
        row = {"session_id": self._session_id, "number": generation}
        self._txn.put(self._prefix + "generation", row)
        return generation

    def _delete(self, prefix: str) -> int:
        gone = [key for key, _ in self._txn.scan(prefix=prefix)]
        for key in gone:
            self._txn.delete(key)
        return len(gone)


class Book:
    """Opens the rows of one session in whatever transaction there is."""

    def __init__(self, scope: Scope | Address, session_id: str) -> None:
        self._scope = scope
        self._session_id = session_id
        self._prefix = _short(session_id) + "/"

    def reading(self, txn: ReadTxn) -> Page:
        """The rows as a snapshot has them."""
        reader = Reader(txn, self._find, backing_of(self._scope).now_ms())
        return Page(KeyValueView(lambda: reader), self._prefix)

    def writing(self, txn: Txn) -> WritablePage:
        """The rows, to be changed."""
        writer = Writer(txn, self._find, self._ensure, backing_of(self._scope).now_ms())
        return WritablePage(KeyValueTxn(lambda: writer), self._prefix, self._session_id)

    def _find(self, txn: ReadTxn) -> tuple[int, int] | None:
        scope = names.scope_of(txn, self._scope.app, self._scope.user)
        number = None if scope is None else names.namespace_of(txn, scope, _NAMESPACE)
        return None if scope is None or number is None else (scope, number)

    def _ensure(self, txn: Txn) -> tuple[int, int]:
        scope = names.ensure_scope(txn, self._scope.app, self._scope.user)
        return scope, names.ensure_namespace(txn, scope, _NAMESPACE)


def clearing(
    scope: Scope,
    session_id: str,
    *,
    forget: bool = False,
    unless: Callable[[Txn, int, list[str]], bool] | None = None,
) -> Closure[tuple[bool, list[bytes]]]:
    """The closure that removes a session and its branches in one commit.

    Args:
        scope: whose it is.
        session_id: which.
        forget: free the ids of its branches, too; who is in one of them is in the first one then.
        unless: given the scope's number and the names of all branches, tells to leave all be.

    Returns:
        Whether there was something, and what is left to remove, for ``resume_removals``.
    """
    book, backing = Book(scope, session_id), backing_of(scope)

    def closure(txn: Txn) -> tuple[bool, list[bytes]]:
        number = names.scope_of(txn, scope.app, scope.user)
        if number is None:
            return False, []
        page = book.writing(txn)
        ids = [MAIN, *(branch.branch_id for branch in page.branches())]
        stored = [branch_name_of(session_id, branch_id) for branch_id in ids]
        if unless is not None and unless(txn, number, stored):
            return False, []
        found = False
        rest: list[bytes] = []
        try:
            for name in stored:
                there, left = start_removal(txn, backing, number, name)
                found, rest = found or there, rest + left
            if forget:
                page.forget()
            else:
                page.clear(now_us=backing.now_us())
        except BaseException:
            txn.spoil()
            raise
        return found, rest

    return closure


def _short(text: str) -> str:
    return digest_of(text)[:_DIGEST_CHARS]
