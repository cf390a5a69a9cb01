"""What runs used, by branch and turn; it goes with the turn that it is of."""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple, TypeVar

from agents.logger import log_model_action_error

from memcore import names
from memcore.adapters.openai_agents.book import Book
from memcore.adapters.openai_agents.current import BranchGone
from memcore.adapters.openai_agents.history import Bound
from memcore.adapters.openai_agents.place import MAIN, branch_name_of
from memcore.adapters.openai_agents.turns import USERS, Turns
from memcore.aio.commit import commit_to
from memcore.database.scope import backing_of
from memcore.errors import CorruptValueError
from memcore.log import Draft, History, SessionLog
from memcore.model import ItemKind
from memcore.session.changes import Closure
from memcore.session.handle import store_of
from memcore.session.reading import head_of
from memcore.session.renewing import Renewal, Renewed
from memcore.store.base import ReadTxn, Txn

__all__ = ["Usage"]

T = TypeVar("T")
_COUNTS: Final = ("requests", "input_tokens", "output_tokens", "total_tokens")
_DETAILS: Final = ("input_tokens_details", "output_tokens_details")


class Known(NamedTuple):
    """What a snapshot tells of the turns, for a transaction to go on from."""

    place: tuple[int, int]
    items: int
    last_seq: int
    turn: int
    anchor: int
    """The first item of the last turn."""


class Usage(Turns):
    """Usage accounting."""

    async def store_run_usage(self, result: Any) -> None:
        """Store what a run used with the last turn of the branch; it replaces what is there.

        To be called after ``Runner.run``. What is added or popped later on this session does not
        change which turn it is stored with. What goes wrong is logged, not raised.

        Args:
            result: the run's result.
        """
        try:
            usage = result.context_wrapper.usage
            if usage is not None:
                await self._store_usage(usage, result.context_wrapper)
        except Exception as exc:  # noqa: BLE001 - as the SDK does: a run's result is not lost
            log_model_action_error(
                self._logger,
                "Failed to store session usage",
                exc,
                diagnostic_extra=lambda: {"session_id": self.session_id},
            )

    async def _store_usage(self, usage: Any, wrapper: Any) -> None:
        scope = self.scope_for(wrapper)
        bound = self.bound_in(scope)
        address, book = bound.address, self.book_of(scope)
        row = {name: getattr(usage, name, 0) or 0 for name in _COUNTS}
        row |= {name: self._details(usage, name) for name in _DETAILS}
        place = None if address.log is None else address.log.place
        known = bound.session.sync.reading.run(_known, None)

        def closure(txn: Txn) -> None:
            draft = address.draft(txn, create=False)
            if draft is None or not draft.count:
                return
            if place is not None and draft.log.place != place:
                return  # cleared by somebody else: it belongs to a history that is gone
            turn, anchor = _last_turn(draft, known)
            said = {"user_turn_number": turn, **row, "anchor": [draft.log.session, anchor]}
            book.writing(txn).put_usage(bound.branch, said)

        try:
            await commit_to(store_of(bound.session.sync), closure)
        except BranchGone:
            self._logger.debug(
                "session %r was cleared: usage of a run is left out", self.session_id
            )

    def _details(self, usage: Any, name: str) -> Any:
        """The details of token counts as JSON has them, None if there are none."""
        details = getattr(usage, name, None)
        if not details:
            return None
        try:
            return json.loads(json.dumps(details.__dict__))
        except (TypeError, ValueError) as exc:
            self._logger.warning("%s cannot be written as JSON: %s", name, type(exc).__name__)
            return None

    async def get_session_usage(
        self, branch_id: str | None = None, *, wrapper: Any = None
    ) -> dict[str, int] | None:
        """The sums over the turns of a branch, of all branches without one; None: nothing is known.

        Returns:
            ``requests``, ``input_tokens``, ``output_tokens``, ``total_tokens``, ``total_turns``.

        Raises:
            RuntimeError: the session is closed.
        """
        rows = self._usage_rows(branch_id or None, wrapper)
        if not rows:
            return None
        sums: dict[str, int] = {name: sum(row[name] for row in rows) for name in _COUNTS}
        return sums | {"total_turns": len(rows)}

    async def get_turn_usage(
        self,
        user_turn_number: int | None = None,
        branch_id: str | None = None,
        *,
        wrapper: Any = None,
    ) -> list[dict[str, Any]] | dict[str, Any]:
        """What the runs of one turn used, or of each; the branch is the current one without an id.

        Returns:
            For one turn: ``requests``, ``input_tokens``, ``output_tokens``, ``total_tokens``,
            ``input_tokens_details``, ``output_tokens_details``; ``{}`` if nothing is known. For
            all: a list of such dicts with ``user_turn_number``.

        Raises:
            RuntimeError: the session is closed.
        """
        branch = self.branch_in(self.scope_for(wrapper)) if branch_id is None else branch_id
        if user_turn_number is None:
            return [_told(row) for row in self._usage_rows(branch, wrapper)]
        for row in self._usage_rows(branch, wrapper):
            if row["user_turn_number"] == user_turn_number:
                del row["user_turn_number"]
                return _told(row)
        return {}

    def _usage_rows(self, branch_id: str | None, wrapper: Any) -> list[dict[str, Any]]:
        scope = self.scope_for(wrapper)
        book = self.book_of(scope)

        def look(txn: ReadTxn) -> list[dict[str, Any]]:
            page, number = book.reading(txn), names.scope_of(txn, scope.app, scope.user)
            rows = list(page.usage(branch_id))
            if not rows or number is None:
                return []
            ids = [MAIN, *(each.branch_id for each in page.branches())]
            there = {
                names.session_of(txn, number, branch_name_of(self.session_id, each)) for each in ids
            }
            # Who renewed a session without this adapter (a sweep) has left rows of the one before.
            return [row for row in rows if row["anchor"][0] in there]

        return backing_of(scope).store.read(look)

    def beside(self, bound: Bound, closure: Closure[T]) -> Closure[T]:
        """As ``History.beside``: the usage of a turn goes with its first item."""
        address = bound.address
        book = Book(address, self.session_id)

        def both(txn: Txn) -> T:
            found = closure(txn)
            page = book.writing(txn)
            row = page.last_usage(bound.branch)
            draft = None if row is None else address.draft(txn, create=False)
            while row is not None and draft is not None and _is_over(draft, row):
                page.delete_usage(bound.branch, row["user_turn_number"])
                row = page.last_usage(bound.branch)
            return found

        return both

    def moves(self, bound: Bound) -> Renewed:
        """As ``History.moves``: usage goes on with the turns that stay, under their new numbers."""
        book = Book(bound.address, self.session_id)
        others = super().moves(bound)

        def move(txn: Txn, renewal: Renewal) -> None:
            others(txn, renewal)
            turn, turns = 0, {}
            for seq, item in enumerate(renewal.kept, 1):
                turn += item.facts[0] == ItemKind.USER
                turns[item.was] = turn, seq
            page = book.writing(txn)
            rows = list(page.usage(bound.branch))
            page.delete_usage(bound.branch)
            for row in rows:
                session, seq = row["anchor"]
                if session == renewal.old and seq in turns:
                    number, now = turns[seq]
                    row["user_turn_number"], row["anchor"] = number, [renewal.new, now]
                    page.put_usage(bound.branch, row)

        return move


def _known(log: SessionLog, txn: ReadTxn) -> Known | None:
    history = log.history
    if not history.count:
        return None
    ledger = log.full(txn, head_of(log)).ledger
    turn = ledger.count_of(USERS, 0)
    anchor = ledger.last_of(USERS, 1) if turn else 0
    last = history.seq_at(history.count - 1)
    return Known(log.place, history.count, last, turn, history.seq_at(anchor))


def _last_turn(draft: Draft, known: Known | None) -> tuple[int, int]:
    """The number of the last turn and the seq of its first item."""
    if (
        known is None
        or known.place != draft.log.place
        or known.items > draft.count
        or draft.position_of(known.last_seq) != known.items - 1
    ):
        return _counted(draft)
    turn, anchor = known.turn, known.anchor
    for row in draft.last_found(draft.count - known.items):
        if not isinstance(row, CorruptValueError) and row[3][0] == ItemKind.USER:
            turn, anchor = turn + 1, row[1]
    return turn, anchor


def _counted(draft: Draft) -> tuple[int, int]:
    draft.flush()
    txn, log = draft.txn, draft.log
    history = History(draft.head.all_segments(txn, log.scope))
    ledger = log.load(txn, history=history)
    turn = ledger.count_of(USERS, 0)
    return turn, history.seq_at(ledger.last_of(USERS, 1) if turn else 0)


def _is_over(draft: Draft, row: dict[str, Any]) -> bool:
    """Whether the turn of a usage row is gone from the history."""
    session, seq = row["anchor"]
    return session != draft.log.session or draft.position_of(seq) is None


def _told(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "anchor"}
