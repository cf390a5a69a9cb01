"""Branches of a session: forks that share its history, so that each costs the same at any length.

A branch is a session of memcore under a name of its own. Which ids were used is written in the
commit of the fork, and stays: no id stands for two branches.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, NamedTuple

from memcore.adapters.openai_agents.book import WritablePage
from memcore.adapters.openai_agents.current import BranchGone
from memcore.adapters.openai_agents.history import Bound, finish_removal, options_in
from memcore.adapters.openai_agents.place import MAIN, branch_name_of
from memcore.adapters.openai_agents.turns import USERS, Spot, moment_of, spot_of
from memcore.adapters.openai_agents.usage import Usage
from memcore.aio.commit import commit_to
from memcore.database import Scope
from memcore.database.scope import backing_of
from memcore.log import SessionLog
from memcore.model import ItemKind
from memcore.session import Address, Changes, Reading, start_removal
from memcore.session.changes import Closure
from memcore.session.reading import head_of
from memcore.store.base import ReadTxn, Txn

__all__ = ["Branches"]


class Moved(Exception):  # noqa: N818 - a signal: look again
    """The turn to branch from is not where it was."""


class Seen(NamedTuple):
    """A branch as a snapshot has it."""

    items: int
    turns: int
    created_ms: int


class Branches(Usage):
    """The branches of ``AdvancedSQLiteSession``, under its names."""

    async def create_branch_from_turn(
        self, turn_number: int, branch_name: str | None = None, *, wrapper: Any = None
    ) -> str:
        """Begin a branch with what stands before a turn of the current one, and switch to it.

        Nothing is copied, and the branch and its name are there in one commit.

        Args:
            turn_number: the user message to branch from, which is not part of the branch.
            branch_name: an id that no branch of this session ever had; None: one is made.
            wrapper: the Runner's context wrapper.

        Returns:
            The branch's id.

        Raises:
            ValueError: there is no such turn, or the name is blank or was used.
            RuntimeError: the session is closed.
        """
        if branch_name is not None and not branch_name.strip():
            msg = "Branch name cannot be empty"
            raise ValueError(msg)
        scope = self.scope_for(wrapper)
        while True:
            bound = self.bound_in(scope)
            await self.remove_due(bound)
            if bound.address.passage is not None:
                bound.address.passage.name(branch_name, "name of a branch")
            spot = bound.session.sync.reading.run(
                lambda log, txn: spot_of(log, txn, turn_number), None
            )
            if spot is None:
                msg = (
                    f"Turn {turn_number} does not contain a user message in branch '{bound.branch}'"
                )
                raise ValueError(msg)
            branching = self._branching(scope, bound, spot, (turn_number, branch_name))
            try:
                branch_id, generation = await commit_to(backing_of(scope).store, branching)
            except (BranchGone, Moved):
                continue
            self.enter_branch(scope, branch_id, generation)
            self._logger.debug(
                "Created branch '%s' from turn %s in '%s'", branch_id, turn_number, bound.branch
            )
            return branch_id

    def _branching(
        self, scope: Scope, bound: Bound, spot: Spot, wanted: tuple[int, str | None]
    ) -> Closure[tuple[str, int]]:
        """The closure that makes a branch; its id and the session's generation."""
        address, book = bound.address, self.book_of(scope)
        changes = Changes(address)

        def closure(txn: Txn) -> tuple[str, int]:
            draft = address.draft(txn, create=False)
            if (
                draft is None
                or draft.log.place != spot.place
                or draft.position_of(spot.seq) is None
            ):
                raise Moved
            page = book.writing(txn)
            branch_id = _unused(page, *wanted)
            target = address.beside(branch_name_of(self.session_id, branch_id), policy=None)
            changes.fork(target, spot.before)(txn)
            try:
                return branch_id, page.add_branch(branch_id, now_us=backing_of(scope).now_us())
            except BaseException:
                txn.spoil()
                raise

        return closure

    async def create_branch_from_content(
        self, search_term: str, branch_name: str | None = None, *, wrapper: Any = None
    ) -> str:
        """As ``create_branch_from_turn``, from the first turn whose text holds a term.

        Raises:
            ValueError: no turn does, or the name is blank or was used.
            RuntimeError: the session is closed.
        """
        found = await self.find_turns_by_content(search_term, wrapper=wrapper)
        if not found:
            msg = f"No user turns found containing '{search_term}'"
            raise ValueError(msg)
        return await self.create_branch_from_turn(found[0]["turn"], branch_name, wrapper=wrapper)

    async def switch_to_branch(self, branch_id: str, *, wrapper: Any = None) -> None:
        """Make another branch the current one of this instance.

        Raises:
            ValueError: it has no items, or never was.
            RuntimeError: the session is closed.
        """
        scope = self.scope_for(wrapper)
        book = self.book_of(scope)
        # The generation first: a clear behind it is found out with the branch's first use.
        generation = backing_of(scope).store.read(lambda txn: book.reading(txn).generation())
        if not self._seen(scope, branch_id).items:
            raise _unknown(branch_id)
        old = self.branch_in(scope)
        self.enter_branch(scope, branch_id, generation or 0)
        self._logger.info("Switched from branch '%s' to '%s'", old, branch_id)

    async def delete_branch(
        self, branch_id: str, force: bool = False, *, wrapper: Any = None
    ) -> None:
        """Delete a branch with its usage; what other branches share with it stays.

        Its id stays taken.

        Args:
            branch_id: which; never ``"main"``.
            force: delete the current branch, too, and switch to ``"main"``.
            wrapper: the Runner's context wrapper.

        Raises:
            ValueError: there is no such branch, or it may not be deleted.
            RuntimeError: the session is closed.
        """
        if not branch_id or not branch_id.strip():
            msg = "Branch ID cannot be empty"
            raise ValueError(msg)
        if branch_id == MAIN:
            msg = "Cannot delete the 'main' branch"
            raise ValueError(msg)
        scope = self.scope_for(wrapper)
        if branch_id == self.branch_in(scope):
            if not force:
                msg = (
                    f"Cannot delete current branch '{branch_id}'. "
                    "Use force=True or switch branches first"
                )
                raise ValueError(msg)
            if not self._seen(scope, branch_id).items:
                raise _unknown(branch_id)
            await self.switch_to_branch(MAIN, wrapper=wrapper)
        deleting = self._deleting(scope, branch_id)
        usage, rest = await commit_to(backing_of(scope).store, deleting, makes_room=True)
        self._logger.info("Deleted branch '%s': %s usage entries", branch_id, usage)
        await finish_removal(self.bound_in(scope), rest)

    def _deleting(self, scope: Scope, branch_id: str) -> Closure[tuple[int, list[bytes]]]:
        """The closure that deletes a branch; how many usage rows went, what is left to remove."""
        address, book = self._address_of(scope, branch_id), self.book_of(scope)

        def closure(txn: Txn) -> tuple[int, list[bytes]]:
            draft = address.draft(txn, create=False)
            if draft is None or not draft.count:
                raise _unknown(branch_id)
            number = draft.log.scope
            usage = book.writing(txn).delete_usage(branch_id)
            return usage, start_removal(txn, backing_of(scope), number, address.name)[1]

        return closure

    async def list_branches(self, *, wrapper: Any = None) -> list[dict[str, Any]]:
        """The branches that have items, oldest first.

        Returns:
            Dicts of ``branch_id``, ``message_count``, ``user_turns``, ``is_current`` and
            ``created_at`` (UTC).

        Raises:
            RuntimeError: the session is closed.
        """
        scope = self.scope_for(wrapper)
        book, current = self.book_of(scope), self.branch_in(scope)
        used = backing_of(scope).store.read(lambda txn: book.reading(txn).branches())
        found = []
        for branch_id in (MAIN, *(branch.branch_id for branch in used)):
            seen = self._seen(scope, branch_id)
            await asyncio.sleep(0)
            if seen.items:
                found.append(
                    {
                        "branch_id": branch_id,
                        "message_count": seen.items,
                        "user_turns": seen.turns,
                        "is_current": branch_id == current,
                        "created_at": moment_of(seen.created_ms / 1e3),
                    }
                )
        return sorted(found, key=lambda row: (row["created_at"], row["branch_id"]))

    def _seen(self, scope: Scope, branch_id: str) -> Seen:
        def look(log: SessionLog, txn: ReadTxn) -> Seen:
            head = head_of(log)
            ledger = log.full(txn, head).ledger
            events = ledger.count_of(1 << ItemKind.EVENT, 0)
            return Seen(head.count - events, ledger.count_of(USERS, 0), head.created_ms)

        return Reading(self._address_of(scope, branch_id)).run(look, Seen(0, 0, 0))

    def _address_of(self, scope: Scope, branch_id: str) -> Address:
        name = branch_name_of(self.session_id, branch_id)
        return Address(backing_of(scope), scope.app, scope.user, name, options_in(scope))


def _unused(page: WritablePage, turn: int, wanted: str | None) -> str:
    """The id of a new branch.

    Raises:
        ValueError: a branch had the one that is wanted.
    """
    if wanted is not None:
        if page.is_used(wanted):
            msg = f"Branch ID '{wanted}' has already been used. Choose a new branch ID."
            raise ValueError(msg)
        return wanted
    base = f"branch_from_turn_{turn}_{int(time.time())}"
    branch_id, suffix = base, 1
    while page.is_used(branch_id):
        suffix += 1
        branch_id = f"{base}_{suffix}"
    return branch_id


def _unknown(branch_id: str) -> ValueError:
    return ValueError(f"Branch '{branch_id}' does not exist")
