"""Audit options, events recorded in chains, and the start of an audit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from memcore.audit.anchors import AnchorFile, AnchorLines
from memcore.codec import keys
from memcore.codec.audit_entry import (
    FIRST_MAC,
    KEY_BYTES_MIN,
    MAC_BYTES,
    Chainer,
    ChainPage,
    Op,
    head_digest_of,
    unpack_entry,
    unpack_event,
    unpack_page,
)
from memcore.codec.keys import Kind, Row
from memcore.codec.table import KINDS_END
from memcore.codec.values import HEADER_BYTES
from memcore.errors import AuditError, InvalidOptionError, uncopied
from memcore.options import checked_path, shown
from memcore.records import record
from memcore.store import Store
from memcore.store.audit_log import (
    DATABASE,
    HEAD,
    Place,
    Recorder,
    chain_of,
    read_tip,
    told_digest,
    told_row,
)
from memcore.store.datafile import AUDITED, FORMAT_KEY, Format
from memcore.store.environment import Environment
from memcore.store.interface import ReadTxn, Txn
from memcore.store.transaction import WriteTxn, is_audited, stored, stored_rows

__all__ = [
    "Audit",
    "anchor_all",
    "chainer_for",
    "checked_seconds",
    "end_scope",
    "end_session",
    "key_in",
    "record_event",
    "start_audit",
]


# --- Options of an audit --------------------------------------------------------------------------

KEY_VARIABLE: Final = "MEMCORE_AUDIT_KEY"
KEY_FILE_VARIABLE: Final = "MEMCORE_AUDIT_KEY_FILE"


@record(frozen=True, slots=True)
class Audit:
    """Chains every write under a key, so that changes to the file without the key are detected.

    Args:
        key: at least 32 secret bytes, or a callable that returns them when a file is opened. Not
            stored in the file; without it an audited file can be read but not written.
        anchor: a file outside the database to which the heads of changed chains are appended, or a
            callable that gets each of its lines. None: a chain truncated at its end, together with
            the rows, looks as if the rest had never existed.
        every_seconds: anchor at the first commit this many seconds after the last anchor.
        every_entries: or at the first commit after this many entries.
        on_failure: if anchoring fails, ``"raise"``: what was committed stays, and every further
            write is an AuditError until anchoring succeeds; ``"log"``: keep writing, retry later.
        keep_seconds: age limit in seconds for ``Database.cut_audit`` when it is given none.

    Raises:
        InvalidOptionError: an option has a wrong type or is out of range.
    """

    key: bytes | Callable[[], bytes] = field(repr=False)
    anchor: str | os.PathLike[str] | Callable[[str], Any] | None = None
    every_seconds: float = 60.0
    every_entries: int = 1000
    on_failure: str = "raise"
    keep_seconds: float | None = None

    __reduce_ex__ = uncopied

    def __post_init__(self) -> None:
        if not callable(self.key):
            _check_key(self.key)
        if not (self.anchor is None or callable(self.anchor)) and not isinstance(
            self.anchor, str | os.PathLike
        ):
            msg = f"anchor: expected a path, a callable or None, got {type(self.anchor).__name__}"
            raise InvalidOptionError(msg)
        if self.anchor is not None and not callable(self.anchor):
            checked_path("anchor", self.anchor)
        if self.on_failure not in ("raise", "log"):
            msg = f"on_failure: expected 'raise' or 'log', got {self.on_failure!r}"
            raise InvalidOptionError(msg)
        if type(self.every_entries) is not int or self.every_entries < 1:
            msg = f"every_entries: expected an int of at least 1, got {self.every_entries!r}"
            raise InvalidOptionError(msg)
        checked_seconds("every_seconds", self.every_seconds)
        if self.keep_seconds is not None:
            checked_seconds("keep_seconds", self.keep_seconds)

    def key_bytes(self) -> bytes:
        """Return the key.

        Raises:
            InvalidOptionError: the callable did not return a key.
        """
        key = self.key() if callable(self.key) else self.key
        _check_key(key)
        return bytes(key)

    @classmethod
    def from_environment(cls, **options: Any) -> Audit | None:
        """Make options with the key in ``MEMCORE_AUDIT_KEY`` (hex) or in a file.

        The file is named by ``MEMCORE_AUDIT_KEY_FILE``. None if neither is set. Options are those
        of the class.

        Raises:
            InvalidOptionError: the setting is not a key.
            AuditError: the key's file cannot be read.
        """
        text = os.environ.get(KEY_VARIABLE)
        file = os.environ.get(KEY_FILE_VARIABLE)
        if text:
            return cls(key=_from_hex(text), **options)
        return cls(key=key_in(file), **options) if file else None


def key_in(file: str) -> bytes:
    """Read the key in a file: 64 or more hexadecimal digits, or else its raw bytes.

    Raises:
        InvalidOptionError: it holds no key.
        AuditError: it cannot be read.
    """
    try:
        found = Path(file).read_bytes()
    except OSError as exc:
        raise AuditError(f"{file}: the audit key cannot be read: {exc.strerror}") from exc
    with suppress(ValueError):
        found = bytes.fromhex(found.decode("ascii"))
    _check_key(found)
    return found


def _from_hex(text: str) -> bytes:
    try:
        key = bytes.fromhex(text)
    except ValueError as exc:
        raise InvalidOptionError(f"{KEY_VARIABLE}: expected hexadecimal digits") from exc
    _check_key(key)
    return key


def _check_key(key: object) -> None:
    if not isinstance(key, bytes | bytearray) or len(key) < KEY_BYTES_MIN:
        what = f"{len(key)} of them" if isinstance(key, bytes) else type(key).__name__
        raise InvalidOptionError(
            f"the audit key: expected at least {KEY_BYTES_MIN} bytes, got {what}; "
            "os.urandom(32) makes one"
        )


def checked_seconds(name: str, seconds: object) -> float:
    """Validate a time span in seconds.

    Raises:
        InvalidOptionError: it is not a number, or below 0.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise InvalidOptionError(f"{name}: expected a number, got {type(seconds).__name__}")
    if not 0 <= seconds <= _SECONDS_MAX:
        raise InvalidOptionError(
            f"{name}: expected 0 to {_SECONDS_MAX:,} seconds, got {shown(seconds)}"
        )
    return float(seconds)


_SECONDS_MAX: Final = 2**40
"""Of a time span: 35,000 years."""


# --- Events of a scope or of the database, chained in addition to their rows ----------------------
# These do nothing if the file is not audited, and are part of their transaction.


def record_event(txn: Txn, scope: int, what: str, details: Mapping[str, Any]) -> None:
    """Chain an event of a scope; 0: of the database.

    Args:
        txn: the transaction that the event is part of.
        scope: the scope that it concerns.
        what: a few words, always the same for the same kind of event.
        details: JSON; never content.
    """
    if txn.audit is not None:
        txn.audit.event(scope, what, dict(details))


def end_session(txn: Txn, scope: int, session: int) -> None:
    """End a session's chain before its rows are deleted; its scope's chain records the last entry.

    May be called again; its entries may be deleted from then on.
    """
    if txn.audit is not None:
        txn.audit.end((scope, session))


def end_scope(txn: Txn, scope: int) -> None:
    """End a scope's chain before its rows are deleted; the database's chain records the last entry.

    Its sessions have ended before. Its entries (``keys.audit_care``) may be deleted from then on.
    """
    if txn.audit is not None:
        txn.audit.end((scope, 0))


# --- Start of an audit: the key of a file, first entries, existing rows, anchor -------------------

BEGINS: Final = "audit begins"
COVERED: Final = "audit covers all"
_PAGE_ROWS: Final = 256
_PIECE_ROWS: Final = 2048
_PIECE_BYTES: Final = 8 * 1024**2
_FIRST_LOOKED_AT: Final = 4


def chainer_for(store: Store, audit: Audit) -> Chainer:
    """Return the chainer of the audit's key for this file."""
    return Chainer(audit.key_bytes(), store.file_id)


def start_audit(store: Store, audit: Audit | None) -> None:
    """Start or resume auditing when a database is opened.

    Raises:
        AuditError: the file is audited and the key is missing or wrong; or the file's audit flag
            was removed.
        StoreLockedError: auditing starts on a file that is not empty and that others have open.
    """
    if store.read_only or store.environment().leader.poison:
        return  # neither can write
    # In one snapshot: another process may be starting the audit right now.
    flagged, begun = store.read(
        lambda txn: (is_audited(txn, store.path), read_tip(txn, DATABASE).number > 0)
    )
    if audit is None:
        if flagged:
            raise AuditError(
                f"{store.path} is audited: open it with audit=Audit(key=...) to write to it, or "
                "with read_only=True"
            )
        return
    chainer = chainer_for(store, audit)
    if flagged and not begun:
        raise AuditError(
            f"{store.path} is audited, but the database's own chain is gone: somebody removed it; "
            "open it with read_only=True and see verify_audit()"
        )
    if begun and not flagged:
        raise AuditError(
            f"{store.path} has an audit, but its record says that it has none: somebody changed "
            "it; open it with read_only=True and see verify_audit()"
        )
    env = store.environment()
    if env.audit is not None and env.audit.chainer.sign(b"") != chainer.sign(b""):
        raise AuditError(f"{store.path} is open in this process with another audit key")
    recorder = env.audit or _recorder(env, audit, chainer)
    if not (begun and store.read(_is_covered)):
        _begin(store, recorder)
    store.read(lambda txn: need_key(txn, chainer, store.path))
    if env.audit is None:
        env.audit = recorder
    if audit.anchor is not None:
        owed = store.read(_marked)
        env.queue.call(lambda _: recorder.owe(owed), job=True)


def _recorder(env: Environment, audit: Audit, chainer: Chainer) -> Recorder:
    anchorage: AnchorLines | None = None
    file_id = b"" if env.format is None else env.format.seed
    if callable(audit.anchor):
        anchorage = AnchorLines(chainer, file_id, audit.anchor)
    elif audit.anchor is not None:
        anchorage = anchor_file(chainer, file_id, audit.anchor)
    return Recorder(
        env,
        chainer,
        anchorage=anchorage,
        every_entries=audit.every_entries,
        every_seconds=audit.every_seconds,
        strict=audit.on_failure == "raise",
    )


def anchor_file(chainer: Chainer, file_id: bytes, path: str | os.PathLike[str]) -> AnchorFile:
    """Return the anchor at a path, resolved now: the process may change its directory."""
    return AnchorFile(chainer, file_id, os.path.realpath(os.fsdecode(os.fspath(path))))


def need_key(txn: ReadTxn, chainer: Chainer, path: str) -> None:
    """Verify the key with one of the first entries of the database's chain."""
    rows = keys.audit_rows(*DATABASE)
    before = FIRST_MAC
    for key, value in stored_rows(txn, rows, keys.after(rows), limit=_FIRST_LOOKED_AT):
        whole = value[HEADER_BYTES:]
        if chainer.is_sealed(DATABASE, keys.number_of(key), before, whole):
            return
        before = whole[-MAC_BYTES:]
        try:
            entry = unpack_entry(whole)
            if entry.op is Op.CUT:
                before = unpack_page(entry.said).resume
        except ValueError:
            continue
    raise AuditError(
        f"{path} is audited with another key than the one given, or the beginning of its audit "
        "was changed; nothing was written"
    )


# --- coverage of existing rows --------------------------------------------------------------------


def _is_covered(txn: ReadTxn) -> bool:
    """Return True if auditing has started and the rows from before it are recorded."""
    rows = keys.audit_rows(*DATABASE)
    for _, value in stored_rows(txn, rows, keys.after(rows)):
        try:
            entry = unpack_entry(value[HEADER_BYTES:])
            if entry.op is Op.CUT or (
                entry.op is Op.EVENT and unpack_event(entry.said)[0] == COVERED
            ):
                return True
        except ValueError:
            return True  # started, and damaged since: verification reports it
    return False


def _begin(store: Store, recorder: Recorder) -> None:
    if store.transact(lambda txn: _begin_empty(txn, store, recorder)):
        return
    if store.path == ":memory:":
        _cover_all(store, recorder)
    else:
        store.exclusive(partial(_cover_all, store, recorder))


def _cover_all(store: Store, recorder: Recorder) -> None:
    """Turn auditing on, and record all that is there."""
    store.transact(lambda txn: _flag(txn, store, recorder))
    start: bytes | None = b"\x01"
    while start is not None:
        start = store.transact(lambda txn, start=start: _cover(txn, recorder.chainer, start))  # type: ignore[misc]
    store.transact(lambda txn: record_event(txn, 0, COVERED, {}))


def _begin_empty(txn: Txn, store: Store, recorder: Recorder) -> bool:
    """Start on a file that holds nothing yet; another process may be doing so, too."""
    if read_tip(txn, DATABASE).number:
        return _is_covered(txn)
    if next(_noted(txn, b"\x01"), None) is not None:
        return False
    _flag(txn, store, recorder)
    record_event(txn, 0, COVERED, {})
    return True


def _flag(txn: Txn, store: Store, recorder: Recorder) -> None:
    """Turn auditing on for all handles, from this transaction on."""
    env = store.environment()
    record = Format.unpack(stored(txn).get(FORMAT_KEY), store.path)
    record = record._replace(features=record.features | AUDITED)
    writing = cast("WriteTxn", txn)
    writing.audit = writing.audit or recorder.begin(writing, stored(txn).id())
    writing.put_own(FORMAT_KEY, record.pack())
    if not read_tip(txn, DATABASE).number:
        record_event(txn, 0, BEGINS, {})

    def attach() -> None:
        env.format, env.audit = record, recorder

    txn.on_commit(attach)


class _Noted(NamedTuple):
    place: Place
    key: bytes
    value: bytes


def _noted(txn: ReadTxn, start: bytes) -> Iterator[_Noted]:
    """Yield the rows from ``start`` on that chains record."""
    for key, value in stored_rows(txn, start, KINDS_END):
        place = chain_of(key)
        if place is not None:
            yield _Noted(place, key, value)


def _cover(txn: Txn, chainer: Chainer, start: bytes) -> bytes | None:
    """Append pages that cover the next rows; return where to continue, or None at the end."""
    page: list[tuple[bytes, bytes | None]] = []
    at: Place | None = None
    found: list[tuple[Place, list[tuple[bytes, bytes | None]]]] = []
    rows = size = 0
    following: bytes | None = None
    for place, key, value in _noted(txn, start):
        if rows == _PIECE_ROWS or size > _PIECE_BYTES:
            following = key
            break
        if place != at or len(page) == _PAGE_ROWS:
            page = []
            at = place
            found.append((place, page))
        rows, size = rows + 1, size + len(value)
        rest = told_row(chainer, place, key)
        if not (place[1] and rest == HEAD):
            page.append((rest, told_digest(chainer, place, value)))
    for place, covered in found:
        head = stored(txn).get(keys.session_row(*place, Row.HEAD, 0)) if place[1] else None
        digest = b"" if head is None else head_digest_of(head)
        txn.audit.page(place, Op.COVER, ChainPage(0, FIRST_MAC, covered), digest)
    return following


# --- chains not anchored yet ----------------------------------------------------------------------


def _marked(txn: ReadTxn) -> dict[Place, tuple[int, bytes]]:
    """Return the last entries of the chains that have grown since they were last anchored."""
    found: dict[Place, tuple[int, bytes]] = {}
    start, stop = bytes((Kind.CARE,)), bytes((Kind.CARE + 1,))
    while True:
        row = next(iter(txn.scan(start, stop, limit=1)), None)
        if row is None:
            return found
        scope = keys.split_scoped(row[0])[0]
        first = keys.audit_mark(scope, 0)
        for key, _ in txn.scan(first, keys.after(first[:-8])):
            place = scope, keys.number_of(key)
            tip = read_tip(txn, place)
            if tip.number:
                found[place] = tip.number, tip.mac
        start = keys.after(keys.scoped(Kind.CARE, scope))


def all_tips(txn: ReadTxn) -> dict[Place, tuple[int, bytes]]:
    """Return the number and MAC of each chain's last entry."""
    found: dict[Place, tuple[int, bytes]] = {}
    for place in chains(txn):
        tip = read_tip(txn, place)
        found[place] = tip.number, tip.mac
    return found


def chains(txn: ReadTxn) -> Iterator[Place]:
    """Yield every chain that has an entry: the database's, the scopes', the sessions'."""
    start = bytes((Kind.CARE,))
    while (row := next(iter(txn.scan(start, bytes((Kind.CARE + 1,)), limit=1)), None)) is not None:
        scope = keys.split_scoped(row[0])[0]
        if read_tip(txn, (scope, 0)).number:
            yield scope, 0
        start = keys.after(keys.scoped(Kind.CARE, scope))
    start = bytes((Kind.SESSION,))
    while row := next(iter(txn.scan(start, bytes((Kind.SESSION + 1,)), limit=1)), None):
        place = keys.split_session_prefix(row[0])
        if read_tip(txn, place).number:
            yield place
        start = keys.after(keys.session_prefix(*place))


def anchor_all(store: Store, anchorage: AnchorLines, *, reset: bool = False) -> int:
    """Append the heads of all chains, changed or not, to the anchor; return their number.

    ``reset``: earlier anchors no longer bind (a backup was restored).

    Raises:
        AuditError: the anchor cannot be written.
    """
    if not store.read_only:
        store.flush()
    tips = store.read(all_tips)
    anchorage.write(tips, reset=reset)
    return len(tips)
