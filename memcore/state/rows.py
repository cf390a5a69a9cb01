"""The rows of a state: a header, and the versions of each field.

``05 | scope | session | 0B | 0`` is the header of a session's state, ``05 | scope | session | 0B |
field text | counter`` a version. Every change of the state has a number, its counter; a change
appends a version of each field that it changes and rewrites none, so the value of a field at
counter c is its newest version of at most c. An empty body says that the field was deleted.
``care`` removes versions.

What the sessions of a scope share lies under ``11 | scope`` in the same rows; in signatures it is
the state of session 0. It has no past: a version is removed by the next one, and deletions are
remembered for a while only, for those who watch. Its header's floor is the counter from which on
all changes can be told.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from struct import Struct
from typing import Any, Final, NamedTuple

from memcore import keys
from memcore.codec import HEADER_BYTES, decode_json, decoding, encode_json, open_value, seal_value
from memcore.errors import CorruptValueError, InvalidUpdateError, NotFoundError
from memcore.limits import STATE_FIELD_BYTES_MAX
from memcore.state.moments import put_moment
from memcore.store.base import ReadTxn, Txn

__all__ = [
    "Header",
    "StateStep",
    "Version",
    "fields_at",
    "header_key",
    "inherit",
    "json_fields",
    "packed_field",
    "read_header",
    "restore",
    "state_counter",
    "value_at",
    "values_at",
    "version_at",
    "versions_of",
    "write_header",
    "write_past",
]

_U64: Final = Struct("<Q")
_NUMBERS: Final = 2
_END: Final = 2**63
_COUNTER_BYTES: Final = 8
_VERSION_BYTES: Final = 1024
"""To pass over a version costs about as much as to copy so many bytes; a seek, about thrice."""
_OLDER_BYTES: Final = 32 * _VERSION_BYTES


class Header(NamedTuple):
    """What is said of all fields."""

    counter: int = 0
    """The number of the last change, 0 if there was none."""
    floor: int = 0
    """The oldest counter from which on the values of every counter are known."""
    kept: tuple[int, ...] = ()
    """Counters before it whose values are known too, ascending."""

    def pack(self) -> bytes:
        """The row's body."""
        return b"".join(map(_U64.pack, (self.counter, self.floor, *self.kept)))

    @classmethod
    def unpack(cls, key: bytes, value: bytes) -> Header:
        """The header that a row holds.

        Raises:
            CorruptValueError: it is damaged, or says what no writer wrote.
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
        """Whether the values at a counter are known."""
        return self.floor <= counter <= self.counter or counter in self.kept


class Version(NamedTuple):
    """One stored value of a field."""

    key: bytes
    flags: int
    body: bytes

    @property
    def is_deletion(self) -> bool:
        """Whether the field was deleted then."""
        return not self.body

    def value(self) -> Any:
        """The value.

        Raises:
            CorruptValueError: it is no JSON.
        """
        with decoding(self.key, "state"):
            return decode_json(self.body, self.flags)


def header_key(scope: int, session: int) -> bytes:
    """The key of a state's header."""
    return keys.numbered(keys.state_rows(scope, session), 0)


def packed_field(key: str, *, prefix: str = "") -> bytes:
    """A field's name as it stands in keys, without its prefix.

    Raises:
        InvalidUpdateError: it is no name, or too long.
    """
    if not isinstance(key, str) or not key:
        msg = f"a field of the state has a name: expected a non-empty str, got {key!r:.40}"
        raise InvalidUpdateError(msg)
    if prefix and key == prefix:
        msg = f"a field of the state has a name: {key!r} is a prefix, expected a name behind it"
        raise InvalidUpdateError(msg, key=key)
    packed = keys.pack_text(key.removeprefix(prefix))
    if len(packed) > STATE_FIELD_BYTES_MAX:
        msg = (
            f"the field {key[:40]!r}... takes {len(packed)} bytes: expected at most "
            f"{STATE_FIELD_BYTES_MAX}"
        )
        raise InvalidUpdateError(msg, key=key)
    return packed


def read_header(txn: ReadTxn, scope: int, session: int) -> Header:
    """The header of a state; that of an empty one if nothing was ever written.

    Raises:
        CorruptValueError: it is damaged.
    """
    key = header_key(scope, session)
    value = txn.get(key)
    return Header() if value is None else Header.unpack(key, value)


def write_header(txn: Txn, scope: int, session: int, header: Header) -> None:
    """Write the header; whoever watches the state is woken."""
    key = header_key(scope, session)
    txn.put(key, seal_value(key, header.pack()))
    txn.tell(key)


def state_counter(txn: ReadTxn, scope: int, session: int) -> int:
    """The number of the last change of the state, 0 if there was none."""
    return read_header(txn, scope, session).counter


def version_at(txn: ReadTxn, rows: bytes, packed: bytes, counter: int) -> Version | None:
    """The version of a field that is in force at a counter; None if it had no value then."""
    versions = keys.state_field(rows, packed)
    start, stop = keys.numbered(versions, 0), keys.numbered(versions, counter + 1)
    for key, value in txn.scan(start, stop, reverse=True, limit=1):
        found = Version(key, *open_value(key, value))
        return None if found.is_deletion else found
    return None


def value_at(txn: ReadTxn, scope: int, session: int, key: str, counter: int) -> Version | None:
    """As ``version_at``, by the field's name."""
    rows = keys.state_rows(scope, session)
    return version_at(txn, rows, packed_field(key), counter)


def values_at(
    txn: ReadTxn, scope: int, session: int, counter: int | None = None
) -> dict[str, Version]:
    """All fields that have a value at a counter (None: now), by name.

    Raises:
        NotFoundError: there was no such change, or its values were trimmed.
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
    found: list[tuple[str, Version]] = []
    for packed, key, value in _newest(txn, rows):
        version: Version | None
        if keys.number_of(key) > at:
            version = version_at(txn, rows, packed, at)
        else:
            version = Version(key, *open_value(key, value))
        if version is not None and not version.is_deletion:
            found.append((keys.unpack_text(packed), version))
    return dict(reversed(found))


def json_fields(txn: ReadTxn, scope: int, session: int, *, prefix: str = "") -> tuple[bytes, int]:
    """All fields that have a value now as what stands in a JSON object, and flags of the codec.

    Nothing is decoded, so this costs a part of what ``values_at`` does. ``prefix`` is put before
    each name.

    Raises:
        CorruptValueError: a row is damaged.
    """
    found: list[bytes] = []
    every = 0
    for packed, key, value in _newest(txn, keys.state_rows(scope, session)):
        flags, body = open_value(key, value)
        if body:
            name, own = encode_json(prefix + keys.unpack_text(packed))
            found.append(name + b":" + body)
            every |= flags | own
    found.reverse()
    return b",".join(found), every


def fields_at(txn: ReadTxn, scope: int, session: int) -> list[str]:
    """The names of the fields that have a value now, or one that is damaged."""
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
    """Whether all deletions since a counter are known; the fields written, and those deleted."""
    written: list[str] = []
    deleted: list[str] = []
    for packed, key, value in _newest(txn, keys.state_rows(scope, session)):
        if keys.number_of(key) > counter:
            name = keys.unpack_text(packed)
            (deleted if len(value) == HEADER_BYTES else written).append(name)
    is_known = read_header(txn, scope, session).floor <= counter
    return is_known, written[::-1], deleted[::-1]


def _newest(txn: ReadTxn, rows: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
    """Packed name, key and value of the newest version of each field, the last field first."""
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
    # Too many versions that are not asked for: a seek a field costs less.
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


def restore(
    txn: Txn, scope: int, session: int, counter: int, *, seq: int, owner: int | None = None
) -> int:
    """Make the values at a counter those of now; they get a new counter, which is returned.

    Nothing is written if they are those of now.

    Args:
        txn: the transaction.
        scope: the scope of both sessions.
        session: whose state changes.
        counter: which values; one of ``owner``'s.
        seq: the next seq of the session.
        owner: the session that had the values, one that this was forked from; None: this one.

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
        except CorruptValueError:  # what is damaged now need not be read to be replaced
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
    """Give a fork the values of its parent at a counter (None: now), under that counter.

    ``seq`` is the next one of the fork.

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
    """What became of fields up to a counter, since the known counter before it."""

    counter: int
    written: Mapping[str, Any]
    deleted: Sequence[str]


def versions_of(txn: ReadTxn, scope: int, session: int) -> Iterator[tuple[str, int, Version]]:
    """``(field, counter, version)`` of every version, those of a field together.

    Raises:
        CorruptValueError: a row is damaged.
    """
    rows = keys.state_rows(scope, session)
    for key, value in txn.scan(keys.behind(keys.numbered(rows, 0)), keys.after(rows)):
        yield (*keys.split_state_row(key), Version(key, *open_value(key, value)))


def write_past(
    txn: Txn,
    place: tuple[int, int],
    steps: Sequence[StateStep],
    *,
    floor: int | None,
    moments: Iterable[tuple[int, int]],
) -> None:
    """Begin the state of a session with a past; ``steps`` and ``moments`` ascend.

    ``floor``: from there on every counter is known, of those before it the steps' own; None: from
    the last one.
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
    write_header(txn, *place, Header(last, known_from, kept))
    for seq, counter in moments:
        put_moment(txn, *place, seq, counter)


def _begin(
    txn: Txn, scope: int, session: int, stored: Mapping[str, tuple[bytes, int]], counter: int
) -> None:
    rows = keys.state_rows(scope, session)
    for key, value in stored.items():
        put_version(txn, rows, packed_field(key), counter, value)
    write_header(txn, scope, session, Header(counter, counter))
