"""Checkpoints of sessions that are written anew: saved again without the items that are lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Protocol

from memcore import keys
from memcore.codec import HEADER_BYTES, seal_value
from memcore.database.remains import Remains
from memcore.errors import MemcoreError
from memcore.formats import get_policy
from memcore.keys import Row
from memcore.log import Head, index, new_ledger
from memcore.log.head import older_segments
from memcore.log.positions import merged
from memcore.log.saved import Saved, pack_saved, unpack_saved
from memcore.store.base import ReadTxn
from memcore.tokens import TokenCounter

__all__ = ["Resaved", "Step", "saved_of"]

Step = tuple[int, int]
"""``(owner session, seq)`` of an item."""


class Relatives(Protocol):
    """What is known of the sessions that are written anew together."""

    @property
    def members(self) -> Mapping[int, Remains]:
        """The sessions by their numbers."""

    @property
    def chains(self) -> dict[Step, int]:
        """The prefix hashes that are settled."""

    def has_view(self, owner: int, number: int) -> bool:
        """Whether a view is left."""


def saved_of(member: Remains) -> Iterator[Saved]:
    """The checkpoints that are left of a session, oldest first."""
    for number in member.checkpoints:
        key = keys.session_row(*member.place, Row.CHECKPOINT, number)
        value = member.sieve.value(key)
        yield unpack_saved(key, value[HEADER_BYTES:], value[1])


class Resaved:
    """The checkpoints of one session."""

    def __init__(self, member: Remains, relatives: Relatives, txn: ReadTxn) -> None:
        self._member = member
        self._relatives = relatives
        self._kept: list[tuple[Saved, list[Step]]] = []
        self.dropped: list[Saved] = []
        """Those that cannot be saved again."""
        for saved in saved_of(member):
            path = self._path(saved, txn)
            kept = None if path is None else self._settled(path)
            if kept is None:
                self.dropped.append(saved)
            else:
                self._kept.append((saved, kept))

    def _path(self, saved: Saved, txn: ReadTxn) -> list[Step] | None:
        """Its items; None if they are not those of sessions that are known here."""
        session, block, _ = saved.older
        try:
            found = [*older_segments(txn, self._member.scope, session, block), *saved.segments]
        except MemcoreError:
            return None
        members = self._relatives.members
        for owner, lo, hi in found:
            # Work and memory grow with what a row claims.
            if owner not in members or not members[owner].first <= lo <= hi < members[owner].stop:
                return None
        return [(owner, seq) for owner, lo, hi in found for seq in range(lo, hi + 1)]

    def _settled(self, path: list[Step]) -> list[Step] | None:
        """The path without what is lost; None if a live history reaches an item in another way."""
        members, chains = self._relatives.members, self._relatives.chains
        kept: list[Step] = []
        new: dict[Step, int] = {}
        chain = 0
        for step in path:
            owner = members[step[0]]
            if step[1] not in owner.items:
                continue
            chain = index.chain_after(chain, owner.sums[step[1]])
            if chains.get(step, chain) != chain:
                return None
            new[step] = chain
            kept.append(step)
        chains.update(new)
        return kept

    def rows(
        self, head: Head, counter: TokenCounter | None, record: Callable[[Step], bytes]
    ) -> Iterator[tuple[bytes, bytes]]:
        """The rows of those that are left, and of the last number that was given out."""
        member = self._member
        for saved, path in self._kept:
            ledger = new_ledger(get_policy(head.policy), counter)
            for step in path:
                found = record(step)
                tokens = index.RECORD.unpack_from(found)[0]
                ledger.push(found[index.RECORD.size :], tokens)
            view = saved.view if self._relatives.has_view(*saved.view) else (0, 0)
            checkpoint = replace(
                saved.checkpoint,
                seq=path[-1][1] if path else 0,
                items=len(path),
                tokens=ledger.tokens,
                counter=head.counter,
                view=view[1],
            )
            again = replace(
                saved,
                checkpoint=checkpoint,
                segments=tuple(merged(path)),
                older=(0, 0, 0),
                chain=self._relatives.chains[path[-1]] if path else 0,
                view=view,
                parent=(member.parent, member.first - 1),
            )
            key = keys.session_row(*member.place, Row.CHECKPOINT, checkpoint.number)
            yield key, seal_value(key, *pack_saved(again))
        key = keys.session_row(*member.place, Row.CHECKPOINT, 0)
        last = member.last_checkpoint
        if last:
            yield key, seal_value(key, last.to_bytes(8, "little"))
