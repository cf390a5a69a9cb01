"""Rows of a state: a header, and the versions of each field by counter.

``05 | scope | session | 0B | 0`` is the header of a session's state, ``05 | scope | session | 0B |
field text | counter`` a version. Every change of the state has a number, its counter. A change
appends a version of each field that it changes and rewrites none, so the value of a field at
counter c is its newest version with a counter of at most c. An empty body means that the field was
deleted. ``begin_trim`` and ``trim_piece`` remove versions.

The state shared by the sessions of a scope is stored under ``11 | scope`` in the same format; in
signatures it is the state of session 0. It has no history: each version is removed by the next one,
and deletions are kept only for a while, for watches. Its header's floor is the counter since which
all changes are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from struct import Struct
from typing import Any, Final, NamedTuple

from memcore.codec import keys
from memcore.codec.keys import Kind, Row
from memcore.codec.values import (
    HEADER_BYTES,
    decode_json,
    decoding,
    encode_json,
    open_value,
    seal_value,
)
from memcore.errors import CorruptValueError, InvalidUpdateError, NotFoundError
from memcore.limits import PIECE_ROWS, STATE_DELETIONS_TOLD, STATE_FIELD_BYTES_MAX, STATE_PAGE
from memcore.rows import names
from memcore.store.interface import DeleteBudget, ReadTxn, Txn

__all__ = [
    "FieldNames",
    "FieldVersion",
    "StateHeader",
    "StateStep",
    "Trimmed",
    "begin_trim",
    "check_state",
    "count_shared",
    "counter_before",
    "drop_inherited",
    "drop_version",
    "fields_at",
    "forget_deletions",
    "header_key",
    "header_problem",
    "inherit",
    "is_moment",
    "is_state_row",
    "json_fields",
    "mend_state",
    "moments_of",
    "packed_field",
    "put_moment",
    "read_header",
    "restore",
    "state_counter",
    "trim_piece",
    "value_at",
    "values_at",
    "version_at",
    "versions_of",
    "write_header",
    "write_past",
]


# --- The counter of a session's state before each of its items ------------------------------------
# ``05 | scope | session | 0C | seq`` holds the counter at the time when ``seq`` was the next seq.
# Seqs are never reused, so these rows are in chronological order, and the newest one up to an item
# gives the state to which it was appended, even after undo and rewind.

_COUNTER_BYTES: Final = 8
_END: Final = 2**63


def put_moment(txn: Txn, scope: int, session: int, seq: int, counter: int) -> None:
    """Record the counter of the state to which the item ``seq`` will be appended."""
    key = keys.session_row(scope, session, Row.MOMENT, seq)
    txn.put(key, seal_value(key, counter.to_bytes(_COUNTER_BYTES, "little")))


def counter_before(txn: ReadTxn, scope: int, session: int, seq: int) -> int | None:
    """Return the counter of the state to which an item of the session was appended.

    None: no row records it; the state was empty then, unless its history was trimmed.

    Raises:
        CorruptValueError: the row that records it is damaged.
    """
    start = keys.session_row(scope, session, Row.MOMENT, 0)
    stop = keys.session_row(scope, session, Row.MOMENT, seq + 1)
    for key, value in txn.scan(start, stop, reverse=True, limit=1):
        return unpack_moment(key, value)
    return None


def moments_of(
    txn: ReadTxn, scope: int, session: int, start: bytes = b"", stop: bytes = b""
) -> Iterator[tuple[int, int]]:
    """Yield ``(seq, counter)`` of every readable ``MOMENT`` row in a key range, in order."""
    rows = keys.session_rows(scope, session, Row.MOMENT)
    for key, value in txn.scan(start or rows, stop or keys.after(rows)):
        try:
            yield keys.number_of(key), unpack_moment(key, value)
        except CorruptValueError:  # check() reports it
            continue


def is_moment(key: bytes, value: bytes) -> bool:
    """Return True if a row is a valid ``MOMENT`` row.

    Raises:
        CorruptValueError: it is malformed.
    """
    return keys.split_session_row(key)[3] > 0 and bool(unpack_moment(key, value))


def unpack_moment(key: bytes, value: bytes) -> int:
    """Unpack the counter in a ``MOMENT`` row.

    Raises:
        CorruptValueError: it is damaged or malformed.
    """
    body = open_value(key, value)[1]
    counter = int.from_bytes(body, "little")
    if len(body) == _COUNTER_BYTES and 0 < counter < _END:
        return counter
    msg = f"the counter of a state under key {key.hex()} is malformed; run 'memcore check'"
    raise CorruptValueError(msg, key=key)


# --- The rows of a state: a header, and the versions of each field --------------------------------

_U64: Final = Struct("<Q")
_NUMBERS: Final = 2


_VERSION_BYTES: Final = 1024
"""Skipping a version costs about as much as copying this many bytes; a seek, three times that."""
_OLDER_BYTES: Final = 32 * _VERSION_BYTES


class StateHeader(NamedTuple):
    """Header of a state: its counter, and the counters whose values are kept."""

    counter: int = 0
    """Number of the last change; 0 if there was none."""
    floor: int = 0
    """Oldest counter since which the values at every counter are known."""
    kept: tuple[int, ...] = ()
    """Earlier counters whose values are also known, ascending."""

    def pack(self) -> bytes:
        """Return the row's body."""
        return b"".join(map(_U64.pack, (self.counter, self.floor, *self.kept)))

    @classmethod
    def unpack(cls, key: bytes, value: bytes) -> StateHeader:
        """Unpack the header in a row.

        Raises:
            CorruptValueError: it is damaged, or its numbers are invalid.
        """
        body = open_value(key, value)[1]
        if len(body) >= _NUMBERS * _U64.size and not len(body) % _U64.size:
            counter, floor, *kept = (number for (number,) in _U64.iter_unpack(body))
            ascending = [*kept, floor, counter]
            if counter < _END and ascending == sorted(ascending):
                return cls(counter, floor, tuple(kept))
        msg = f"the header of a state under key {key.hex()} is malformed; run 'memcore check'"
        raise CorruptValueError(msg, key=key)

    def holds(self, counter: int) -> bool:
        """Return True if the values at a counter are kept."""
        return self.floor <= counter <= self.counter or counter in self.kept


class FieldVersion(NamedTuple):
    """One stored value of a field."""

    key: bytes
    flags: int
    body: bytes

    @property
    def is_deletion(self) -> bool:
        """True if this version deletes the field."""
        return not self.body

    def value(self) -> Any:
        """Decode the value.

        Raises:
            CorruptValueError: it is not JSON.
        """
        with decoding(self.key, "state"):
            return decode_json(self.body, self.flags)


def header_key(scope: int, session: int) -> bytes:
    """Return the key of a state's header."""
    return keys.numbered(keys.state_rows(scope, session), 0)


def count_shared(txn: ReadTxn) -> int:
    """Count the fields in the states of all users and applications."""
    start, stop = bytes((Kind.STATE,)), bytes((Kind.STATE + 1,))
    rows = sum(len(value) != HEADER_BYTES for _, value in txn.scan(start, stop))
    headers = (header_key(scope, 0) for scope in names.scopes_with_rows(txn, Kind.STATE))
    return rows - sum(txn.get(key) is not None for key in headers)


def packed_field(key: str, *, prefix: str = "") -> bytes:
    """Return a field's name as encoded in keys, without its prefix.

    Raises:
        InvalidUpdateError: it is not a valid name, or is too long.
    """
    if not isinstance(key, str) or not key:
        msg = f"a field of the state has a name: expected a non-empty str, got {key!r:.40}"
        raise InvalidUpdateError(msg)
    if prefix and key == prefix:
        msg = f"a field of the state needs a name after the prefix {key!r}"
        raise InvalidUpdateError(msg, key=key)
    packed = keys.pack_text(key.removeprefix(prefix))
    if len(packed) > STATE_FIELD_BYTES_MAX:
        msg = (
            f"the field {key[:40]!r}... takes {len(packed) - 1} bytes: expected at most "
            f"{STATE_FIELD_BYTES_MAX - 1}"
        )
        raise InvalidUpdateError(msg, key=key)
    return packed


def read_header(txn: ReadTxn, scope: int, session: int) -> StateHeader:
    """Read the header of a state; an empty header if nothing was ever written.

    Raises:
        CorruptValueError: it is damaged.
    """
    key = header_key(scope, session)
    value = txn.get(key)
    return StateHeader() if value is None else StateHeader.unpack(key, value)


def write_header(txn: Txn, scope: int, session: int, header: StateHeader) -> None:
    """Write the header and wake the watches of the state."""
    key = header_key(scope, session)
    txn.put(key, seal_value(key, header.pack()))
    txn.notify(key)


def state_counter(txn: ReadTxn, scope: int, session: int) -> int:
    """Return the number of the state's last change; 0 if there was none."""
    return read_header(txn, scope, session).counter


def version_at(txn: ReadTxn, rows: bytes, packed: bytes, counter: int) -> FieldVersion | None:
    """Return the version of a field that applies at a counter; None if it had no value then."""
    versions = keys.state_field(rows, packed)
    start, stop = keys.numbered(versions, 0), keys.numbered(versions, counter + 1)
    for key, value in txn.scan(start, stop, reverse=True, limit=1):
        found = FieldVersion(key, *open_value(key, value))
        return None if found.is_deletion else found
    return None


def value_at(txn: ReadTxn, scope: int, session: int, key: str, counter: int) -> FieldVersion | None:
    """Look up a version as ``version_at`` does, by the field's name."""
    rows = keys.state_rows(scope, session)
    return version_at(txn, rows, packed_field(key), counter)


def values_at(
    txn: ReadTxn, scope: int, session: int, counter: int | None = None
) -> dict[str, FieldVersion]:
    """Return all fields that have a value at a counter (None: now), by name.

    Raises:
        NotFoundError: the counter does not exist, or its values were trimmed.
        CorruptValueError: a row is damaged.
    """
    header = read_header(txn, scope, session)
    at = header.counter if counter is None else counter
    if not header.holds(at):
        known = f"{header.floor} to {header.counter}"
        if header.kept:
            known += f" and {', '.join(map(str, header.kept))}"
        msg = f"the state at counter {at} is not known: it is at {known}"
        raise NotFoundError(msg)
    rows = keys.state_rows(scope, session)
    found: list[tuple[str, FieldVersion]] = []
    for packed, key, value in _newest(txn, rows):
        version: FieldVersion | None
        if keys.number_of(key) > at:
            version = version_at(txn, rows, packed, at)
        else:
            version = FieldVersion(key, *open_value(key, value))
        if version is not None and not version.is_deletion:
            found.append((keys.unpack_text(packed), version))
    return dict(reversed(found))


class FieldNames(dict[bytes, tuple[bytes, int]]):
    """Cache of field names as JSON followed by a colon, and codec flags, by packed name.

    Args:
        prefix: prepended to each name.
    """

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix

    def __missing__(self, packed: bytes) -> tuple[bytes, int]:
        """Encode a name.

        Raises:
            CorruptValueError: it is malformed.
        """
        name, flags = encode_json(self.prefix + keys.unpack_text(packed))
        found = self[packed] = name + b":", flags
        return found


def json_fields(txn: ReadTxn, scope: int, session: int, names: FieldNames) -> tuple[bytes, int]:
    """Return JSON object members for all fields that have a value now, and the codec flags.

    Nothing is decoded, so this costs a fraction of ``values_at``.

    Args:
        txn: the transaction.
        scope: the scope.
        session: the session that has the state.
        names: cache of encoded names, for reading many states.

    Raises:
        CorruptValueError: a row is damaged.
    """
    found: list[bytes] = []
    every = 0
    for packed, key, value in _newest(txn, keys.state_rows(scope, session)):
        flags, body = open_value(key, value)
        if body:
            name, own = names[packed]
            found.append(name + body)
            every |= flags | own
    found.reverse()
    return b",".join(found), every


def fields_at(txn: ReadTxn, scope: int, session: int) -> list[str]:
    """Return the names of the fields that have a value now, even a damaged one."""
    rows = keys.state_rows(scope, session)
    found = [
        keys.unpack_text(packed)
        for packed, _, value in _newest(txn, rows)
        if len(value) != HEADER_BYTES
    ]
    return found[::-1]


def changed_since(
    txn: ReadTxn, scope: int, session: int, counter: int
) -> tuple[bool, list[str], list[str]]:
    """Return ``(is_complete, written, deleted)``: names of fields changed since a counter.

    ``is_complete`` is false if deletions since then have been discarded.
    """
    written: list[str] = []
    deleted: list[str] = []
    for packed, key, value in _newest(txn, keys.state_rows(scope, session)):
        if keys.number_of(key) > counter:
            name = keys.unpack_text(packed)
            (deleted if len(value) == HEADER_BYTES else written).append(name)
    is_known = read_header(txn, scope, session).floor <= counter
    return is_known, written[::-1], deleted[::-1]


def _newest(txn: ReadTxn, rows: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Yield packed name, key and value of each field's newest version, the last field first."""
    start, stop = keys.behind(keys.numbered(rows, 0)), keys.after(rows)
    newest: dict[bytes, tuple[bytes, bytes]] = {}
    older = 0
    for row in txn.scan(start, stop):
        packed = row[0][len(rows) : -_COUNTER_BYTES]
        if packed in newest:
            older += _VERSION_BYTES + len(newest[packed][1])
            if older > _OLDER_BYTES + _VERSION_BYTES * len(newest):
                break
        newest[packed] = row
    else:
        for packed in reversed(newest):
            yield packed, *newest[packed]
        return
    # Too many superseded versions: one seek per field is cheaper.
    while True:
        last = next(iter(txn.scan(start, stop, reverse=True, limit=1)), None)
        if last is None:
            return
        packed = last[0][len(rows) : -_COUNTER_BYTES]
        stop = keys.numbered(keys.state_field(rows, packed), 0)
        yield packed, *last


def put_version(
    txn: Txn, rows: bytes, packed: bytes, counter: int, stored: tuple[bytes, int] | None
) -> None:
    """Append a version: body and flags, or None for a deletion."""
    key = keys.numbered(keys.state_field(rows, packed), counter)
    body, flags = stored or (b"", 0)
    txn.put(key, seal_value(key, body, flags))


def drop_version(
    txn: Txn, place: tuple[int, int], key: str, counter: int, stored: tuple[bytes, int]
) -> None:
    """Remove a field's version of a counter from the past, if it is ``stored``: body and flags.

    The newest version stays, because it is the field's value.
    """
    rows, packed = keys.state_rows(*place), packed_field(key)
    found = version_at(txn, rows, packed, counter)
    newest = version_at(txn, rows, packed, _END)
    if (
        found is not None
        and newest is not None
        and keys.number_of(found.key) == counter < keys.number_of(newest.key)
        and (found.body, found.flags) == stored
    ):
        txn.delete(found.key)


def drop_inherited(
    txn: Txn,
    scope: int,
    session: int,
    key: str,
    stored: tuple[bytes, int],
    *,
    owner: int,
    counter: int,
) -> None:
    """Replace what a fork inherited of a field, if it is ``stored``, by what was there before.

    That is the value of the session ``owner`` just before ``counter``. The fork's newest version
    stays, because it is the field's value.
    """
    rows, packed = keys.state_rows(scope, session), packed_field(key)
    floor = read_header(txn, scope, session).floor
    found, newest = version_at(txn, rows, packed, floor), version_at(txn, rows, packed, _END)
    if found is None or newest is None or found.key == newest.key:
        return
    if keys.number_of(found.key) == floor and (found.body, found.flags) == stored:
        before = value_at(txn, scope, owner, key, counter - 1)
        if before is None or before.is_deletion:
            txn.delete(found.key)
        else:
            put_version(txn, rows, packed, floor, (before.body, before.flags))


def restore(
    txn: Txn, scope: int, session: int, counter: int, *, seq: int, owner: int | None = None
) -> int:
    """Restore the values at a counter, under a new counter, which is returned.

    Nothing is written if they equal the current values.

    Args:
        txn: the transaction.
        scope: the scope of both sessions.
        session: the session whose state changes.
        counter: the counter whose values are restored, one of ``owner``'s.
        seq: the next seq of the session.
        owner: the session that had the values, which this one was forked from; None: this one.

    Raises:
        NotFoundError: the values at that counter are not known.
    """
    wanted = values_at(txn, scope, session if owner is None else owner, counter)
    header = read_header(txn, scope, session)
    rows = keys.state_rows(scope, session)
    changed: dict[bytes, tuple[bytes, int] | None] = {}
    fields = {packed_field(key) for key in wanted}  # a fork may never have had one of them
    for packed in sorted(fields | {packed for packed, _, _ in _newest(txn, rows)}):
        version = wanted.get(keys.unpack_text(packed))
        stored = None if version is None else (version.body, version.flags)
        try:
            before = version_at(txn, rows, packed, header.counter)
        except CorruptValueError:  # a damaged value can be replaced without being read
            changed[packed] = stored
            continue
        if stored != (None if before is None else (before.body, before.flags)):
            changed[packed] = stored
    if not changed:
        return header.counter
    following = header.counter + 1
    for packed, stored in changed.items():
        put_version(txn, rows, packed, following, stored)
    write_header(txn, scope, session, header._replace(counter=following))
    put_moment(txn, scope, session, seq, following)
    return following


def inherit(
    txn: Txn, scope: int, parent: int, fork: int, *, seq: int, counter: int | None = None
) -> None:
    """Copy the parent's values at a counter (None: now) to a fork, under that counter.

    ``seq`` is the fork's next seq.

    Raises:
        NotFoundError: the values at that counter are not known.
    """
    at = state_counter(txn, scope, parent) if counter is None else counter
    found = values_at(txn, scope, parent, at)
    if at:
        stored = {key: (version.body, version.flags) for key, version in found.items()}
        _begin(txn, scope, fork, stored, at)
        put_moment(txn, scope, fork, seq, at)


class StateStep(NamedTuple):
    """Changes of fields up to a counter, since the previous known counter."""

    counter: int
    written: Mapping[str, Any]
    deleted: Sequence[str]


def versions_of(txn: ReadTxn, scope: int, session: int) -> Iterator[tuple[str, int, FieldVersion]]:
    """Yield ``(field, counter, version)`` of every version, grouped by field.

    Raises:
        CorruptValueError: a row is damaged.
    """
    rows = keys.state_rows(scope, session)
    for key, value in txn.scan(keys.behind(keys.numbered(rows, 0)), keys.after(rows)):
        yield (*keys.split_state_row(key), FieldVersion(key, *open_value(key, value)))


def write_past(
    txn: Txn,
    place: tuple[int, int],
    steps: Sequence[StateStep],
    *,
    floor: int | None,
    moments: Iterable[tuple[int, int]],
) -> None:
    """Create the state of a session with a history; ``steps`` and ``moments`` are ascending.

    ``floor``: oldest counter since which every counter is known; of earlier ones, only those of the
    steps are. None: the last step's counter.
    """
    rows = keys.state_rows(*place)
    before: dict[str, tuple[bytes, int]] = {}
    for counter, written, deleted in steps:
        for key, value in written.items():
            stored = encode_json(value)
            if stored != before.get(key):
                put_version(txn, rows, packed_field(key), counter, stored)
                before[key] = stored
        for key in deleted:
            put_version(txn, rows, packed_field(key), counter, None)
            before.pop(key, None)
    last = steps[-1].counter
    known_from = last if floor is None else floor
    kept = tuple(step.counter for step in steps if step.counter < known_from)
    write_header(txn, *place, StateHeader(last, known_from, kept))
    for seq, counter in moments:
        put_moment(txn, *place, seq, counter)


def _begin(
    txn: Txn, scope: int, session: int, stored: Mapping[str, tuple[bytes, int]], counter: int
) -> None:
    rows = keys.state_rows(scope, session)
    for key, value in stored.items():
        put_version(txn, rows, packed_field(key), counter, value)
    write_header(txn, scope, session, StateHeader(counter, counter))


# --- Maintenance of a state's rows: check, repair, and trimming of old versions -------------------


class Trimmed(NamedTuple):
    """Result of one transaction of a trim."""

    removed: int
    following: bytes | None
    """Key at which the next piece starts; None: done."""


def is_state_row(key: bytes, value: bytes) -> bool:
    """Return True if a row is a valid header or version of a state.

    Raises:
        CorruptValueError: it is malformed.
    """
    if key == header_key(*keys.state_place(key)):
        return bool(StateHeader.unpack(key, value))
    if not 0 < keys.split_state_row(key)[1] < _END:
        raise keys.malformed(key)
    version = FieldVersion(key, *open_value(key, value))
    if not version.is_deletion:
        version.value()
    return True


def _versions(
    txn: ReadTxn, scope: int, session: int, start: bytes | None = None
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows after the header."""
    stop = keys.after(keys.state_rows(scope, session))
    yield from txn.scan(start or _first(scope, session), stop)


def _first(scope: int, session: int) -> bytes:
    return keys.behind(header_key(scope, session))


def check_state(txn: ReadTxn, scope: int, session: int, *, pinned: Iterable[int]) -> Iterator[str]:
    """Check a state; yields a message for each finding.

    ``pinned``: counters that checkpoints refer to.
    """
    try:
        header = read_header(txn, scope, session)
    except CorruptValueError as exc:
        yield str(exc)
        return
    last = ""
    for key, value in _versions(txn, scope, session):
        try:
            is_state_row(key, value)
        except CorruptValueError as exc:
            yield str(exc)
            continue
        field, counter = keys.split_state_row(key)
        if not 0 < counter <= header.counter:
            yield (
                f"field {field!r} of its state has a version of counter {counter}, "
                f"its header says {header.counter}"
            )
        if not session and field == last:
            yield f"field {field!r} of its state has several values"
        last = field
    yield from _check_moments(txn, scope, session, header)
    for counter in sorted(set(pinned)):
        if not header.holds(counter):
            yield f"a checkpoint refers to counter {counter} of its state, which is not known"


def _check_moments(txn: ReadTxn, scope: int, session: int, header: StateHeader) -> Iterator[str]:
    last = 0
    for seq, counter in moments_of(txn, scope, session):
        if not last <= counter <= header.counter:
            yield (
                f"before item {seq} its state is said to be at counter {counter}, "
                f"not from {last} to {header.counter}"
            )
        last = max(last, counter)


def header_problem(txn: ReadTxn, scope: int, session: int, *, pinned: Iterable[int]) -> str:
    """Return the reason for ``mend_state`` to write a new header; empty if there is none."""
    try:
        known = read_header(txn, scope, session)
    except CorruptValueError as exc:
        return f"the header of its state: {exc}"
    contradicts = any(True for _ in _check_moments(txn, scope, session, known))
    if not contradicts and _fitting(txn, scope, session, known, pinned) == known:
        return ""
    return f"the header of its state (counter {known.counter}) does not fit the values that it has"


def mend_state(txn: Txn, scope: int, session: int, *, pinned: Iterable[int]) -> None:
    """Write a header that matches the rows, if the stored one does not.

    If the header is lost, it is unknown which earlier counters are kept, except those of
    checkpoints, which no trim removes. If two moments contradict each other, all are removed, as
    there is no way to determine which of them is wrong.
    """
    known, pinned = StateHeader(), set(pinned)
    with suppress(CorruptValueError):
        known = read_header(txn, scope, session)
    most = known if known.counter else StateHeader(_END)
    contradicts = any(True for _ in _check_moments(txn, scope, session, most))
    if contradicts:
        moments = keys.session_rows(scope, session, Row.MOMENT)
        txn.delete_range(moments, keys.after(moments))
    mended = _fitting(txn, scope, session, known, pinned)
    if contradicts:
        kept = {*mended.kept, *(at for at in pinned if mended.holds(at))} - {mended.counter}
        mended = StateHeader(mended.counter, mended.counter, tuple(sorted(kept)))
    if mended.counter and mended != known:
        write_header(txn, scope, session, mended)


def _fitting(
    txn: ReadTxn, scope: int, session: int, known: StateHeader, pinned: Iterable[int]
) -> StateHeader:
    """Return the header that matches the rows; ``known`` is the stored one, or an empty one."""
    needed = sorted(set(pinned))
    numbers = [keys.number_of(key) for key, _ in _versions(txn, scope, session)]
    numbers += [counter for _, counter in moments_of(txn, scope, session)]
    last = max([*numbers, *needed, known.counter], default=0)
    if not last:
        return known
    floor = known.floor if known.counter else last
    kept = tuple(sorted({*known.kept, *(at for at in needed if at < floor)}))
    return StateHeader(last, floor, kept)


# --- trimming -------------------------------------------------------------------------------------


def begin_trim(
    txn: Txn, scope: int, session: int, *, keep: int, pinned: Iterable[int]
) -> bytes | None:
    """Drop all counters except the last ``keep`` and the pinned ones from the header.

    The others are then unknown, so that their rows may be removed piece by piece.

    Returns:
        Key at which the first piece starts; None if there is no state.
    """
    header = read_header(txn, scope, session)
    if not header.counter:
        return None
    floor = max(header.floor, header.counter - keep + 1)
    kept = tuple(sorted({at for at in pinned if at < floor and header.holds(at)}))
    after = StateHeader(header.counter, floor, kept)
    if after != header:
        write_header(txn, scope, session, after)
    return _first(scope, session)


def trim_piece(txn: Txn, scope: int, session: int, start: bytes) -> Trimmed:
    """Remove a piece of the versions that no known counter needs, starting at the key ``start``.

    The moments with counters that are no longer known follow after the versions.
    """
    if keys.row_of(start) == Row.MOMENT:
        return _trim_moments(txn, scope, session, start)
    header = read_header(txn, scope, session)
    rows = islice(_versions(txn, scope, session, start), STATE_PAGE + 1)
    page = [(key, len(value)) for key, value in rows]
    is_last = len(page) <= STATE_PAGE
    following = keys.session_rows(scope, session, Row.MOMENT) if is_last else page[-1][0]
    piece = DeleteBudget()
    gone: list[bytes] = []
    has_older = bool(page) and _has_older(txn, page[0][0])
    for at, (key, size) in enumerate(page[:STATE_PAGE]):
        after = page[at + 1][0] if at + 1 < len(page) else None
        last = header.counter
        if after is not None and after[:-8] == key[:-8]:
            last = keys.number_of(after) - 1
        # A deletion without an older version is redundant.
        if _is_known(header, keys.number_of(key), last) and (has_older or size > HEADER_BYTES):
            has_older = True
        elif piece.admits(size):
            gone.append(key)
        else:
            following = key
            break
        has_older = has_older and last < header.counter
    for key in gone:
        txn.delete(key)
    return Trimmed(len(gone), following)


def forget_deletions(txn: Txn, scope: int, header: StateHeader) -> StateHeader:
    """Remove the tombstones of old deletions from a scope's shared state; return the new header.

    Without this the state would grow with every field name ever used.
    """
    floor = header.counter - STATE_DELETIONS_TOLD
    gone = [
        key
        for key, value in _versions(txn, scope, 0)
        if len(value) == HEADER_BYTES and keys.number_of(key) <= floor
    ]
    for key in gone:
        txn.delete(key)
    return header._replace(floor=floor) if gone else header


def _trim_moments(txn: Txn, scope: int, session: int, start: bytes) -> Trimmed:
    """Remove a piece of the ``MOMENT`` rows: a run with unknown counters keeps only its first."""
    header = read_header(txn, scope, session)
    stop = keys.after(keys.session_rows(scope, session, Row.MOMENT))
    page = [key for key, _ in islice(txn.scan(start, stop), PIECE_ROWS + 1)]
    following = page[-1] if len(page) > PIECE_ROWS else None
    if not page:
        return Trimmed(0, None)
    before = keys.number_of(page[0]) - 1
    first = counter_before(txn, scope, session, before)
    is_known = header.holds(first) if first is not None else not header.floor
    for seq, counter in list(moments_of(txn, scope, session, page[0], following or stop)):
        was_known, is_known = is_known, header.holds(counter)
        if not is_known and not was_known:
            txn.delete(keys.session_row(scope, session, Row.MOMENT, seq))
    return Trimmed(0, following)


def _has_older(txn: ReadTxn, key: bytes) -> bool:
    """Return True if there is an older version of the same field."""
    rows = txn.scan(keys.numbered(key[:-8], 0), key, reverse=True, limit=1)
    return next(iter(rows), None) is not None


def _is_known(header: StateHeader, first: int, last: int) -> bool:
    """Return True if a known counter is within the range in which a version applies."""
    return last >= header.floor or any(first <= at <= last for at in header.kept)
