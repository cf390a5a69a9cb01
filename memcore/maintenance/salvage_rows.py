"""Selection of the rows of a damaged file to copy to the new one.

One candidate per key: the most credible, and among equally credible ones the latest by its own
version field. A row found only on free pages counts only if something current vouches for it: a
blob's digest for its chunks, an index record for an item; callers look up both as needed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterator
from contextlib import suppress
from typing import Any, Final, TypeVar

from xxhash import xxh3_128

from memcore import memory
from memcore._fast import record_spans
from memcore.blobs import BlobRef
from memcore.blobs.rows import SLOT_BYTES, chunk_count, slot_of, unpack_header
from memcore.codec import keys
from memcore.codec.keys import (
    OWNER_KEY,
    SECRET_KEY,
    WARM_KEY,
    Care,
    Counter,
    Kind,
    Row,
    ThreadRow,
)
from memcore.codec.table import ROWS, find, numbers_in
from memcore.codec.values import (
    FLAG_BLOB,
    FLAG_EXPIRES,
    HEADER_BYTES,
    body_of,
    decode_json,
    is_proven,
)
from memcore.errors import CorruptValueError, MemcoreError
from memcore.graph.gc import is_pool_row, is_thread_row
from memcore.kv import entry_of, reference_in
from memcore.limits import BLOB_BYTES_MAX, BLOB_CHUNK_BYTES, TOKEN_PAGE_COUNTS
from memcore.log import Head
from memcore.log.checkpoint import unpack_checkpoint, unpack_last
from memcore.options import counted
from memcore.privacy.keyring import BLOCK, OWNER_BYTES
from memcore.rows import names
from memcore.rows.head import head_key
from memcore.rows.index import COUNT_BYTES
from memcore.rows.item import split_body
from memcore.rows.lifecycle import (
    ERASURES,
    TOMBSTONES,
    is_held_row,
    is_hold_row,
    is_terms,
    scopes_erased,
    terms_of,
    tombstone_of,
    unpack_lease,
)
from memcore.rows.names import unpack_name
from memcore.rows.usage import unpack_usage
from memcore.search import is_index_row
from memcore.session.content_filter import is_demand
from memcore.session.engine import is_uses_row
from memcore.state import header_key, is_moment, is_state_row
from memcore.state.rows import StateHeader, unpack_moment
from memcore.store.changes import WARM_ROW_BYTES
from memcore.store.encryption import SECRET_ROW_BYTES
from memcore.store.page_scan import Confidence, PageScan, RowCandidate

__all__ = [
    "DATABASE_CARE",
    "SCOPE_NAMES",
    "Place",
    "RowSelector",
    "erased_scopes",
    "forget_erased",
    "forget_removed",
    "forget_unknown",
    "is_row",
    "names_by_scope",
    "names_in",
    "owner_in",
    "unused",
    "was_hidden",
]


# --- Validity of a row: its checksum, and the shape required by its key's kind --------------------

_U64_BYTES: Final = 8
_SCOPED_BYTES: Final = 9
_PLACE_BYTES: Final = 17
_ROW_BYTES: Final = 26
_NUMBER_MAX: Final = 2**48
_VIEW_NUMBERS: Final = ("cut_seq", "chain", "parent", "parent_owner")
_KEY_BYTES: Final = {(each.kind, each.row): each.key_bytes for each in ROWS}
_UNKNOWN: Final = {Kind.SESSION: _ROW_BYTES}
"""Key lengths of rows that a later memcore may have added."""


def is_row(key: bytes, value: bytes) -> bool:
    """Return True if ``value`` was sealed under ``key`` and has the shape of its kind."""
    if not is_proven(key, value):
        return False
    found, fits = find(key), _SHAPES.get(key[0])
    size = _UNKNOWN.get(key[0]) if found is None else _KEY_BYTES[found.kind, found.row]
    try:
        return size in (None, len(key)) and (fits is None or fits(key, value, body_of(value)))
    except (MemcoreError, ValueError):
        return False


def _is_number(_: bytes, __: bytes, body: bytes) -> bool:
    return len(body) == _U64_BYTES


def _is_scope(_: bytes, __: bytes, body: bytes) -> bool:
    return len(keys.unpack_texts(body)) == 2  # noqa: PLR2004 - app and user


def _is_name(key: bytes, _: bytes, body: bytes) -> bool:
    found = unpack_name(body)[1]
    prefix, count = (key[:1], 2) if key[0] == Kind.SCOPE_NAME else (key[:_SCOPED_BYTES], 1)
    return len(found) == count and key == keys.name_key(prefix, *found)


def _is_header(key: bytes, _: bytes, body: bytes) -> bool:
    return unpack_header(key, body).size <= BLOB_BYTES_MAX


def _is_reference(_: bytes, __: bytes, body: bytes) -> bool:
    return BlobRef.unpack(body).size <= BLOB_BYTES_MAX


def _is_entry(key: bytes, value: bytes, body: bytes) -> bool:
    keys.unpack_text(key[_PLACE_BYTES:])
    if value[1] & FLAG_BLOB and reference_in(value[1], body).size > BLOB_BYTES_MAX:
        return False
    if value[1] & FLAG_EXPIRES and len(body) < _U64_BYTES:
        return False
    entry_of(key, value).value()
    return True


def _is_removal(key: bytes, _: bytes, __: bytes) -> bool:
    if key[_SCOPED_BYTES : _SCOPED_BYTES + 1] == bytes((Kind.SEARCH,)):
        return len(key) == _SCOPED_BYTES + 1
    if key[_SCOPED_BYTES : _SCOPED_BYTES + 1] == bytes((Kind.MEMORY,)):
        return memory.is_clear_mark(keys.split_removal_row(key))
    return len(key) in (_PLACE_BYTES + 1, _SCOPED_BYTES + SLOT_BYTES + 1)


def _is_session_row(key: bytes, value: bytes, body: bytes) -> bool:
    if len(key) <= _PLACE_BYTES:
        return False
    row = keys.row_of(key)
    if row == Row.STATE:
        return _is_state(key, value, body)
    fits = _ROWS.get(row)
    if row == Row.REQUEST:
        return True
    if len(key) < _ROW_BYTES or keys.number_of(key[:_ROW_BYTES]) > _NUMBER_MAX:
        return False
    return fits is None or fits(key, value, body)


def _is_head(key: bytes, value: bytes, _: bytes) -> bool:
    head = Head.unpack(key, value)
    grows = head.revision, head.epoch, head.next_view, head.next_block, head.recount_number
    return keys.number_of(key) == 0 and max(grows) <= _NUMBER_MAX


def _is_index(_: bytes, __: bytes, body: bytes) -> bool:
    return record_spans(body) is not None


def _is_item(key: bytes, value: bytes, body: bytes) -> bool:
    rest = split_body(body)[3]
    return not value[1] & FLAG_BLOB or _is_reference(key, value, rest)


def _is_view(_: bytes, value: bytes, body: bytes) -> bool:
    view = decode_json(body, value[1])
    return isinstance(view, dict) and all(isinstance(view.get(n), int) for n in _VIEW_NUMBERS)


def _is_moment(key: bytes, value: bytes, _: bytes) -> bool:
    return is_moment(key, value) and unpack_moment(key, value) <= _NUMBER_MAX


def _is_token_page(key: bytes, _: bytes, body: bytes) -> bool:
    number, first = keys.split_token_page(key)
    whole = not first % TOKEN_PAGE_COUNTS and not len(body) % COUNT_BYTES
    return whole and number > 0 and 0 < len(body) <= COUNT_BYTES * TOKEN_PAGE_COUNTS


def _is_uses(key: bytes, _: bytes, body: bytes) -> bool:
    return is_uses_row(key, body)


def _is_usage(key: bytes, value: bytes, body: bytes) -> bool:
    return keys.number_of(key) == 0 and isinstance(unpack_usage(key, body, value[1]), list)


def _is_lease(key: bytes, value: bytes, _: bytes) -> bool:
    return keys.number_of(key) == 0 and unpack_lease(key, value).epoch <= _NUMBER_MAX


def _is_thread_row(key: bytes, value: bytes, _: bytes) -> bool:
    return is_thread_row(key, value)


def _is_state(key: bytes, value: bytes, _: bytes) -> bool:
    if key == header_key(*keys.state_place(key)):
        return StateHeader.unpack(key, value).counter <= _NUMBER_MAX
    return is_state_row(key, value) and keys.number_of(key) <= _NUMBER_MAX


def _is_pool_row(key: bytes, value: bytes, _: bytes) -> bool:
    return is_pool_row(key, value)


def _is_checkpoint(key: bytes, value: bytes, body: bytes) -> bool:
    if not keys.number_of(key):
        return 0 < unpack_last(key, body) <= _NUMBER_MAX
    return (unpack_checkpoint(key, body, value[1]).checkpoint.state or 0) <= _NUMBER_MAX


_BYTES_OF: Final = {
    OWNER_KEY: OWNER_BYTES, SECRET_KEY: SECRET_ROW_BYTES, WARM_KEY: WARM_ROW_BYTES,
}  # fmt: skip


def _is_care(key: bytes, value: bytes, body: bytes) -> bool:
    which = key[_SCOPED_BYTES:][:1]
    if key in _BYTES_OF:
        return len(body) == _BYTES_OF[key]
    if which == bytes((Care.QUARANTINE,)):
        return is_held_row(key, value)
    if which == bytes((Care.HOLD,)) and keys.split_scoped(key)[0]:
        return is_hold_row(key, value)
    if which == bytes((Care.MEMORY,)):
        return len(key) == _SCOPED_BYTES + 1 + _U64_BYTES and not body
    if which == bytes((Care.DEMAND,)):
        return is_demand(key, value)
    return _is_terms(key, value, body)


def _is_search(key: bytes, value: bytes, _: bytes) -> bool:
    return is_index_row(key, value)


def _is_terms(key: bytes, value: bytes, _: bytes) -> bool:
    return not is_terms(key) or bool(terms_of(key, value))


def _is_memory(key: bytes, value: bytes, _: bytes) -> bool:
    if key[9] in memory.JOB_ROWS:
        return memory.is_job_row(key, value)
    return memory.is_memory_row(key, value)


_Shape = Callable[[bytes, bytes, bytes], bool]
_SHAPES: Final[dict[int, _Shape]] = {
    Kind.COUNTER: _is_number,
    Kind.SCOPE: _is_scope,
    Kind.SCOPE_NAME: _is_name,
    Kind.SESSION_NAME: _is_name,
    Kind.KV_NAMESPACE: _is_name,
    Kind.SESSION: _is_session_row,
    Kind.BLOB: _is_header,
    Kind.BLOB_REFS: _is_number,
    Kind.BLOB_ADDRESS: _is_reference,
    Kind.KV: _is_entry,
    Kind.REMOVAL: _is_removal,
    Kind.THREAD_NAME: _is_name,
    Kind.THREAD: _is_thread_row,
    Kind.CHUNK: _is_pool_row,
    Kind.STATE: _is_state,
    Kind.CARE: _is_care,
    Kind.MEMORY: _is_memory,
    Kind.SEARCH: _is_search,
}
_ROWS: Final[dict[int, _Shape]] = {
    Row.HEAD: _is_head,
    Row.INDEX: _is_index,
    Row.ITEM: _is_item,
    Row.VIEW: _is_view,
    Row.TOKENS: _is_token_page,
    Row.USAGE: _is_usage,
    Row.CHECKPOINT: _is_checkpoint,
    Row.TERMS: _is_terms,
    Row.MOMENT: _is_moment,
    Row.LEASE: _is_lease,
    Row.USES: _is_uses,
}


# --- Numbers that were never assigned: rows that have one are forged or damaged -------------------
# Anyone who can write to a file can seal a row with any number in it. If copied, one near the end
# of the number range leaves none to assign later, and an encrypted file creates a key for each user
# up to the largest. A counter in the newest tree bounds the assigned numbers, unless its value is
# implausibly large. The file size is no bound: most of its former content may have been removed.

_NUMBER_BYTES: Final = 16
"""Lower bound on the bytes in a file for each number in use."""
_NUMBERED: Final = {
    Counter.SCOPE: ("scope", _NUMBER_MAX),
    Counter.SESSION: ("session", _NUMBER_MAX),
    Counter.NAMESPACE: ("namespace of key/value entries", _NUMBER_MAX),
    Counter.THREAD: ("thread", _NUMBER_MAX),
    Counter.POOL: ("pool of chunks", _NUMBER_MAX),
    Counter.GRAPH_NAMESPACE: ("namespace of a thread", 2**31),
}
"""Descriptions of numbered things, with the largest plausible number of each."""


def forget_unknown(wreck: PageScan, minted: int | None) -> list[str]:
    """Drop rows with numbers that were never assigned; return descriptions of them.

    ``minted``: the number below which the key file of an encrypted file has a key for each scope.
    """
    last = {which: _last_given(wreck, which) for which in _NUMBERED}
    if minted is not None:
        last[Counter.SCOPE] = min(last[Counter.SCOPE], minted + BLOCK - 1)
    refused: dict[int, list[int]] = defaultdict(list)

    def is_known(key: bytes, at: RowCandidate) -> bool:
        for which, number in _numbers_in(key, lambda: wreck.value(key, at)[HEADER_BYTES:]):
            if not 0 < number <= last[which]:
                refused[which].append(number)
                return False
        return True

    for key, found in list(wreck.rows.items()):
        kept = [at for at in found if is_known(key, at)]
        if not kept:
            del wreck.rows[key]
        elif len(kept) < len(found):
            wreck.rows[key] = kept
    return [
        f"{counted(len(numbers), 'row')} with the number {max(numbers)}, or another one, of a"
        f" {_NUMBERED[which][0]} that was never given out"
        for which, numbers in sorted(refused.items())
    ]


def _last_given(wreck: PageScan, which: int) -> int:
    """Return the largest number that the file may have assigned from a counter."""
    most, key = _NUMBERED[which][1], keys.counter(which)
    said = [
        keys.number_of(wreck.value(key, at))
        for at in wreck.rows.get(key, ())
        if at.rank <= Confidence.IN_USE
    ]
    plausible = [number for number in said if number <= most]
    return min(most, max(wreck.size // _NUMBER_BYTES, *plausible)) if plausible else most


def _numbers_in(key: bytes, body: Callable[[], bytes]) -> Iterator[tuple[int, int]]:
    """Yield ``(counter, number)`` of each numbered thing that a row's key and body refer to."""
    kind, found = key[0], find(key)
    if kind == Kind.COUNTER:
        if key[1] in _NUMBERED and keys.number_of(body()):
            yield key[1], keys.number_of(body())
        return
    yield from numbers_in(keys.split_removal_row(key) if kind == Kind.REMOVAL else key)
    if found is not None and found.names:
        yield found.names, unpack_name(body())[0]
    elif kind == Kind.THREAD and found is not None:
        if found.row == ThreadRow.HEAD:
            yield Counter.POOL, int.from_bytes(body()[:8], "big")
        elif found.row == ThreadRow.NAMESPACE:
            yield Counter.GRAPH_NAMESPACE, int.from_bytes(body()[:4], "big")


# --- Interrupted deletions: deleted data does not come back ---------------------------------------
# A deletion removes the name, hides the head and leaves a ``REMOVAL`` row until the last row is
# gone. Session numbers are never reused, so any such row, however old, proves that the session was
# deleted for good. A blob's slot may have been refilled, so there only a current row counts.

Slots = set[tuple[int, bytes]]
_GRAPH_KINDS = (Kind.THREAD, Kind.CHUNK)
_BLOB_KINDS = (Kind.BLOB, Kind.BLOB_CHUNK, Kind.BLOB_REFS)


def forget_removed(wreck: PageScan) -> set[Place]:
    """Drop the rows of everything that was being removed; return the sessions among it."""
    sessions: set[Place] = set()
    slots: Slots = set()
    graphs: set[bytes] = set()
    cleared: dict[int, int] = {}
    for row, found in wreck.rows.items():
        if row[0] == Kind.REMOVAL:
            prefix = keys.split_removal_row(row)
            if prefix[0] == Kind.SESSION:
                sessions.add(keys.split_session_prefix(prefix))
            elif prefix[0] in _GRAPH_KINDS:
                graphs.add(prefix)
            elif prefix[0] == Kind.SEARCH:
                continue  # no index is copied
            elif prefix[0] == Kind.MEMORY:
                with suppress(CorruptValueError):
                    end = max(memory.cleared_below(row, wreck.value(row, at)) for at in found)
                    cleared[keys.split_scoped(prefix)[0]] = end
            elif found[0].rank <= Confidence.IN_USE:
                slots.add(keys.split_scoped(prefix))
    if sessions or slots or graphs:
        _add_parents(wreck, sessions)
        for key in [key for key in wreck.rows if _is_of(wreck, key, sessions, slots, graphs)]:
            del wreck.rows[key]
    for scope, end in cleared.items():
        for key in [key for key in wreck.rows if memory.is_entry_below(key, scope, end)]:
            del wreck.rows[key]
    return sessions


DATABASE_CARE: Final = keys.scoped(Kind.CARE, 0), keys.after(keys.scoped(Kind.CARE, 0))
"""The key range of the rows that record erased users and the owner of the key file."""


def owner_in(wreck: PageScan) -> bytes | None:
    """Return the owner of the key file from the most credible row, or None."""
    for at in wreck.rows.get(OWNER_KEY, ()):
        return wreck.value(OWNER_KEY, at)[HEADER_BYTES:]
    return None


SCOPE_NAMES: Final = bytes((Kind.COUNTER,)), keys.after(bytes((Kind.SCOPE_NAME,)))
"""The key range of the rows that list the scopes."""
_SCOPE_BYTES: Final = 16
"""Lower bound on a scope's bytes in a file: its tombstone takes more."""


def erased_scopes(care: PageScan, named: PageScan) -> tuple[set[int], set[int]]:
    """Return the scopes whose users were or are being erased, and those that may have been.

    A scope counts as erased if its tombstone, or the row of an unfinished erasure, is more credible
    than every row that names the scope, or if no row names it. A page that is not in use carries no
    weight against one that is: a power failure rolls back commits, and their numbers are then
    assigned again. If both are equally credible, the erasure is uncertain.

    Args:
        care: a scan of ``DATABASE_CARE``.
        named: a scan of ``SCOPE_NAMES`` in the same file.
    """
    stones: dict[int, Confidence] = {}
    for key, found in care.rows.items():
        if key.startswith(TOMBSTONES):
            if key == tombstone_of(keys.number_of(key)):
                _keep_surest(stones, keys.number_of(key), found[0].rank)
        elif key.startswith(ERASURES):
            for at in found:
                with suppress(CorruptValueError):
                    for number in scopes_erased(key, care.value(key, at)):
                        _keep_surest(stones, number, at.rank)
    erased: set[int] = set()
    unsure: set[int] = set()
    ranks = {number: rank for number, (rank, *_) in names_in(named).items()}
    last = _last_scope(named, ranks)
    for number, rank in stones.items():
        other = ranks.get(number)
        if other is Confidence.BEFORE:  # the erasure may be the last commit
            other = Confidence.UNKNOWN
        if not 0 < number <= last:
            continue
        if other is None or rank < other:
            erased.add(number)
        elif rank == other:
            unsure.add(number)
    return erased, unsure


def names_in(wreck: PageScan) -> dict[int, tuple[Confidence, str, str]]:
    """The rank of the most credible row that names each scope, with app and user."""
    found: dict[int, tuple[Confidence, str, str]] = {}
    for key, candidates in wreck.rows.items():
        if key[0] not in (Kind.SCOPE, Kind.SCOPE_NAME):
            continue
        for at in candidates:
            body = wreck.value(key, at)[HEADER_BYTES:]
            if key[0] == Kind.SCOPE:
                number, texts = keys.number_of(key), keys.unpack_texts(body)
            else:
                number, texts = unpack_name(body)
            if number not in found or at.rank < found[number][0]:
                found[number] = at.rank, texts[0], texts[1]
    return found


def _keep_surest(ranks: dict[int, Confidence], number: int, rank: Confidence) -> None:
    ranks[number] = min(rank, ranks.get(number, rank))


def _last_scope(named: PageScan, ranks: dict[int, Confidence]) -> int:
    """The largest possible scope number; a bound, since work and keys grow with the numbers."""
    possible = named.size // _SCOPE_BYTES
    key = keys.counter(keys.Counter.SCOPE)
    found = named.rows.get(key)
    if not found or found[0].rank > Confidence.IN_USE:
        return possible
    given = [int.from_bytes(named.value(key, at)[HEADER_BYTES:], "big") for at in found]
    given += [number for number in ranks if number <= possible]
    return min(possible, max(given))


def forget_erased(wreck: PageScan) -> tuple[set[int], dict[int, tuple[str, str]]]:
    """Drop everything in scopes that were or may have been erased.

    The new file needs no tombstones: it holds no rows and no keys of an erased user, and no handle
    knows it yet.

    Returns:
        All these scopes, and ``(app, user)`` by scope of the uncertain ones.
    """
    erased, unsure = erased_scopes(wreck, wreck)
    found = names_in(wreck) if unsure else {}
    numbers = erased | unsure
    if numbers:
        for key in [key for key in wreck.rows if _scope_of(wreck, key) in numbers]:
            del wreck.rows[key]
    return numbers, {number: found[number][1:] for number in sorted(unsure)}


def _scope_of(wreck: PageScan, key: bytes) -> int | None:
    """The scope to which a row belongs; None if it belongs to none."""
    if key[0] == Kind.SCOPE_NAME:
        return unpack_name(wreck.value(key, wreck.rows[key][0])[HEADER_BYTES:])[0]
    if key[0] == Kind.EXPIRY:
        return keys.split_scoped(keys.split_expiry_row(key)[1])[0]
    return None if key[0] <= Kind.COUNTER else keys.split_scoped(key)[0]


def _is_of(
    wreck: PageScan, key: bytes, sessions: set[Place], slots: Slots, graphs: set[bytes]
) -> bool:
    if key[0] in _GRAPH_KINDS:
        return key[:_PLACE_BYTES] in graphs
    if key[0] == Kind.THREAD_NAME:
        number = wreck.value(key, wreck.rows[key][0])[HEADER_BYTES : HEADER_BYTES + 8]
        return bytes((Kind.THREAD,)) + key[1:9] + number in graphs
    if key[0] == Kind.SESSION:
        scope, session = keys.split_session_prefix(key)
        if keys.row_of(key) == Row.CHILD and (scope, keys.number_of(key)) in sessions:
            return True
        return (scope, session) in sessions
    if key[0] in _BLOB_KINDS:
        scope, rest = keys.split_scoped(key)
        return (scope, rest[:SLOT_BYTES]) in slots
    return False


def _add_parents(wreck: PageScan, sessions: set[Place]) -> None:
    """Add the hidden sessions that were kept only for forks that have been removed."""
    forks: dict[Place, set[Place]] = defaultdict(set)
    above: dict[Place, set[Place]] = defaultdict(set)
    for key in wreck.rows:
        if key[0] == Kind.SESSION and keys.row_of(key) == Row.CHILD:
            place = keys.split_session_prefix(key)
            fork = (place[0], keys.number_of(key))
            forks[place].add(fork)
            above[fork].add(place)
    todo = list(sessions)
    while todo:
        for place in above[todo.pop()] - sessions:
            if forks[place] <= sessions and was_hidden(wreck, place):
                sessions.add(place)
                todo.append(place)


def was_hidden(wreck: PageScan, place: Place) -> bool:
    """Return True if any version of a session's head is marked as deleted."""
    key = head_key(*place)
    found = wreck.rows.get(key, ())
    with suppress(MemcoreError):
        return any(Head.unpack(key, wreck.value(key, at)).hidden for at in found)
    return False


# --- Selection of the rows to copy to the new file ------------------------------------------------

Place = tuple[int, int]
"""``(scope, session)``."""
_IMMUTABLE_ROWS: Final = (Row.ITEM, Row.INDEX)
_COUNTING_ROWS: Final = (Row.HEAD, Row.ITEM, Row.INDEX)
_SEQ_BYTES: Final = 16
"""Lower bound on a seq's bytes in a file: its item row and its index record take more."""
_SESSION_ROW_AT: Final = 17
_NAMES: Final = frozenset(each.kind for each in ROWS if each.names)
_AGE_BYTES: Final = {Kind.CHUNK: 4, Kind.COUNTER: 8, **dict.fromkeys(_NAMES, 8)}
"""Size of the number that begins a row and grows with each version: of chunks, the epoch."""
_SCOPED: Final = frozenset(each.kind for each in ROWS if each.owner == "scope") - {
    Kind.CARE,
    Kind.REMOVAL,
}


class RowSelector:
    """The chosen rows of a damaged file, grouped by owner."""

    def __init__(self, wreck: PageScan, seed: bytes | None, minted: int | None = None) -> None:
        self.wreck = wreck
        self.seed = seed
        self._seed = None if seed is None else int.from_bytes(seed[:8], "little")
        self.chosen: dict[bytes, RowCandidate] = {}
        self.unsure: list[bytes] = []
        """Chosen keys that may have been deleted or replaced before."""
        self.sessions: dict[Place, list[bytes]] = defaultdict(list)
        """The chosen keys of each session."""
        self.spare: dict[Place, list[bytes]] = defaultdict(list)
        """Keys of items and index pages that are not in the newest tree."""
        self.removed: set[Place] = set()
        """Sessions that were being deleted."""
        self.deleted: set[Place] = set()
        """Deleted sessions whose rows are still shared by forks."""
        self.doubtful: set[Place] = set()
        """Sessions that may have been deleted: neither name nor head is certain."""
        self.scopes: dict[int, tuple[str, str]] = {}
        self.names: dict[Place, str] = {}
        self._name_keys: dict[Place, bytes] = {}
        self.namespaces: dict[tuple[int, int], str] = {}
        self.threads: dict[Place, str] = {}
        """The names of graph threads."""
        self.last: dict[int, int] = defaultdict(int)
        """The largest number known to be assigned, by counter."""
        self.blobs: dict[tuple[int, bytes], int] = {}
        """The sizes of the complete blobs, by scope and slot."""
        self.blobs_lost = 0
        self.unknown = forget_unknown(wreck, minted)
        """Descriptions of rows dropped because of their numbers."""
        self.erased, self.doubtful_users = forget_erased(wreck)
        """Scopes of users who were or may have been erased; app and user of the uncertain ones."""
        self._removed = forget_removed(wreck)
        for key, found in wreck.rows.items():
            self._choose(key, found)
        self._leave_out_forgotten()
        self._read_names()
        self._leave_out_removed()
        self._leave_out_deleted()
        self._find_blobs()

    def value(self, key: bytes) -> bytes:
        """The chosen value of a key."""
        return self.wreck.value(key, self.chosen[key])

    # --- choosing -----------------------------------------------------------------------------

    def _choose(self, key: bytes, found: list[RowCandidate]) -> None:
        in_session = key[0] == Kind.SESSION and len(key) > _SESSION_ROW_AT
        if in_session and key[_SESSION_ROW_AT] in _COUNTING_ROWS:
            found = [at for at in found if self._is_possible(key, at)]
            if not found:
                return
        surest = found[0].rank
        if in_session and surest is not Confidence.TREE and key[_SESSION_ROW_AT] in _IMMUTABLE_ROWS:
            self.spare[keys.split_session_prefix(key)].append(key)
        if surest is Confidence.FREED:
            return
        equal = [at for at in found if at.rank is surest]
        self.chosen[key] = (
            equal[0] if len(equal) == 1 else max(equal, key=lambda at: self._age(key, at))
        )
        if surest >= Confidence.BEFORE:
            self.unsure.append(key)
        if in_session:
            self.sessions[keys.split_session_prefix(key)].append(key)

    def _is_possible(self, key: bytes, at: RowCandidate) -> bool:
        """Return True if the file is large enough for the seqs a row claims."""
        seqs = self.wreck.size // _SEQ_BYTES
        if key[_SESSION_ROW_AT] == Row.HEAD:
            return Head.unpack(key, self.wreck.value(key, at)).next_seq <= seqs
        return keys.number_of(key) <= seqs

    def _age(self, key: bytes, at: RowCandidate) -> int:
        """Return a number that grows with each version of a row, where the row has one."""
        value = self.wreck.value(key, at)
        body = value[HEADER_BYTES:]
        row = key[_SESSION_ROW_AT] if key[0] == Kind.SESSION else 0
        if row == Row.HEAD:
            with suppress(MemcoreError):
                return int(Head.unpack(key, value).revision)
            return -1
        if row or key[0] == Kind.STATE:
            return len(body) if row == Row.INDEX else int.from_bytes(body[:8], "little")
        if key[0] in _AGE_BYTES:
            return int.from_bytes(body[: _AGE_BYTES[key[0]]], "big")
        if key[0] == Kind.MEMORY:
            with suppress(MemcoreError):
                of_job = key[9] in memory.JOB_ROWS
                return (memory.version_of_job if of_job else memory.version_in)(key, value)
        return body[0] if key[0] == Kind.BLOB and body else 0

    def _leave_out_forgotten(self) -> None:
        """Leave out versions of memories that were forgotten, or replaced by an older one.

        Not even the bytes of the new file are to hold their texts.
        """
        gone: set[bytes] = set()
        for key in self.chosen:
            entry = memory.entry_of_version(key) if key[0] == Kind.MEMORY else None
            if entry is None:
                continue
            there = entry in self.chosen and memory.is_earlier_version(key, self.value(entry))
            if not there:
                gone.add(key)
        for key in gone:
            del self.chosen[key]
        self.unsure = [key for key in self.unsure if key not in gone]

    def _leave_out_removed(self) -> None:
        """Leave out sessions whose deletion had begun, since it was already acknowledged."""
        for key in [key for key in self.chosen if key[0] == Kind.REMOVAL]:
            prefix = keys.split_removal_row(key)
            if len(prefix) != _SESSION_ROW_AT or prefix[0] != Kind.SESSION:
                continue
            place = keys.split_session_prefix(prefix)
            if place in self.names:
                continue  # in use, so the removal row is the wrong one
            self._leave_out(place)

    def _leave_out(self, place: Place) -> None:
        self.removed.add(place)
        for row in self.sessions.pop(place, ()):
            del self.chosen[row]
        self.spare.pop(place, None)

    def _leave_out_deleted(self) -> None:
        """Decide which sessions were deleted among those whose name and head may be outdated.

        A session counts as deleted if an old head is marked hidden, or if it certainly has no name.
        """
        sure_names = {place for place, key in self._name_keys.items() if self._is_sure(key)}
        forks = self.forks()
        staying = set(self.places())
        # A fork has a larger number than its parent, so it is decided before its parent.
        for place in sorted(staying, reverse=True):
            if place in sure_names or self._is_sure(head_key(*place)):
                continue
            start = keys.scoped(Kind.SESSION_NAME, place[0])
            nameless = place not in self.names
            nameless = nameless and not self.wreck.may_hold(start, keys.after(start))
            if not nameless and not was_hidden(self.wreck, place):
                self.doubtful.add(place)
                continue
            self.names.pop(place, None)
            if forks[place] & staying:
                self.deleted.add(place)
            else:
                staying.remove(place)
                self._leave_out(place)

    def places(self) -> list[Place]:
        """List the sessions with any rows."""
        return sorted({*self.sessions, *(self.spare.keys() & self.names.keys())})

    def _is_sure(self, key: bytes) -> bool:
        return key in self.chosen and self.chosen[key].rank <= Confidence.IN_USE

    def forks(self) -> dict[Place, set[Place]]:
        """Return the forks of each session, from the rows of both parents and forks."""
        found: dict[Place, set[Place]] = defaultdict(set)
        for place, rows in self.sessions.items():
            for key in rows:
                if key[_SESSION_ROW_AT] == Row.CHILD:
                    found[place].add((place[0], keys.number_of(key)))
                elif key[_SESSION_ROW_AT] == Row.HEAD:
                    parent = Head.unpack(key, self.value(key)).parent_session
                    found[place[0], parent].add(place)
        return found

    # --- names --------------------------------------------------------------------------------

    def _read_names(self) -> None:
        for key in self.chosen:
            if key[0] == Kind.COUNTER and key[1] in _NUMBERED:
                self.last[key[1]] = max(self.last[key[1]], keys.number_of(self.value(key)))
            elif key[0] in _NAMES and key[0] != Kind.SCOPE_NAME:
                self._read_name(key)
        self._read_scopes()
        users, named = set(self.scopes.values()), names_by_scope(self.namespaces)
        for key in self.chosen:
            if key[0] in _SCOPED or (key[0] == Kind.CARE and keys.split_scoped(key)[0]):
                scope = keys.split_scoped(key)[0]
                if scope not in self.scopes:
                    self.scopes[scope] = unused("salvaged", f"scope-{scope}", users)
            if key[0] == Kind.KV:
                place = keys.split_session_prefix(key)
                if place not in self.namespaces:
                    self.namespaces[place] = unused(place[0], f"salvaged-{place[1]}", named)[1]
        for which, numbers in (
            (keys.Counter.SCOPE, [*self.scopes, *self.erased]),
            (
                keys.Counter.SESSION,
                [s for _, s in (*self.names, *self.sessions, *self.spare, *self._removed)],
            ),
            (keys.Counter.NAMESPACE, [n for _, n in self.namespaces]),
        ):
            self.last[which] = max(self.last[which], *numbers, 0)

    def _read_scopes(self) -> None:
        """Assign each name to one scope, preferring the scope that both of its rows name."""
        claims: dict[tuple[str, str], list[int]] = defaultdict(list)
        for kind in (Kind.SCOPE, Kind.SCOPE_NAME):
            for key in sorted(key for key in self.chosen if key[0] == kind):
                body = self.value(key)[HEADER_BYTES:]
                if kind == Kind.SCOPE:
                    number, texts = keys.number_of(key), keys.unpack_texts(body)
                else:
                    number, texts = unpack_name(body)
                claims[texts[0], texts[1]].append(number)
        for who, numbers in claims.items():
            free = [number for number in numbers if number not in self.scopes]
            if free:
                self.scopes[max(free, key=numbers.count)] = who

    def _read_name(self, key: bytes) -> None:
        kind = key[0]
        number, found = names.unpack_name(self.value(key)[HEADER_BYTES:])
        place = keys.split_scoped(key)[0], number
        if kind == Kind.THREAD_NAME:
            self.threads[place] = found[0]
        elif kind == Kind.KV_NAMESPACE:
            self.namespaces[place] = found[0]
        elif place not in self._removed:
            self.names[place] = found[0]
            self._name_keys[place] = key

    # --- blobs --------------------------------------------------------------------------------

    def blob_of(self, key: bytes, value: bytes) -> tuple[int, bytes] | None:
        """``(scope, slot)`` of the blob to which an item or entry row refers, if any."""
        if not value[1] & FLAG_BLOB:
            return None
        return keys.split_session_prefix(key)[0], slot_of(_reference(key, value))

    def _references(self) -> Iterator[tuple[int, BlobRef]]:
        for key, at in self.wreck.rows.items():
            if key[0] != Kind.SESSION or keys.split_session_prefix(key) in self.removed:
                continue
            if key[_SESSION_ROW_AT] == Row.ITEM:
                value = self.wreck.value(key, at[0])
                if value[1] & FLAG_BLOB:
                    yield keys.split_session_prefix(key)[0], _reference(key, value)
        for key in self.chosen:
            if key[0] == Kind.KV and self.value(key)[1] & FLAG_BLOB:
                yield keys.split_session_prefix(key)[0], _reference(key, self.value(key))
            elif key[0] == Kind.BLOB_ADDRESS:
                packed = self.value(key)[HEADER_BYTES:]
                yield keys.split_scoped(key)[0], BlobRef.unpack(packed)

    def _find_blobs(self) -> None:
        """Select the referenced blobs: others are unreachable or were being deleted."""
        wanted: dict[tuple[int, bytes], set[int]] = defaultdict(set)
        for scope, ref in self._references():
            wanted[scope, slot_of(ref)].add(ref.size)
        for (scope, slot), sizes in wanted.items():
            whole = [size for size in sizes if self._is_whole(scope, slot, size)]
            if whole:
                self.blobs[scope, slot] = whole[0]
            else:
                self.blobs_lost += 1

    def chunks(self, scope: int, slot: bytes, size: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield the key and value of each chunk, current or not, up to the first missing one."""
        for number in range(chunk_count(size)):
            key = keys.blob_chunk(scope, slot, number)
            if key not in self.wreck.rows:
                return
            yield key, self.wreck.value(key, self.wreck.rows[key][0])

    def _is_whole(self, scope: int, slot: bytes, size: int) -> bool:
        if len(slot) != SLOT_BYTES:
            return False
        digest: Any = xxh3_128(seed=self._seed or 0)
        held = 0
        for _, value in self.chunks(scope, slot, size):
            body = value[HEADER_BYTES:]
            if len(body) != min(BLOB_CHUNK_BYTES, size - held):
                return False
            digest.update(body)
            held += len(body)
        # Without the seed the slot proves nothing, but each chunk is still verified by itself.
        return held == size and (self._seed is None or digest.digest() == slot[:-1])


_Of = TypeVar("_Of")


def unused(of: _Of, name: str, known: Container[tuple[_Of, str]]) -> tuple[_Of, str]:
    """Return a substitute for a lost name that differs from all known ones."""
    while (of, name) in known:
        name += "'"
    return of, name


def names_by_scope(named: dict[Place, str]) -> set[tuple[int, str]]:
    """Return the names in use, each with its scope."""
    return {(scope, name) for (scope, _), name in named.items()}


def _reference(key: bytes, value: bytes) -> BlobRef:
    """The reference in an item or entry row."""
    if key[0] == Kind.KV:
        return reference_in(value[1], value[HEADER_BYTES:])
    return BlobRef.unpack(split_body(body_of(value))[3])
