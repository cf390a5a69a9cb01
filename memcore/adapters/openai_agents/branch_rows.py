"""Branches of a session: their ids, the current one, and usage, as rows of a namespace.

They are read and written inside the caller's transaction, so that a branch and its id, or a removed
item and the usage of its turn, change in one commit. The keys of a session begin with a digest of
its id:

- ``generation``: a new number after every clear; exists once the session has had a branch
- ``branch/DIGEST``: a branch id that was ever used; never deleted by a clear
- ``usage/DIGEST/TURN``: the usage of a run
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from memcore.adapters.openai_agents.history import (
    MAIN,
    Bound,
    History,
    Place,
    branch_name_of,
    digest_of,
    options_in,
)
from memcore.database import Scope
from memcore.database.scope import engine_of
from memcore.errors import NotFoundError
from memcore.kv.namespace import KeyValueTxn, KeyValueView, NamespaceReader, NamespaceWriter
from memcore.log import SessionTxn
from memcore.rows import names
from memcore.session import SessionRef, start_removal
from memcore.store.interface import ReadTxn, Txn

__all__ = [
    "Book",
    "Branch",
    "BranchGone",
    "Current",
    "Page",
    "WritablePage",
    "clearing",
]


# --- Rows of a session's branches: one key/value namespace ----------------------------------------

_NAMESPACE: Final = "openai_agents.branches"
_DIGEST_CHARS: Final = 32


class Branch(NamedTuple):
    """A branch id that was ever used; whether the branch has items is recorded in its session."""

    branch_id: str
    created_ms: int


class Page:
    """The rows of one session in one snapshot."""

    def __init__(self, view: KeyValueView, prefix: str) -> None:
        self._view = view
        self._prefix = prefix

    def generation(self) -> int | None:
        """The generation of the session; None if it never had a second branch."""
        found = self._view.get(self._prefix + "generation")
        return None if found is None else found["number"]

    def branches(self) -> list[Branch]:
        """The ids that were ever used, except the main branch's."""
        rows = self._view.scan(prefix=self._prefix + "branch/")
        return [Branch(row["branch_id"], row["created_ms"]) for _, row in rows]

    def is_used(self, branch_id: str) -> bool:
        """Return whether a branch has ever had this id."""
        return branch_id == MAIN or self._view.get(self._branch_key(branch_id)) is not None

    def usage(self, branch_id: str | None) -> Iterator[dict[str, Any]]:
        """Yield the usage rows of a branch's turns, in order; None: of all branches."""
        for _, row in self._view.scan(prefix=self._usage_prefix(branch_id)):
            yield row

    def usage_of(self, branch_id: str, turn: int) -> dict[str, Any] | None:
        """The usage row of one turn; None if there is none."""
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
        """Reserve a branch id permanently; return the session's generation."""
        row = {"branch_id": branch_id, "created_ms": now_us // 1000}
        self._txn.put(self._branch_key(branch_id), row)
        generation = self.generation()
        return self._begin(now_us) if generation is None else generation

    def put_usage(self, branch_id: str, row: dict[str, Any]) -> None:
        """Store the usage of a turn, replacing any stored usage."""
        self._txn.put(self._usage_key(branch_id, row["user_turn_number"]), row)

    def last_usage(self, branch_id: str) -> dict[str, Any] | None:
        """The usage row of the last turn that has one; None if there is none."""
        prefix = self._usage_prefix(branch_id)
        for _, row in self._txn.scan(prefix=prefix, reverse=True, limit=1):
            found: dict[str, Any] = row
            return found
        return None

    def delete_usage(self, branch_id: str, turn: int | None = None) -> int:
        """Delete the usage of a turn, or of all turns of a branch.

        Return the number of rows deleted.
        """
        if turn is not None:
            return int(self._txn.delete(self._usage_key(branch_id, turn)))
        return self._delete(self._usage_prefix(branch_id))

    def clear(self, *, now_us: int) -> None:
        """Delete the usage and start a new generation, which instances on a branch notice."""
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
    """Opens the rows of one session in a given transaction."""

    def __init__(self, scope: Scope | SessionRef, session_id: str) -> None:
        self._scope = scope
        self._session_id = session_id
        self._prefix = _short(session_id) + "/"

    def reading(self, txn: ReadTxn) -> Page:
        """The rows as of a snapshot."""
        reader = NamespaceReader(txn, self._find, engine_of(self._scope).now_ms())
        return Page(KeyValueView(lambda: reader), self._prefix)

    def writing(self, txn: Txn) -> WritablePage:
        """The rows, for writing."""
        writer = NamespaceWriter(txn, self._find, self._ensure, engine_of(self._scope).now_ms())
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
) -> Callable[[Txn], tuple[bool, list[bytes]]]:
    """The closure that removes a session and its branches in one commit.

    Args:
        scope: the scope of the session.
        session_id: the session.
        forget: also free the ids of its branches; instances on one of them then use the main
            branch.
        unless: called with the scope's number and the names of all branches; True cancels the
            removal.

    Returns:
        ``(removed anything, rows left to remove)``; the rows are for ``resume_removals``.
    """
    book, engine = Book(scope, session_id), engine_of(scope)

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
                there, left = start_removal(txn, engine, number, name)
                found, rest = found or there, rest + left
            if forget:
                page.forget()
            else:
                page.clear(now_us=engine.now_us())
        except BaseException:
            txn.spoil()
            raise
        return found, rest

    return closure


def _short(text: str) -> str:
    return digest_of(text)[:_DIGEST_CHARS]


# --- The current branch of an instance ------------------------------------------------------------
# Each instance has its own. An instance on a branch other than the main one leaves it when any
# process clears the session: the generation is compared inside every transaction that writes to the
# branch.

_BOUNDS: Final = 8


class BranchGone(NotFoundError):  # noqa: N818 - a signal to retry on "main"
    """The branch no longer exists, because the session was cleared."""


class Pointer(NamedTuple):
    """A branch, and the generation of the session when it was entered."""

    branch_id: str
    generation: int


class BranchAddress(SessionRef):
    """The address of a branch; writes to it are refused once the session was cleared."""

    __slots__ = ("_book", "_generation")

    def __init__(self, scope: Scope, name: str, book: Book, generation: int) -> None:
        super().__init__(engine_of(scope), scope.app, scope.user, name, options_in(scope))
        self.always_drafts = True
        self._book = book
        self._generation = generation

    def draft(self, txn: Txn, *, create: bool, guarded: bool = True) -> SessionTxn | None:
        """As ``SessionRef.draft``.

        Raises:
            BranchGone: the session has been cleared.
        """
        if self._book.reading(txn).generation() != self._generation:
            msg = f"the session was cleared, and its branch {self.name!r:.80} with it"
            raise BranchGone(msg)
        return super().draft(txn, create=create, guarded=guarded)


class Current(History):
    """The current branch of an instance, to which its calls are bound."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._pointers: dict[Place, Pointer] = {}
        self._bounds: dict[tuple[Place, Pointer], Bound] = {}
        super().__init__(*args, **kwargs)

    @property
    def current_branch_id(self) -> str:
        """The branch of calls that do not specify one; with ``scope_of``, see ``branch_in``."""
        return self.branch_in(self._scope)

    def branch_in(self, scope: Scope) -> str:
        """The current branch of a scope's session."""
        pointer = self._pointer_in(scope)
        return MAIN if pointer is None else pointer.branch_id

    def book_of(self, scope: Scope) -> Book:
        """The rows of the session's branches."""
        return Book(scope, self.session_id)

    def enter_branch(self, scope: Scope, branch_id: str, generation: int) -> None:
        """Make a branch the current one."""
        if branch_id == MAIN:
            self.leave_branch(scope)
        else:
            self._pointers[self.place_in(scope)] = Pointer(branch_id, generation)

    def leave_branch(self, scope: Scope) -> None:
        """Make the main branch the current one."""
        self._pointers.pop(self.place_in(scope), None)

    def bound_in(self, scope: Scope) -> Bound:
        """As ``History.bound_in``, on the current branch."""
        pointer = self._pointer_in(scope)
        if pointer is None:
            return super().bound_in(scope)
        key = self.place_in(scope), pointer
        found = self._bounds.get(key)
        if found is None:
            name = branch_name_of(self.session_id, pointer.branch_id)
            address = BranchAddress(scope, name, self.book_of(scope), pointer.generation)
            found = self.bound_to(address, pointer.branch_id)
            while len(self._bounds) >= _BOUNDS:
                self._bounds.pop(next(iter(self._bounds)), None)
            self._bounds[key] = found
        return found

    def bound_at(self, branch_id: str | None, wrapper: Any = None) -> Bound:
        """As ``bound``, for reading a branch; None: the current one."""
        return self.branch_bound(self.scope_for(wrapper), branch_id)

    def branch_bound(self, scope: Scope, branch_id: str | None) -> Bound:
        """As ``bound_at``, in a scope that is known."""
        if branch_id is None or branch_id == self.branch_in(scope):
            return self.bound_in(scope)
        name = branch_name_of(self.session_id, branch_id)
        address = SessionRef(engine_of(scope), scope.app, scope.user, name, options_in(scope))
        return self.bound_to(address, branch_id)

    def _pointer_in(self, scope: Scope) -> Pointer | None:
        pointer = self._pointers.get(self.place_in(scope))
        if pointer is None:
            return None
        book = self.book_of(scope)
        if (
            engine_of(scope).store.read(lambda txn: book.reading(txn).generation())
            == pointer.generation
        ):
            return pointer
        self.leave_branch(scope)
        return None
