"""What is left of one session: its head, items and index records, wherever they were found."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from memcore import keys
from memcore._fast import record_spans
from memcore.codec import HEADER_BYTES, body_of, checksum_of
from memcore.database.sieve import Place, Sieve
from memcore.errors import MemcoreError
from memcore.keys import Row
from memcore.log import Head, decode_item, index
from memcore.log.head import head_key
from memcore.log.item import split_body
from memcore.log.saved import unpack_last
from memcore.log.stored import facts_of, tokens_of
from memcore.log.tracing import predecessor
from memcore.model import Item
from memcore.store.wreck import Candidate, Rank
from memcore.tokens import BytesEstimate, TokenCounter

__all__ = ["Remains"]


class _Facts(NamedTuple):
    tokens: int
    created_s: int
    facts: bytes


class Remains:
    """One session as the wreck holds it. ``items`` are those that count, by seq."""

    def __init__(self, sieve: Sieve, place: Place) -> None:
        self.sieve = sieve
        self.place = place
        self.scope, self.session = place
        self.head: Head | None = None
        self.sure = False
        """Whether the head is the current one."""
        self.parent = 0
        self.first = 1
        self.stop = 1
        """The seqs that it owns are ``first .. stop - 1``."""
        self.views: list[int] = []
        self.children: list[int] = []
        self.checkpoints: list[int] = []
        self.last_checkpoint = 0
        """The last number that a checkpoint got, as far as it is known."""
        self.items: dict[int, Candidate] = {}
        self.sums: dict[int, bytes] = {}
        self.records: dict[int, bytes] = {}
        self.before: dict[int, int] = {}
        """By seq, the one that it was appended to; 0 is none."""
        self._read()

    def _read(self) -> None:
        sieve = self.sieve
        key = head_key(*self.place)
        if key in sieve.chosen:
            with suppress(MemcoreError):
                self.head = Head.unpack(key, sieve.value(key))
                self.sure = sieve.chosen[key].rank <= Rank.IN_USE
                self.parent = self.head.parent_session
        for key in sorted({*sieve.sessions.get(self.place, ()), *sieve.spare.get(self.place, ())}):
            row = key[17]
            if row == Row.VIEW and key in sieve.chosen:
                self.views.append(keys.number_of(key))
            elif row == Row.CHILD and key in sieve.chosen:
                self.children.append(keys.number_of(key))
            elif row == Row.CHECKPOINT and key in sieve.chosen:
                self._take_checkpoint(key)
            elif row == Row.INDEX:
                self._take_records(key)
            elif row == Row.ITEM and key in sieve.chosen:
                self._take_item(key, sieve.chosen[key])
        own = [*self.items, *self.records]
        if self.head is not None:
            self.first, self.stop = self.head.parent_seq + 1, self.head.next_seq
        elif own:
            self.first = min(own)
        if not self.sure:
            self.stop = max([self.stop, self.first, *(seq + 1 for seq in own)])
        self._drop_foreign()

    def _drop_foreign(self) -> None:
        for found in (self.items, self.sums, self.records):
            for seq in [seq for seq in found if not self.first <= seq < self.stop]:
                del found[seq]

    def _take_checkpoint(self, key: bytes) -> None:
        number = keys.number_of(key)
        if number:
            self.checkpoints.append(number)
        else:
            number = unpack_last(key, self.sieve.value(key)[HEADER_BYTES:])
        self.last_checkpoint = max(self.last_checkpoint, number)

    def _take_records(self, key: bytes) -> None:
        first = keys.number_of(key)
        for at in reversed(self.sieve.wreck.rows[key]):  # the surest has the last word
            body = self.sieve.wreck.value(key, at)[HEADER_BYTES:]
            for number, (start, stop) in enumerate(record_spans(body) or ()):
                self.records[first + number] = body[start:stop]

    def _take_item(self, key: bytes, at: Candidate) -> bool:
        value = self.sieve.wreck.value(key, at)
        with suppress(MemcoreError):
            blob = self.sieve.blob_of(key, value)
            if blob is None or blob in self.sieve.blobs:
                seq = keys.number_of(key)
                self.items[seq], self.sums[seq] = at, checksum_of(value)
                return True
        return False

    def chain_of(self, seq: int) -> int | None:
        """The prefix hash that an index record names; None without a record."""
        record = self.records.get(seq)
        return None if record is None else int(index.RECORD.unpack_from(record)[2])

    def trace(self, origin: int | None) -> None:
        """Find out what each item was appended to; take in old versions that a record vouches for.

        ``origin`` is the prefix hash at the item that the session was forked from, 0 if it began
        with nothing, None if that is not known.
        """
        chains: dict[int, int | None] = {self.first - 1: origin}
        for seq in range(self.first, self.stop):
            chain = chains[seq] = self.chain_of(seq)
            self.before[seq] = seq - 1
            if chain is None:
                continue
            versions = self._versions(seq)
            sums = [checksum for checksum, _ in versions]
            found = predecessor(seq, chain, sums, chains, self.before, first=self.first)
            if found is None:
                continue
            self.before[seq], at = found[0], versions[found[1]][1]
            if at is not None and at != self.items.get(seq):
                self._take_item(keys.session_row(*self.place, Row.ITEM, seq), at)

    def _versions(self, seq: int) -> list[tuple[bytes, Candidate | None]]:
        """The checksums under which the item may be known."""
        if seq in self.items and self.items[seq].rank <= Rank.IN_USE:
            return [(self.sums[seq], None)]
        key = keys.session_row(*self.place, Row.ITEM, seq)
        wreck = self.sieve.wreck
        return [(checksum_of(wreck.value(key, at)), at) for at in wreck.rows.get(key, ())]

    def value(self, seq: int) -> bytes:
        """The stored value of an item."""
        key = keys.session_row(*self.place, Row.ITEM, seq)
        return self.sieve.wreck.value(key, self.items[seq])

    def item(self, seq: int) -> tuple[Item, bytes]:
        """An item and its encoded message.

        Raises:
            ValueError, KeyError: it cannot be decoded.
        """
        key = keys.session_row(*self.place, Row.ITEM, seq)
        value = self.value(seq)
        body = body_of(value)
        blob = self.sieve.blob_of(key, value)
        payload = None
        if blob is not None:
            chunks = self.sieve.chunks(*blob, self.sieve.blobs[blob])
            payload = b"".join(chunk[HEADER_BYTES:] for _, chunk in chunks)
        encoded = split_body(body)[3] if payload is None else payload
        return decode_item(seq, body, value[1], 0, payload), encoded

    def facts(self, seq: int, counter: TokenCounter | None, tag: int, seed: bytes) -> _Facts | None:
        """What the item's index record has to say; None if the item makes no sense."""
        record = self.records.get(seq)
        if record is not None and seed == self.sieve.seed:
            tokens, created_s, _, its_tag = index.RECORD.unpack_from(record)
            if its_tag == tag:
                return _Facts(tokens, created_s, record[index.RECORD.size :])
        try:
            item, encoded = self.item(seq)
            tokens = tokens_of(item, encoded, counter or BytesEstimate())
            facts = facts_of(item, seed)
        except (ValueError, KeyError, TypeError, MemcoreError):
            return None
        return None if facts is None else _Facts(tokens, int(item.created_at), facts)
