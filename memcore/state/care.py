"""The care of a state's rows: what is wrong with them, mending them, and trimming old versions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from memcore import keys
from memcore.codec import HEADER_BYTES, open_value
from memcore.errors import CorruptValueError
from memcore.keys import Row
from memcore.limits import PIECE_ROWS, STATE_DELETIONS_TOLD, STATE_PAGE
from memcore.state.moments import counter_before, moments_of
from memcore.state.rows import (
    Header,
    Version,
    header_key,
    read_header,
    write_header,
)
from memcore.store.base import ReadTxn, Txn
from memcore.store.piece import Piece

__all__ = [
    "Trimmed",
    "begin_trim",
    "check_state",
    "forget_deletions",
    "header_problem",
    "is_state_row",
    "mend_state",
    "trim_piece",
]


class Trimmed(NamedTuple):
    """What one transaction of a trim did."""

    removed: int
    following: bytes | None
    """Where the next one starts; None: nothing is left."""


def is_state_row(key: bytes, value: bytes) -> bool:
    """Whether a row is one that a state's writer makes.

    Raises:
        CorruptValueError: it is none.
    """
    if key == header_key(*keys.state_place(key)):
        return bool(Header.unpack(key, value))
    keys.split_state_row(key)
    version = Version(key, *open_value(key, value))
    if not version.is_deletion:
        version.value()
    return True


def _versions(
    txn: ReadTxn, scope: int, session: int, start: bytes | None = None
) -> Iterator[tuple[bytes, bytes]]:
    """The rows behind the header."""
    stop = keys.after(keys.state_rows(scope, session))
    yield from txn.scan(start or _first(scope, session), stop)


def _first(scope: int, session: int) -> bytes:
    return keys.behind(header_key(scope, session))


def check_state(txn: ReadTxn, scope: int, session: int, *, pinned: Iterable[int]) -> Iterator[str]:
    """What is wrong with a state, in words; ``pinned`` are counters of checkpoints."""
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


def _check_moments(txn: ReadTxn, scope: int, session: int, header: Header) -> Iterator[str]:
    last = 0
    for seq, counter in moments_of(txn, scope, session):
        if not last <= counter <= header.counter:
            yield (
                f"before item {seq} its state is said to be at counter {counter}, "
                f"not from {last} to {header.counter}"
            )
        last = max(last, counter)


def header_problem(txn: ReadTxn, scope: int, session: int, *, pinned: Iterable[int]) -> str:
    """Why ``mend_state`` would write another header; empty if it would not."""
    try:
        known = read_header(txn, scope, session)
    except CorruptValueError as exc:
        return f"the header of its state: {exc}"
    if _fitting(txn, scope, session, known, pinned) == known:
        return ""
    return f"the header of its state (counter {known.counter}) does not fit the values that it has"


def mend_state(txn: Txn, scope: int, session: int, *, pinned: Iterable[int]) -> None:
    """Write a header that fits what there is, if the one that there is does not.

    What only a lost header knew is forgotten: the values of earlier counters, but for those of
    checkpoints, which no trim touched.
    """
    known = Header()
    with suppress(CorruptValueError):
        known = read_header(txn, scope, session)
    mended = _fitting(txn, scope, session, known, pinned)
    if mended.counter and mended != known:
        write_header(txn, scope, session, mended)


def _fitting(
    txn: ReadTxn, scope: int, session: int, known: Header, pinned: Iterable[int]
) -> Header:
    """The header that fits the rows; ``known`` is the one that there is, or an empty one."""
    needed = sorted(set(pinned))
    numbers = [keys.number_of(key) for key, _ in _versions(txn, scope, session)]
    numbers += [counter for _, counter in moments_of(txn, scope, session)]
    last = max([*numbers, *needed, known.counter], default=0)
    if not last:
        return known
    floor = known.floor if known.counter else last
    kept = tuple(sorted({*known.kept, *(at for at in needed if at < floor)}))
    return Header(last, floor, kept)


# --- trimming -------------------------------------------------------------------------------------


def begin_trim(
    txn: Txn, scope: int, session: int, *, keep: int, pinned: Iterable[int]
) -> bytes | None:
    """Give up all counters but the last ``keep`` and the pinned.

    From here on nobody asks for the others, so their rows may leave one piece after the other:
    returned is where the first piece starts, None if there is no state.
    """
    header = read_header(txn, scope, session)
    if not header.counter:
        return None
    floor = max(header.floor, header.counter - keep + 1)
    kept = tuple(sorted({at for at in pinned if at < floor and header.holds(at)}))
    after = Header(header.counter, floor, kept)
    if after != header:
        write_header(txn, scope, session, after)
    return _first(scope, session)


def trim_piece(txn: Txn, scope: int, session: int, start: bytes) -> Trimmed:
    """Remove a piece of the versions that no known counter shows, from the key ``start`` on.

    Behind them come the moments that led to counters which are not known any more.
    """
    if keys.row_of(start) == Row.MOMENT:
        return _trim_moments(txn, scope, session, start)
    header = read_header(txn, scope, session)
    rows = islice(_versions(txn, scope, session, start), STATE_PAGE + 1)
    page = [(key, len(value)) for key, value in rows]
    is_last = len(page) <= STATE_PAGE
    following = keys.session_rows(scope, session, Row.MOMENT) if is_last else page[-1][0]
    piece = Piece()
    gone: list[bytes] = []
    has_older = bool(page) and _has_older(txn, page[0][0])
    for at, (key, size) in enumerate(page[:STATE_PAGE]):
        after = page[at + 1][0] if at + 1 < len(page) else None
        last = header.counter
        if after is not None and after[:-8] == key[:-8]:
            last = keys.number_of(after) - 1
        # A deletion of what is not there any more says nothing.
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


def forget_deletions(txn: Txn, scope: int, header: Header) -> Header:
    """Remove what tells of old deletions in the state that a scope shares; the header after it.

    It grows with the names that were ever used, else.
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
    """Of moments in a row that lead to unknown counters, the first says so for all."""
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
    """Whether there is an older version of the same field."""
    rows = txn.scan(keys.numbered(key[:-8], 0), key, reverse=True, limit=1)
    return next(iter(rows), None) is not None


def _is_known(header: Header, first: int, last: int) -> bool:
    """Whether one of the counters is known, at all of which the same version is in force."""
    return last >= header.floor or any(first <= at <= last for at in header.kept)
