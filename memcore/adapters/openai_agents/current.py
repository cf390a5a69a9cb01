"""Which branch of a session an instance is in.

Each instance has its own. A branch other than the first is left when the session is cleared by
whomever: its generation is compared inside every transaction that writes to it.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from memcore.adapters.openai_agents.book import Book
from memcore.adapters.openai_agents.history import Bound, History, Place, options_in
from memcore.adapters.openai_agents.place import MAIN, branch_name_of
from memcore.database import Scope
from memcore.database.scope import backing_of
from memcore.errors import NotFoundError
from memcore.log import Draft
from memcore.session import Address
from memcore.store.base import Txn

__all__ = ["BranchGone", "Current"]

_BOUNDS: Final = 8


class BranchGone(NotFoundError):  # noqa: N818 - who meets it looks again, in "main"
    """The session was cleared, and its branches with it."""


class Pointer(NamedTuple):
    """A branch, and in which life of the session it was entered."""

    branch_id: str
    generation: int


class BranchAddress(Address):
    """The address of a branch; nothing is written to it once the session was cleared."""

    __slots__ = ("_book", "_generation")

    def __init__(self, scope: Scope, name: str, book: Book, generation: int) -> None:
        super().__init__(backing_of(scope), scope.app, scope.user, name, options_in(scope))
        self._book = book
        self._generation = generation

    def draft(self, txn: Txn, *, create: bool) -> Draft | None:
        """As ``Address.draft``.

        Raises:
            BranchGone: the session was cleared meanwhile.
        """
        if self._book.reading(txn).generation() != self._generation:
            msg = f"the session was cleared, and its branch {self.name!r:.80} with it"
            raise BranchGone(msg)
        return super().draft(txn, create=create)


class Current(History):
    """The current branch of an instance, and what its calls are bound to by it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._pointers: dict[Place, Pointer] = {}
        self._bounds: dict[tuple[Place, Pointer], Bound] = {}
        super().__init__(*args, **kwargs)

    @property
    def current_branch_id(self) -> str:
        """The branch that calls work in which name none; with ``scope_of``, see ``branch_in``."""
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
        """Make the first branch the current one."""
        self._pointers.pop(self.place_in(scope), None)

    def bound_in(self, scope: Scope) -> Bound:
        """As ``History.bound_in``, in the current branch."""
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
        """As ``bound``, to read a branch; None: the current one."""
        scope = self.scope_for(wrapper)
        if branch_id is None or branch_id == self.branch_in(scope):
            return self.bound_in(scope)
        name = branch_name_of(self.session_id, branch_id)
        address = Address(backing_of(scope), scope.app, scope.user, name, options_in(scope))
        return self.bound_to(address, branch_id)

    def _pointer_in(self, scope: Scope) -> Pointer | None:
        pointer = self._pointers.get(self.place_in(scope))
        if pointer is None:
            return None
        book = self.book_of(scope)
        if (
            backing_of(scope).store.read(lambda txn: book.reading(txn).generation())
            == pointer.generation
        ):
            return pointer
        self.leave_branch(scope)
        return None
