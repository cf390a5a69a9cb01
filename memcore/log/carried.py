"""Token counts carried over from one live history to another of the same session.

Token pages count by position, and index records by whatever counted first. So what a head points at
holds for the items that both histories begin with; of the others those are counted anew of which no
record has a count by the session's counter. A session that was never recounted has none of these.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from struct import unpack

from memcore.log import index
from memcore.log.counts import NO_COUNTS, Counts, write_counts
from memcore.log.head import Head
from memcore.log.positions import History
from memcore.log.stored import stored_items, tokens_of
from memcore.store.base import ReadTxn, Txn
from memcore.tokens import TokenCounter

__all__ = ["carry_counts"]


def carry_counts(
    txn: Txn, place: tuple[int, int], head: Head, counter: TokenCounter, *, old: History
) -> None:
    """Let a head's pointer to token pages be right for its history, as it is for ``old``.

    ``place`` is scope and session of the head. Writes pages only if some item has to be counted.

    Raises:
        CorruptValueError: an item that has to be counted is damaged, or an index page.
    """
    scope, session = place
    new = History(head.all_segments(txn, scope))
    counts = Counts.of(head)
    known = min(old.shared_with(new), old.position_from(counts.stop))
    tag = index.counter_tag(counter.id)
    edge = new.position_from(counts.stop)
    if edge <= known and all(by == tag for _, by in _recorded(txn, scope, new, edge)):
        return
    tokens = array("I", unpack(f"<{known}I", counts.read(txn, scope, 0, known)))
    for at, (count, by) in enumerate(_recorded(txn, scope, new, known), known):
        tokens.append(count if by == tag else _counted(txn, scope, new, at, counter))
    own = Counts(session, max(head.epoch, 1), head.next_seq) if tokens else NO_COUNTS
    head.epoch = max(head.epoch, own.number)
    write_counts(txn, scope, own, tokens)
    own.point(head)


def _recorded(txn: ReadTxn, scope: int, history: History, start: int) -> Iterator[tuple[int, int]]:
    """Tokens of the items from a position on, as their records say, and the tag of who counted."""
    for _, session, lo, hi in history.spans(start, history.count):
        for record in index.records(txn, scope, session, lo, hi):
            tokens, _, _, tag = index.RECORD.unpack_from(record)
            yield tokens, tag


def _counted(txn: ReadTxn, scope: int, history: History, at: int, counter: TokenCounter) -> int:
    item, encoded = next(stored_items(txn, scope, history, at, at + 1))
    return tokens_of(item, encoded, counter)
