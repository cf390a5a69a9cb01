"""The check of a session's checkpoints: what each refers to is there, and is what it was."""

from __future__ import annotations

from collections.abc import Iterator

from memcore import keys
from memcore.codec import checksum_of, open_value
from memcore.errors import CorruptValueError
from memcore.keys import Row
from memcore.log import Head, History, index
from memcore.log.head import head_key
from memcore.log.saved import Saved, last_number, read_saved, saved_numbers
from memcore.store.base import ReadTxn
from memcore.views import read_view

__all__ = ["chained", "check_checkpoints"]


def check_checkpoints(
    txn: ReadTxn, scope: int, session: int, head: Head, live: History
) -> Iterator[str]:
    """What is wrong with the checkpoints of a session."""
    try:
        last_number(txn, scope, session)
    except CorruptValueError as exc:
        yield str(exc)
    stops = {session: head.next_seq}
    for number in saved_numbers(txn, scope, session):
        try:
            saved = read_saved(txn, scope, session, number)
            if saved is None:
                continue
            history = saved.history(txn, scope)
            _take_in_ancestors(txn, scope, head.parent_session, stops)
            found = _refers_astray(history, stops) or _breaks(txn, scope, saved, history, live)
            if not found and saved.view[1] and read_view(txn, scope, *saved.view) is None:
                found = f"view {saved.view[1]} of session {saved.view[0]} is missing"
        except CorruptValueError as exc:
            yield str(exc)
        else:
            if found:
                yield f"{saved.where}: {found}"


def _take_in_ancestors(txn: ReadTxn, scope: int, parent: int, stops: dict[int, int]) -> None:
    """The next seqs of the sessions that a session was forked from: those alone stay for it."""
    while parent and parent not in stops:
        key = head_key(scope, parent)
        value = txn.get(key)
        if value is None:
            return
        head = Head.unpack(key, value)
        stops[parent] = head.next_seq
        parent = head.parent_session


def _refers_astray(history: History, stops: dict[int, int]) -> str:
    for session, _, hi in history.segments:
        if session not in stops:
            return f"it refers to items of session {session}, which is none that it was forked from"
        if hi >= stops[session]:
            return f"it refers to item {hi} of session {session}, which never had it"
    return ""


def _breaks(txn: ReadTxn, scope: int, saved: Saved, history: History, live: History) -> str:
    """Whether the prefix hashes of items that are not live any more lead to the checkpoint's."""
    start = history.shared_with(live)
    chain = 0
    if start:
        chain = history.chain_at(txn, scope, history.seq_at(start - 1)) or 0
    for _, session, lo, hi in history.spans(start, history.count):
        seq = lo
        for seq, record in enumerate(index.records(txn, scope, session, lo, hi), lo):
            found = int(index.RECORD.unpack_from(record)[2])
            if chained(txn, keys.session_row(scope, session, Row.ITEM, seq), chain) not in (
                found,
                None,
            ):
                return f"the prefix hash at item {seq} does not match the items before it"
            chain = found
        if seq != hi:
            return f"item {seq} has no index record"
    return "" if chain == saved.chain else "its prefix hash is not that of its last item"


def chained(txn: ReadTxn, key: bytes, before: int) -> int | None:
    """The prefix hash that a stored item gives; None if the item is damaged, which is told."""
    value = txn.get(key)
    if value is None:
        return None
    try:
        open_value(key, value)
    except CorruptValueError:
        return None
    return index.chain_after(before, checksum_of(value))
