"""Salvage of sessions: the fragments of a session, rebuilt into a history."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple, Protocol

from memcore._fast import record_spans
from memcore.codec import keys
from memcore.codec.keys import Row
from memcore.codec.table import ROWS
from memcore.codec.values import (
    HEADER_BYTES,
    body_of,
    checksum_of,
    decode_json,
    encode_json,
    seal_value,
)
from memcore.errors import CounterUnavailableError, InternalError, MemcoreError
from memcore.log import Head, Segment, decode_item, new_ledger, prepare_event
from memcore.log.checkpoint import (
    CheckpointRow,
    checkpoint_states,
    pack_checkpoint,
    unpack_checkpoint,
    unpack_last,
)
from memcore.log.history import merged
from memcore.log.read import facts_of, looks_like, predecessor, tokens_of
from memcore.maintenance.salvage_rows import Place, RowSelector
from memcore.model import Item
from memcore.rows import index
from memcore.rows.head import FLAG_HIDDEN, head_key, older_segments
from memcore.rows.index import NO_COUNTS, Counts, write_counts
from memcore.rows.item import split_body
from memcore.state import mend_state
from memcore.store.interface import ReadTxn, Txn
from memcore.store.page_scan import Confidence, RowCandidate
from memcore.tokens import BytesEstimate, TokenCounter
from memcore.wire import get_policy

__all__ = [
    "Remains",
    "Resaved",
    "SessionRebuilder",
    "Step",
    "saved_of",
]


# --- Remains of one session: its head, items and index records, wherever they were found ----------


class _Facts(NamedTuple):
    tokens: int
    created_s: int
    facts: bytes


class Remains:
    """The rows of one session found in a damaged file. ``items`` are the chosen ones, by seq."""

    def __init__(self, sieve: RowSelector, place: Place) -> None:
        self.sieve = sieve
        self.place = place
        self.scope, self.session = place
        self.head: Head | None = None
        self.sure = False
        """True if the head is known to be the current one."""
        self.parent = 0
        self.first = 1
        self.stop = 1
        """The session owns the seqs ``first .. stop - 1``."""
        self.views: list[int] = []
        self.children: list[int] = []
        self.checkpoints: list[int] = []
        self.last_checkpoint = 0
        """The last known checkpoint number."""
        self.items: dict[int, RowCandidate] = {}
        self.sums: dict[int, bytes] = {}
        self.records: dict[int, bytes] = {}
        self.before: dict[int, int] = {}
        """The predecessor of each seq; 0 if it has none."""
        self._read()

    def _read(self) -> None:
        sieve = self.sieve
        key = head_key(*self.place)
        if key in sieve.chosen:
            with suppress(MemcoreError):
                self.head = Head.unpack(key, sieve.value(key))
                self.sure = sieve.chosen[key].rank <= Confidence.IN_USE
                self.parent = self.head.parent_session
        unread: list[int] = []
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
            elif (
                row == Row.ITEM
                and key in sieve.chosen
                and not self._take_item(key, sieve.chosen[key])
            ):
                unread.append(keys.number_of(key))  # its blob is lost, but it was there
        own = [*self.items, *self.records, *unread]
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
        for at in reversed(self.sieve.wreck.rows[key]):  # the most credible overwrites the rest
            body = self.sieve.wreck.value(key, at)[HEADER_BYTES:]
            for number, (start, stop) in enumerate(record_spans(body) or ()):
                self.records[first + number] = body[start:stop]

    def _take_item(self, key: bytes, at: RowCandidate) -> bool:
        value = self.sieve.wreck.value(key, at)
        with suppress(MemcoreError):
            blob = self.sieve.blob_of(key, value)
            if blob is None or blob in self.sieve.blobs:
                seq = keys.number_of(key)
                self._item_in(seq, value, blob)
                self.items[seq], self.sums[seq] = at, checksum_of(value)
                return True
        return False

    def chain_of(self, seq: int) -> int | None:
        """The prefix hash in an item's index record; None without a record."""
        record = self.records.get(seq)
        return None if record is None else int(index.RECORD.unpack_from(record)[2])

    def trace(self, origin: int | None) -> None:
        """Find each item's predecessor; adopt old versions that an index record vouches for.

        ``origin`` is the prefix hash at the fork point; 0 if the session started empty, None if
        unknown.
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

    def _versions(self, seq: int) -> list[tuple[bytes, RowCandidate | None]]:
        """Return the checksums of an item's candidate versions."""
        if seq in self.items and self.items[seq].rank <= Confidence.IN_USE:
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
            ValueError, KeyError: the item cannot be decoded.
        """
        key = keys.session_row(*self.place, Row.ITEM, seq)
        value = self.value(seq)
        return self._item_in(seq, value, self.sieve.blob_of(key, value))

    def _item_in(
        self, seq: int, value: bytes, blob: tuple[int, bytes] | None
    ) -> tuple[Item, bytes]:
        body = body_of(value)
        payload = None
        if blob is not None:
            chunks = self.sieve.chunks(*blob, self.sieve.blobs[blob])
            payload = b"".join(chunk[HEADER_BYTES:] for _, chunk in chunks)
        encoded = split_body(body)[3] if payload is None else payload
        return decode_item(seq, body, value[1], 0, payload), encoded

    def facts(self, seq: int, counter: TokenCounter | None, tag: int, seed: bytes) -> _Facts | None:
        """Return the content of the item's index record; None if the item is malformed."""
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


# --- Checkpoints of rebuilt sessions, saved again without the lost items --------------------------

Step = tuple[int, int]
"""``(owner session, seq)`` of an item."""


class Relatives(Protocol):
    """Protocol: sessions that are rebuilt together."""

    @property
    def members(self) -> Mapping[int, Remains]:
        """The sessions by number."""

    @property
    def chains(self) -> dict[Step, int]:
        """The final prefix hashes determined so far."""

    def has_view(self, owner: int, number: int) -> bool:
        """Return True if a view was found."""


def saved_of(member: Remains) -> Iterator[CheckpointRow]:
    """Yield a session's remaining checkpoints, oldest first."""
    for number in member.checkpoints:
        key = keys.session_row(*member.place, Row.CHECKPOINT, number)
        value = member.sieve.value(key)
        yield unpack_checkpoint(key, value[HEADER_BYTES:], value[1])


class Resaved:
    """The checkpoints of one session, to be saved again."""

    def __init__(self, member: Remains, relatives: Relatives, txn: ReadTxn) -> None:
        self._member = member
        self._relatives = relatives
        self._kept: list[tuple[CheckpointRow, list[Step]]] = []
        self.dropped: list[CheckpointRow] = []
        """Checkpoints that cannot be saved again."""
        for saved in saved_of(member):
            path = self._path(saved, txn)
            kept = None if path is None else self._settled(path)
            if kept is None:
                self.dropped.append(saved)
            else:
                self._kept.append((saved, kept))

    def _path(self, saved: CheckpointRow, txn: ReadTxn) -> list[Step] | None:
        """Return a checkpoint's items; None if any are in sessions that are not rebuilt here."""
        session, block, _ = saved.older
        try:
            found = [*older_segments(txn, self._member.scope, session, block), *saved.segments]
        except MemcoreError:
            return None
        members = self._relatives.members
        for owner, lo, hi in found:
            # Bound the range first: work and memory grow with the size that a row claims.
            if owner not in members or not members[owner].first <= lo <= hi < members[owner].stop:
                return None
        return [(owner, seq) for owner, lo, hi in found for seq in range(lo, hi + 1)]

    def _settled(self, path: list[Step]) -> list[Step] | None:
        """The path without lost items; None if a live history reaches an item differently."""
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
        """Yield the rows of the kept checkpoints, and the row of the last assigned number."""
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
            again = saved._replace(
                checkpoint=checkpoint,
                segments=tuple(merged(path)),
                older=(0, 0, 0),
                chain=self._relatives.chains[path[-1]] if path else 0,
                view=view,
                parent=(member.parent, member.first - 1),
            )
            key = keys.session_row(*member.place, Row.CHECKPOINT, checkpoint.number)
            yield key, seal_value(key, *pack_checkpoint(again))
        key = keys.session_row(*member.place, Row.CHECKPOINT, 0)
        last = member.last_checkpoint
        if last:
            yield key, seal_value(key, last.to_bytes(8, "little"))


# --- Sessions that share items through forks, rebuilt from their remains --------------------------
# Every verified item keeps its seq. The seqs of lost items hold an event of type ``lost``, so that
# the log stays complete, and the live history leaves them out: it shows only items that were
# stored. Results whose call was lost are orphans, which contexts leave out.

_LOST_EVENT: Final = "lost"
_REPLACED: Final = tuple(each.row or 0 for each in ROWS if each.rebuilt)
"""Rows to delete first; they include usage, since reports for lost items no longer apply."""
_SNIFFED: Final = 64
_TRIES: Final = 4096


class Rebuilt(NamedTuple):
    """The result of rebuilding one session."""

    remains: Remains
    live: int
    lost: tuple[int, ...]
    """Seqs of the lost items."""
    notes: tuple[str, ...]


class SessionRebuilder:
    """Rebuilds the rows of related sessions; ``write`` is repeatable."""

    def __init__(
        self,
        members: Sequence[Remains],
        *,
        seed: bytes,
        counter_named: Callable[[str], TokenCounter],
        default_counter: TokenCounter,
        now_us: int,
    ) -> None:
        self.members = {member.session: member for member in members}
        self._seed = seed
        self._counter_named = counter_named
        counters = [member.head.counter for member in members if member.head is not None]
        self._counter_id = counters[0] if counters else default_counter.id
        self._now_us = now_us
        self.chains: dict[Step, int] = {}
        """The final prefix hashes determined so far."""
        self._places: dict[Step, int] = {}
        """Number of live items up to and including each item."""
        self._resaved: dict[int, Resaved] = {}
        self._rows: dict[bytes, bytes] = {}
        self._heads: list[tuple[Remains, Head]] = []
        self._counted: list[tuple[Remains, Counts, array[int]]] = []
        self.rebuilt: list[Rebuilt] = []
        self._plan()

    def write(self, txn: Txn) -> None:
        """Replace the sessions' rows."""
        for member in self.members.values():
            for row in _REPLACED:
                start = keys.session_rows(*member.place, row)
                txn.delete_range(start, keys.after(start))
            for seq in member.items:
                key = keys.session_row(*member.place, Row.ITEM, seq)
                txn.put(key, member.value(seq))
        for key, value in self._rows.items():
            txn.put(key, value)
        for member, counts, tokens in self._counted:
            write_counts(txn, member.scope, counts, tokens)
        for member, planned in self._heads:
            head = planned.changed()
            head.spill(txn, *member.place)
            key = head_key(*member.place)
            txn.put(key, seal_value(key, head.pack()))
        for member in self.members.values():
            mend_state(txn, *member.place, pinned=checkpoint_states(txn, *member.place))

    # --- planning -----------------------------------------------------------------------------

    def _plan(self) -> None:
        ordered = self._ordered()
        for member in ordered:
            if member.head is None and member.parent:
                self._find_fork_point(member)
            member.trace(self._origin(member))
        paths: dict[int, list[Step]] = {}
        # For shared items, a current head takes precedence over histories inferred without one.
        for member in sorted(ordered, key=lambda member: not member.sure):
            paths[member.session] = self._chained(member, self._path(member))
        chosen = _ChosenRows(ordered[0])
        for member in ordered:
            self._resaved[member.session] = Resaved(member, self, chosen)
        for member in ordered:
            self._plan_session(member, paths[member.session])
        for member in ordered:
            if member.parent in self.members:
                scope, parent = self.members[member.parent].place
                key = keys.session_row(scope, parent, Row.CHILD, member.session)
                self._rows[key] = seal_value(key, b"")
            self._plan_views(member)

    def _ordered(self) -> list[Remains]:
        """The sessions, parents before their forks."""
        for member in self.members.values():
            for child in member.children:
                found = self.members.get(child)
                if found is not None and found.head is None:
                    found.parent = member.session
        done: dict[int, Remains] = {}

        def visit(member: Remains, depth: int) -> None:
            if member.session in done or depth > len(self.members):
                return
            above = self.members.get(member.parent)
            if above is not None:
                visit(above, depth + 1)
            else:
                member.parent = 0
            done[member.session] = member

        for member in self.members.values():
            visit(member, 0)
        return list(done.values())

    def _owner(self, member: Remains, seq: int) -> Remains | None:
        """Return the session that owns item ``seq`` in the history of ``member``."""
        found: Remains | None = member
        while found is not None and seq < found.first:
            found = self.members.get(found.parent)
        return found

    def _find_fork_point(self, member: Remains) -> None:
        """Find the fork point of a fork without a head; detach it if that cannot be proven.

        It has to be proven because items appended to the parent after the fork have the same seqs
        as the fork's own.
        """
        chain, checksum = member.chain_of(member.first), member.sums.get(member.first)
        parent = self.members[member.parent]
        if chain is not None and checksum is not None:
            for seq in range(member.first - 1, max(member.first - 1 - _TRIES, 0), -1):
                owner = self._owner(parent, seq)
                before = None if owner is None else owner.chain_of(seq)
                if before is not None and index.chain_after(before, checksum) == chain:
                    member.first = seq + 1
                    return
        member.parent = 0

    def _origin(self, member: Remains) -> int | None:
        if member.first == 1:
            return 0
        owner = self._owner(member, member.first - 1)
        return None if owner is None else owner.chain_of(member.first - 1)

    def _path(self, member: Remains) -> list[Step]:
        """Return the live history as far as it is known, including lost items."""
        if member.head is not None and member.sure:
            segments = self._segments(member.head, member.scope)
            if segments is not None:
                return [(s.session, seq) for s in segments for seq in range(s.lo, s.hi + 1)]
        path: list[Step] = []
        owner: Remains | None = member
        seq = member.stop - 1
        while owner is not None and seq > 0:
            path.append((owner.session, seq))
            seq = owner.before.get(seq, seq - 1)
            owner = self._owner(owner, seq)
        return path[::-1]

    def _segments(self, head: Head, scope: int) -> list[Segment] | None:
        """All segments of a head; None if a segment block is lost."""
        try:
            return head.all_segments(_ChosenRows(next(iter(self.members.values()))), scope)
        except MemcoreError:
            return None

    def _chained(self, member: Remains, path: list[Step]) -> list[Step]:
        """The path without lost items; computes the final prefix hashes along it."""
        kept: list[Step] = []
        chain = 0
        for step in path:
            owner = self.members.get(step[0])
            if owner is None or step[1] not in owner.items:
                continue
            chain_here = index.chain_after(chain, owner.sums[step[1]])
            known = self.chains.get(step)
            if known is not None and known != chain_here:
                # Another history reaches this item differently: only the member's own items stay.
                kept, chain = [], 0
                if owner is not member:
                    continue
                return self._chained(member, [s for s in path if s not in self.chains])
            self.chains[step] = chain = chain_here
            kept.append(step)
            self._places[step] = len(kept)
        return kept

    def _plan_session(self, member: Remains, path: list[Step]) -> None:
        head, notes, counter = self._new_head(member)
        tag = index.counter_tag(head.counter)
        ledger = new_ledger(get_policy(head.policy), counter)
        records = self._records(member, counter, tag)
        lost = tuple(seq for seq in range(member.first, member.stop) if seq not in member.items)
        for first, body in index.laid_out(member.first, records):
            key = index.page_key(*member.place, first)
            self._rows[key] = seal_value(key, body)
        tokens = array("I")
        for owner, seq in path:
            record = self._record(self.members[owner], seq, counter, tag)
            tokens.append(index.RECORD.unpack_from(record)[0])
            ledger.push(record[index.RECORD.size :], tokens[-1])
        own = NO_COUNTS
        if any(self._tag(self.members[owner]) != tag for owner, _ in path):
            # The index records use the owner's counter, since the owner has not been recounted.
            own = Counts(member.session, head.epoch + 1, member.stop)
            self._counted.append((member, own, tokens))
        own.point(head)
        head.segments = merged(path)
        head.count = len(path)
        head.chain = self.chains[path[-1]] if path else 0
        head.tokens, head.open_calls = ledger.tokens, ledger.open_count
        head.next_seq = member.stop
        head.parent_session, head.parent_seq = member.parent, member.first - 1
        head.link_session = head.link_block = head.base_count = 0
        head.revision += 1
        head.epoch += 1
        head.next_view = max([head.next_view, *(number + 1 for number in member.views)])
        self._heads.append((member, head))
        resaved = self._resaved[member.session]
        for saved in resaved.dropped:
            notes.append(f"{saved.where} is lost")
        self._rows.update(
            resaved.rows(
                head, counter, lambda at: self._record(self.members[at[0]], at[1], counter, tag)
            )
        )
        self.rebuilt.append(Rebuilt(member, len(path), lost, tuple(notes)))

    def _new_head(self, member: Remains) -> tuple[Head, list[str], TokenCounter | None]:
        notes: list[str] = []
        if member.head is None:
            saved = next(reversed(list(saved_of(member))), None)
            policy = looks_like(_messages(member)) if saved is None else saved.policy
            head = Head(policy=policy, counter=self._counter_id, now_ms=self._now_us // 1000)
            notes.append(
                f"its head was lost: policy {policy!r} and counter {head.counter!r} are guessed, "
                "and items that were undone last may be back"
            )
        else:
            head = member.head.changed()
            if not member.sure:
                notes.append("its head may be an old one: items that were undone may be back")
        if member.place in member.sieve.deleted:
            head.flags |= FLAG_HIDDEN
        try:
            return head, notes, self._counter_named(head.counter)
        except CounterUnavailableError:
            notes.append(
                f"tokens by {head.counter!r} are estimates where it has to be counted anew"
            )
            return head, notes, None

    def _tag(self, member: Remains) -> int:
        return index.counter_tag(self._counter_id if member.head is None else member.head.counter)

    def _records(self, member: Remains, counter: TokenCounter | None, tag: int) -> list[bytes]:
        return [self._record(member, seq, counter, tag) for seq in range(member.first, member.stop)]

    def _record(self, member: Remains, seq: int, counter: TokenCounter | None, tag: int) -> bytes:
        """The index record of an item, with its final prefix hash."""
        step = (member.session, seq)
        if seq in member.items:
            found = member.facts(seq, counter, tag, self._seed)
            if found is not None:
                chain = self.chains.get(step)
                if chain is None:  # not live, so its hash is not checked
                    chain = index.chain_after(0, member.sums[seq])
                packed = index.RECORD.pack(found.tokens, found.created_s, chain, tag)
                return packed + found.facts
        event = prepare_event(
            _LOST_EVENT, {"seq": seq}, counter=BytesEstimate(), seed=self._seed, now_us=self._now_us
        )
        key = keys.session_row(*member.place, Row.ITEM, seq)
        value = self._rows[key] = seal_value(key, event.body, event.flags)
        chain = index.chain_after(0, checksum_of(value))
        return index.RECORD.pack(0, event.created_s, chain, tag) + event.facts

    # --- views --------------------------------------------------------------------------------

    def _plan_views(self, member: Remains) -> None:
        """Plan the views, which keep covering their items; one whose cut is lost ends before it."""
        sieve = member.sieve
        for number in member.views:
            key = keys.session_row(*member.place, Row.VIEW, number)
            value = sieve.value(key)
            body: dict[str, Any] = decode_json(value[10:], value[1])
            owner, cut = self._owner(member, body["cut_seq"]), int(body["cut_seq"])
            if owner is not None and owner.chain_of(cut) not in (None, body["chain"]):
                continue_as = None  # it covers items that were undone, so it may not apply
            else:
                continue_as = self._settled(member, cut)
            if continue_as is not None:
                body["cut_seq"], body["chain"], body["covered"] = continue_as
            parent = (body["parent_owner"], body["parent"])
            if body["parent"] and not self.has_view(*parent):
                body["parent"] = body["parent_owner"] = 0
            encoded, flags = encode_json(body)
            self._rows[key] = seal_value(key, encoded, flags)
        for found, head in self._heads:
            if found is member and not self.has_view(head.view_session, head.view_number):
                head.view_session = head.view_number = 0

    def _settled(self, member: Remains, seq: int) -> tuple[int, int, int] | None:
        """Return the last chained item up to ``seq``, its prefix hash and its position, or None."""
        owner = self._owner(member, seq)
        while owner is not None and seq > 0:
            chain = self.chains.get((owner.session, seq))
            if chain is not None:
                return seq, chain, self._places[owner.session, seq]
            seq = owner.before.get(seq, seq - 1)
            owner = self._owner(owner, seq)
        return None

    def has_view(self, owner: int, number: int) -> bool:
        """Return True if a view was found."""
        member = self.members.get(owner)
        return member is not None and number in member.views


class _ChosenRows:
    """Gives read access to the chosen rows with the interface of a transaction."""

    vault = None
    is_remote = False

    def __init__(self, member: Remains) -> None:
        self._sieve = member.sieve

    def get(self, key: bytes, /) -> bytes | None:
        """The chosen value."""
        return self._sieve.value(key) if key in self._sieve.chosen else None

    get_new = get

    def scan(self, *_: Any, **__: Any) -> Any:
        """Refuse to scan: only single rows may be read.

        Raises:
            InternalError: always.
        """
        raise InternalError("chosen rows were scanned")

    take = scan

    def prefetch(self, *_: Any) -> None:
        """Do nothing: all rows are in memory."""

    prefetch_named = prefetch


def _messages(member: Remains) -> Iterator[dict[str, Any]]:
    """Yield the readable messages among the first items."""
    for seq in sorted(member.items)[:_SNIFFED]:
        with suppress(ValueError, KeyError, MemcoreError):
            yield member.item(seq)[0].message
