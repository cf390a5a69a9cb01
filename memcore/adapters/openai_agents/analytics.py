"""Turns of a session with their tools and usage; a turn is a user message and what follows it.

Items before the first user message are turn 0. A turn's number is the count of user messages up to
and including it, so it can be read off the ledger, which records the kind of every item.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any, Final, NamedTuple, TypeVar

from agents.logger import log_model_action_error

from memcore.adapters.openai_agents.branch_rows import Book, BranchGone
from memcore.adapters.openai_agents.history import (
    MAIN,
    Bound,
    Unreadable,
    branch_name_of,
    unreadable_error,
)
from memcore.adapters.openai_agents.protocol import Compacting
from memcore.aio.commit import commit_to
from memcore.codec import keys
from memcore.codec.keys import Row
from memcore.codec.values import open_value
from memcore.database.scope import engine_of
from memcore.errors import CorruptValueError
from memcore.log import CachedSession, History, SessionTxn
from memcore.model import ItemKind
from memcore.rows import names
from memcore.rows.item import split_body
from memcore.session.change import Change
from memcore.session.read import head_of, read_log
from memcore.session.session import ref_of, store_of
from memcore.session.tail import Renewal, Renewed, message_of, payload_of
from memcore.store.interface import ReadTxn, Txn

__all__ = [
    "TOOL_CALLS",
    "USERS",
    "Spot",
    "Turns",
    "Usage",
    "item_type",
    "moment_of",
    "spot_of",
    "text_of",
    "tool_name",
]


# --- Types of items, and the tools that they name, in the terms of the SDK's analytics ------------

TOOL_CALLS: Final = frozenset(
    (
        "tool_call",
        "function_call",
        "computer_call",
        "file_search_call",
        "web_search_call",
        "code_interpreter_call",
        "tool_search_call",
        "custom_tool_call",
        "mcp_call",
        "mcp_approval_request",
        "shell_call",
        "apply_patch_call",
    )
)
"""Item types that count as tool use."""
_OF_A_SERVER: Final = ("mcp_call", "mcp_approval_request")
_NAMELESS: Final = (
    "computer_call",
    "file_search_call",
    "web_search_call",
    "code_interpreter_call",
    "shell_call",
    "apply_patch_call",
)
_SEARCH: Final = ("tool_search_call", "tool_search_output")


def item_type(item: Any) -> str:
    """``"user"`` or ``"assistant"`` by role, else the item's own type, else ``"other"``."""
    if not isinstance(item, dict):
        return "other"
    role = item.get("role")
    if isinstance(role, str) and role in ("user", "assistant"):
        return role
    return str(item["type"]) if item.get("type") else "other"


def tool_name(item: Any) -> str | None:
    """The tool that an item calls or answers; None if it names none."""
    if not isinstance(item, dict):
        return None
    kind, name = item.get("type"), item.get("name")
    if kind in _OF_A_SERVER and "server_label" in item:
        parts = [str(part) for part in (item["server_label"], name) if part]
        return ".".join(parts) or None
    if kind in _NAMELESS:
        return str(kind)
    if kind in _SEARCH:
        return "tool_search"
    if name is None:
        return None
    namespace = item.get("namespace")
    called, within = str(name), "" if namespace is None else str(namespace)
    return f"{within}.{called}" if called and within and within != called else called


def text_of(content: Any) -> list[str]:
    """The texts of a user message's content, which is a string or a list of parts."""
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        return []
    texts = [part.get("text", "") for part in content if isinstance(part, dict)]
    return [text for text in texts if isinstance(text, str)]


# --- The turns of a session: a user message and what follows it, numbered from 1 ------------------

USERS: Final = 1 << ItemKind.USER
_PREVIEW_CHARS: Final = 100
_CHUNK: Final = 512


class Spot(NamedTuple):
    """The start of a turn."""

    place: tuple[int, int]
    """Scope and session number."""
    seq: int
    """The seq of the turn's user message."""
    before: int
    """The seq of the preceding item; 0 if there is none."""


class Placed(NamedTuple):
    """An item and the turn it belongs to."""

    turn: int
    item: Any
    created_us: int


def spot_of(log: CachedSession, txn: ReadTxn, turn: object) -> Spot | None:
    """The start of a turn; None if there is no such turn."""
    if not isinstance(turn, int):
        return None
    ledger = log.full(txn, head_of(log)).ledger
    count = ledger.count_of(USERS, 0)
    if not 1 <= turn <= count:
        return None
    at = ledger.last_of(USERS, count - turn + 1)
    seq_at = log.history.seq_at
    return Spot(log.place, seq_at(at), seq_at(at - 1) if at else 0)


def moment_of(seconds: float) -> str:
    """A time in the format of the SDK's databases: UTC, to the second."""
    return datetime.fromtimestamp(int(seconds), UTC).isoformat(" ")[:19]


class Turns(Compacting):
    """Turns, content search, and tool usage."""

    async def get_conversation_turns(
        self, branch_id: str | None = None, *, wrapper: Any = None
    ) -> list[dict[str, Any]]:
        """The user messages, oldest first.

        Args:
            branch_id: the branch; None: the current one.
            wrapper: the Runner's context wrapper.

        Returns:
            Dicts of ``turn``, ``content`` (its first 100 characters), ``full_content``,
            ``timestamp`` (UTC) and ``can_branch``.

        Raises:
            UnreadableItemsError: some are not readable with the session's key.
            RuntimeError: the session is closed.
        """
        found = await self._placed(self.bound_at(branch_id, wrapper), users_only=True)
        return [_turn(placed, _PREVIEW_CHARS) for placed in found if isinstance(placed.item, dict)]

    async def find_turns_by_content(
        self, search_term: str, branch_id: str | None = None, *, wrapper: Any = None
    ) -> list[dict[str, Any]]:
        """The user messages whose text contains a term, ignoring ASCII case.

        Args:
            search_term: the term.
            branch_id: the branch to search; None: the current one.
            wrapper: the Runner's context wrapper.

        Returns:
            As ``get_conversation_turns``, with full ``content``.

        Raises:
            UnreadableItemsError: some are not readable with the session's key.
            RuntimeError: the session is closed.
        """
        pattern = re.compile(re.escape(search_term), re.IGNORECASE | re.ASCII)
        found = await self._placed(self.bound_at(branch_id, wrapper), users_only=True)
        return [
            _turn(placed, None)
            for placed in found
            if isinstance(placed.item, dict)
            and any(map(pattern.search, text_of(placed.item.get("content", ""))))
        ]

    async def get_conversation_by_turns(
        self, branch_id: str | None = None, *, wrapper: Any = None
    ) -> dict[int, list[dict[str, str | None]]]:
        """The types and tools of all items, by turn: ``{turn: [{"type", "tool_name"}]}``.

        Raises:
            UnreadableItemsError: some are not readable with the session's key.
            RuntimeError: the session is closed.
        """
        turns: dict[int, list[dict[str, str | None]]] = {}
        for turn, item in await self._items(self.bound_at(branch_id, wrapper)):
            told = {"type": item_type(item), "tool_name": tool_name(item)}
            turns.setdefault(turn, []).append(told)
        return turns

    async def get_tool_usage(
        self, branch_id: str | None = None, *, wrapper: Any = None
    ) -> list[tuple[str, int, int]]:
        """The number of calls of each tool in each turn: ``(tool_name, count, turn)``.

        A tool search that left only its output counts, too.

        Raises:
            UnreadableItemsError: some are not readable with the session's key.
            RuntimeError: the session is closed.
        """
        calls: Counter[tuple[int, str | None]] = Counter()
        outputs: Counter[tuple[int, str | None]] = Counter()
        searched: set[int] = set()
        for turn, item in await self._items(self.bound_at(branch_id, wrapper)):
            kind, name = item_type(item), tool_name(item)
            if kind in TOOL_CALLS:
                calls[turn, name] += 1
            if kind == "tool_search_call":
                searched.add(turn)
            elif kind == "tool_search_output":
                outputs[turn, name] += 1
        calls.update({key: n for key, n in outputs.items() if key[0] not in searched})
        order = sorted(calls.items(), key=lambda row: (row[0][0], row[0][1] or ""))
        return [(name, count, turn) for (turn, name), count in order]  # type: ignore[misc]

    async def _items(self, bound: Bound) -> list[tuple[int, Any]]:
        """The items with their turns, from the decoded-item cache if the log is regular."""
        await self.remove_due(bound)
        found = await self._regular(bound, None)
        turns = list(accumulate(item_type(item) == "user" for item in found or ()))
        if found is None or turns[-1:] != [read_log(ref_of(bound.session.sync), _count, None)]:
            return [(placed.turn, placed.item) for placed in await self._placed(bound)]
        return list(zip(turns, found, strict=True))

    async def _placed(self, bound: Bound, *, users_only: bool = False) -> list[Placed]:
        """The items with their turns; omits unreadable ones, as ``get_items`` does."""
        await self.remove_due(bound)

        def collect(log: CachedSession, txn: ReadTxn) -> list[Any]:
            ledger = log.full(txn, head_of(log)).ledger
            wanted = _positions(map(ledger.kind_at, range(len(ledger))), users_only=users_only)
            return _rows(log, txn, wanted)

        decode, skipped = bound.coder.decode, Counter[str]()
        found: list[Placed] = []
        rows: list[Any] = read_log(ref_of(bound.session.sync), collect, [])
        for at, (turn, row) in enumerate(rows, 1):
            if at % _CHUNK == 0:
                await asyncio.sleep(0)
            try:
                message = message_of(row)
                if message is not None:
                    found.append(Placed(turn, decode(message), split_body(row[2])[1]))
            except CorruptValueError:
                continue
            except Unreadable as exc:
                skipped[str(exc)] += 1
        if skipped and not self._skips_unreadable:
            raise unreadable_error(self.session_id, skipped)
        return found


def _count(log: CachedSession, txn: ReadTxn) -> int:
    """The number of turns."""
    return log.full(txn, head_of(log)).ledger.count_of(USERS, 0)


def _positions(kinds: Iterable[int], *, users_only: bool) -> Iterator[tuple[int, int]]:
    """Yield ``(turn, position)`` of the items, or only of those that begin a turn."""
    turn = 0
    for at, kind in enumerate(kinds):
        turn += kind == ItemKind.USER
        if kind == ItemKind.USER or not (users_only or kind == ItemKind.EVENT):
            yield turn, at


def _rows(log: CachedSession, txn: ReadTxn, wanted: Iterable[tuple[int, int]]) -> list[Any]:
    """``(turn, raw item)`` for the wanted positions, omitting damaged ones."""
    found: list[Any] = []
    for turn, at in wanted:
        session, seq = log.history.locate(at)
        key = keys.session_row(log.scope, session, Row.ITEM, seq)
        value = txn.get(key)
        if value is None:
            continue
        try:
            flags, body = open_value(key, value)
            raw = seq, flags, body, payload_of(txn, log.scope, flags, body)
        except CorruptValueError:
            continue
        found.append((turn, raw))
    return found


def _turn(placed: Placed, most_chars: int | None) -> dict[str, Any]:
    content = placed.item.get("content", "")
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    if most_chars is not None and len(text) > most_chars:
        text = text[:most_chars] + "..."
    return {
        "turn": placed.turn,
        "content": text,
        "full_content": content,
        "timestamp": moment_of(placed.created_us / 1e6),
        "can_branch": True,
    }


# --- Usage of runs, by branch and turn; deleted with its turn -------------------------------------

T = TypeVar("T")
_COUNTS: Final = ("requests", "input_tokens", "output_tokens", "total_tokens")
_DETAILS: Final = ("input_tokens_details", "output_tokens_details")


class Known(NamedTuple):
    """The last turn as of a snapshot, from which a transaction continues counting."""

    place: tuple[int, int]
    items: int
    last_seq: int
    turn: int
    anchor: int
    """The seq of the last turn's first item."""


class WithUsage(Change[T]):
    """A change of a branch's items that deletes a turn's usage along with its first item."""

    __slots__ = ("book", "branch", "change", "items", "makes_room")

    def __init__(self, bound: Bound, change: Change[T], book: Book) -> None:
        self.change, self.branch, self.book = change, bound.branch, book
        self.items, self.makes_room = change.items, change.makes_room
        super().__init__(change.ref)

    def __call__(self, txn: Txn) -> T:
        """Apply the change, then delete the usage of turns that are no longer live."""
        found = self.change(txn)
        page = self.book.writing(txn)
        row = page.last_usage(self.branch)
        session = None if row is None else self.ref.draft(txn, create=False)
        while row is not None and session is not None and _is_over(session, row):
            page.delete_usage(self.branch, row["user_turn_number"])
            row = page.last_usage(self.branch)
        return found


class Usage(Turns):
    """Usage accounting."""

    async def store_run_usage(self, result: Any) -> None:
        """Store a run's usage for the last turn of the branch, replacing any earlier usage.

        Call it after ``Runner.run``. Items added or popped later on this session do not affect
        which turn it is stored for. Errors are logged, not raised.

        Args:
            result: the run's result.
        """
        try:
            usage = result.context_wrapper.usage
            if usage is not None:
                await self._store_usage(usage, result.context_wrapper)
        except Exception as exc:  # noqa: BLE001 - as in the SDK: never lose a run's result
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
        known = read_log(ref_of(bound.session.sync), _known, None)

        def closure(txn: Txn) -> None:
            draft = address.draft(txn, create=False)
            if draft is None or not draft.count:
                return
            if place is not None and draft.log.place != place:
                return  # cleared by another caller, so the usage is for deleted history
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
        """The details of token counts as JSON; None if there are none."""
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
        """The totals over the turns of a branch, or of all branches if no id is given.

        None if no usage is stored.

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
        """The usage of one turn, or of every turn, in the given or the current branch.

        Returns:
            For one turn: ``requests``, ``input_tokens``, ``output_tokens``, ``total_tokens``,
            ``input_tokens_details``, ``output_tokens_details``; ``{}`` if none is stored. For all
            turns: a list of such dicts with ``user_turn_number``.

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
            # A rewrite of the session without this adapter (by a sweep) leaves rows of the old
            # session.
            return [row for row in rows if row["anchor"][0] in there]

        return engine_of(scope).store.read(look)

    def beside(self, bound: Bound, change: Change[T]) -> Change[T]:
        """As ``History.beside``: deletes a turn's usage along with its first item."""
        return WithUsage(bound, change, Book(bound.address, self.session_id))

    def moves(self, bound: Bound) -> Renewed:
        """As ``History.moves``: moves usage to the remaining turns under their new numbers."""
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


def _known(log: CachedSession, txn: ReadTxn) -> Known | None:
    history = log.history
    if not history.count:
        return None
    ledger = log.full(txn, head_of(log)).ledger
    turn = ledger.count_of(USERS, 0)
    anchor = ledger.last_of(USERS, 1) if turn else 0
    last = history.seq_at(history.count - 1)
    return Known(log.place, history.count, last, turn, history.seq_at(anchor))


def _last_turn(draft: SessionTxn, known: Known | None) -> tuple[int, int]:
    """The number of the last turn, and the seq of its first item."""
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


def _counted(draft: SessionTxn) -> tuple[int, int]:
    draft.flush()
    txn, log = draft.txn, draft.log
    history = History(draft.head.all_segments(txn, log.scope))
    ledger = log.load(txn, history=history)
    turn = ledger.count_of(USERS, 0)
    return turn, history.seq_at(ledger.last_of(USERS, 1) if turn else 0)


def _is_over(draft: SessionTxn, row: dict[str, Any]) -> bool:
    """Return whether the turn of a usage row is no longer in the history."""
    session, seq = row["anchor"]
    return session != draft.log.session or draft.position_of(seq) is None


def _told(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "anchor"}
