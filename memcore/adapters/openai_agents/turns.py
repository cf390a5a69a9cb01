"""The turns of a session: a user message and what follows it, numbered from 1.

What stands before the first user message is turn 0. A turn's number is how many user messages
there are up to it, so it is read off the ledger, which knows the kind of every item.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any, Final, NamedTuple

from memcore import keys
from memcore.adapters.openai_agents.compacting import Compacting
from memcore.adapters.openai_agents.history import Bound
from memcore.adapters.openai_agents.items import Unreadable
from memcore.adapters.openai_agents.kinds import TOOL_CALLS, item_type, text_of, tool_name
from memcore.adapters.openai_agents.sealing import unreadable_error
from memcore.codec import open_value
from memcore.errors import CorruptValueError
from memcore.keys import Row
from memcore.log import SessionLog
from memcore.log.item import split_body
from memcore.model import ItemKind
from memcore.session.ending import message_of, payload_of
from memcore.session.reading import head_of
from memcore.store.base import ReadTxn

__all__ = ["USERS", "Spot", "Turns", "moment_of", "spot_of"]

USERS: Final = 1 << ItemKind.USER
_PREVIEW_CHARS: Final = 100
_CHUNK: Final = 512


class Spot(NamedTuple):
    """Where a turn begins."""

    place: tuple[int, int]
    """Which session of which scope it is."""
    seq: int
    """Its user message."""
    before: int
    """The item in front of it, 0 if there is none."""


class Placed(NamedTuple):
    """An item and the turn that it belongs to."""

    turn: int
    item: Any
    created_us: int


def spot_of(log: SessionLog, txn: ReadTxn, turn: object) -> Spot | None:
    """Where a turn begins, None if there is no such turn. For ``Reading.run``."""
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
    """A time as the SDK's databases tell it: UTC, to the second."""
    return datetime.fromtimestamp(int(seconds), UTC).isoformat(" ")[:19]


class Turns(Compacting):
    """Turns, the search in them, and the tools that were used."""

    async def get_conversation_turns(
        self, branch_id: str | None = None, *, wrapper: Any = None
    ) -> list[dict[str, Any]]:
        """The user messages, oldest first.

        Args:
            branch_id: of which branch; None: of the current one.
            wrapper: the Runner's context wrapper.

        Returns:
            Dicts of ``turn``, ``content`` (its first 100 characters), ``full_content``,
            ``timestamp`` (UTC) and ``can_branch``.

        Raises:
            UnreadableItemsError: some are encrypted otherwise.
            RuntimeError: the session is closed.
        """
        found = await self._placed(self.bound_at(branch_id, wrapper), users_only=True)
        return [_turn(placed, _PREVIEW_CHARS) for placed in found if isinstance(placed.item, dict)]

    async def find_turns_by_content(
        self, search_term: str, branch_id: str | None = None, *, wrapper: Any = None
    ) -> list[dict[str, Any]]:
        """The user messages whose text holds a term, whatever the case of its ASCII letters.

        Args:
            search_term: what to look for.
            branch_id: in which branch; None: in the current one.
            wrapper: the Runner's context wrapper.

        Returns:
            As ``get_conversation_turns``, with ``content`` in full.

        Raises:
            UnreadableItemsError: some are encrypted otherwise.
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
        """The types and tools of all items by turn: ``{turn: [{"type", "tool_name"}]}``.

        Raises:
            UnreadableItemsError: some are encrypted otherwise.
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
        """How often which tool was called in which turn: ``(tool_name, count, turn)``.

        A search of tools that only left its output counts, too.

        Raises:
            UnreadableItemsError: some are encrypted otherwise.
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
        """The items with their turns, out of what is remembered decoded if all is regular."""
        await self.remove_due(bound)
        found = await self._regular(bound, None)
        turns = list(accumulate(item_type(item) == "user" for item in found or ()))
        if found is None or turns[-1:] != [bound.session.sync.reading.run(_count, None)]:
            return [(placed.turn, placed.item) for placed in await self._placed(bound)]
        return list(zip(turns, found, strict=True))

    async def _placed(self, bound: Bound, *, users_only: bool = False) -> list[Placed]:
        """The items with their turns; what cannot be read is left out, as ``get_items`` does."""
        await self.remove_due(bound)

        def collect(log: SessionLog, txn: ReadTxn) -> list[Any]:
            ledger = log.full(txn, head_of(log)).ledger
            wanted = _positions(map(ledger.kind_at, range(len(ledger))), users_only=users_only)
            return _rows(log, txn, wanted)

        decode, skipped = bound.coder.decode, Counter[str]()
        found: list[Placed] = []
        rows: list[Any] = bound.session.sync.reading.run(collect, [])
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


def _count(log: SessionLog, txn: ReadTxn) -> int:
    """How many turns there are."""
    return log.full(txn, head_of(log)).ledger.count_of(USERS, 0)


def _positions(kinds: Iterable[int], *, users_only: bool) -> Iterator[tuple[int, int]]:
    """``(turn, position)`` of the items, or of those that begin a turn."""
    turn = 0
    for at, kind in enumerate(kinds):
        turn += kind == ItemKind.USER
        if kind == ItemKind.USER or not (users_only or kind == ItemKind.EVENT):
            yield turn, at


def _rows(log: SessionLog, txn: ReadTxn, wanted: Iterable[tuple[int, int]]) -> list[Any]:
    """``(turn, raw item)`` of positions; damaged ones are left out."""
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
