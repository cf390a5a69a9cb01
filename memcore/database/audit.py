"""Audit of an open database: verify, list, anchor, cut."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from memcore.audit import AnchorLines, Audit, anchor_all, chainer_for, read_anchor
from memcore.audit.anchors import Anchored
from memcore.audit.start import anchor_file, checked_seconds, need_key
from memcore.audit.verify import (
    AuditedEntry,
    AuditFinding,
    AuditReport,
    Suspicion,
    Verification,
    cut_chains,
    entries,
    need_audited,
    word_for,
    would_cut,
)
from memcore.codec.audit_entry import (
    AuditEntry,
    Chainer,
    Op,
    unpack_entry,
    unpack_event,
    unpack_page,
    unpack_put,
    unpack_range,
    unpack_tip,
)
from memcore.codec.values import HEADER_BYTES
from memcore.errors import (
    AuditError,
    CorruptValueError,
    InternalError,
    InvalidOptionError,
    NotFoundError,
)
from memcore.options import (
    checked_bool,
    checked_callable,
    checked_path,
    checked_several,
    counted,
    shown,
)
from memcore.rows import names
from memcore.session import Engine
from memcore.store.audit_log import DATABASE, Place
from memcore.store.interface import ReadTxn

__all__ = [
    "anchor_audit",
    "cut_audit",
    "list_audit",
    "verify_audit",
]


Anchor = str | os.PathLike[str] | Iterable[str | bytes]
_PAGE: Final = 1000


def verify_audit(
    engine: Engine,
    *,
    key: bytes | None,
    anchor: Anchor | None,
    progress: Callable[[int, int], None] | None,
) -> AuditReport:
    """Verify every chain against its anchor and its rows; see ``Database.verify_audit``."""
    checked_callable("progress", progress)
    store, is_ours = engine.store, False
    chainer = _chainer(engine, key)
    if anchor is None and engine.audit is not None and not callable(engine.audit.anchor):
        anchor = engine.audit.anchor
        env = store.environment()
        if anchor is not None and env.audit is not None:
            env.queue.call(env.audit.anchor, job=True)
            is_ours = True
    # Read the anchor before the chains: they only grow.
    anchored = Anchored() if anchor is None else _anchored(anchor, chainer, store.file_id)
    found = Verification(store, chainer, anchored)
    found.run(progress)
    # Ours was anchored just now, if not before; one in memory may have no line yet.
    is_file = isinstance(anchor, str | os.PathLike) and found.entries
    if anchored.is_empty and (is_ours or is_file):
        anchored.problems.append("it is empty: no line was written to it yet, or all were removed")
    findings = [store.read(lambda txn, s=s: _named(txn, s)) for s in found.found.values()]  # type: ignore[misc]
    return AuditReport(
        findings=tuple(findings),
        anchor_problems=tuple(anchored.problems),
        chains=found.chains,
        entries=found.entries,
        rows=found.rows,
        anchors=anchored.lines,
        resets=anchored.resets,
        is_anchored=anchor is not None and not anchored.is_empty,
        needs_recovery=store.needs_recovery,
    )


def _chainer(engine: Engine, key: bytes | None) -> Chainer:
    audit = engine.audit if key is None else Audit(key=key)
    if audit is None:
        msg = "key: needed to verify an audit, here or as memcore.open(..., audit=Audit(key=...))"
        raise InvalidOptionError(msg)
    return chainer_for(engine.store, audit)


def _anchored(anchor: Anchor, chainer: Chainer, file_id: bytes) -> Anchored:
    if not isinstance(anchor, str | os.PathLike):
        lines_of_it = checked_several("anchor", anchor, "a path or the lines of an anchor")
        return read_anchor(_lines_of(lines_of_it), chainer, file_id)
    path = checked_path("anchor", anchor)
    try:
        with Path(path).open("rb") as lines:
            return read_anchor(lines, chainer, file_id)
    except FileNotFoundError as exc:
        raise NotFoundError(f"{path}: there is no such anchor") from exc
    except OSError as exc:
        raise AuditError(f"{path}: the anchor cannot be read: {exc.strerror}") from exc


def _lines_of(anchor: Iterable[bytes | str]) -> Iterator[bytes]:
    """Yield the lines of an anchor as bytes.

    Raises:
        InvalidOptionError: one is no text.
    """
    for line in anchor:
        if not isinstance(line, str | bytes):
            raise InvalidOptionError(f"anchor: expected lines of text, got {shown(line)}")
        yield line.encode("utf-8", "surrogatepass") if isinstance(line, str) else line


def _named(txn: ReadTxn, found: Suspicion) -> AuditFinding:
    scope, session = found.place
    app = user = name = None
    with suppress(CorruptValueError, InternalError):
        app, user = names.scope_names(txn, scope)
    with suppress(CorruptValueError):
        name = next((n for n, at in names.sessions(txn, scope) if session and at == session), None)
    return AuditFinding(app, user, name, scope, session, found.number, found.why, found.what)


# --- showing --------------------------------------------------------------------------------------


def list_audit(
    engine: Engine, session: str | None, *, user: str | None, app: str | None
) -> Iterator[AuditedEntry]:
    """List a chain's entries, one page per read transaction; see ``Database.audit_entries``."""

    def find(txn: ReadTxn) -> Place:
        if session is None and user is None and app is None:
            return DATABASE
        owner = "default" if user is None else user
        place = "default" if app is None else app
        scope = names.scope_of(txn, place, owner)
        number = None if scope is None or session is None else names.session_of(txn, scope, session)
        if scope is None or (session is not None and number is None):
            what = f"session {session!r}"
            if scope is None:
                what = f"user {owner!r} in app {place!r}"
            raise NotFoundError(f"there is no {what} in {engine.store.path}")
        return scope, number or 0

    place = engine.store.read(find)
    after = 0
    while True:
        page = engine.store.read(lambda txn, after=after: _page(txn, place, after))  # type: ignore[misc]
        yield from page
        if len(page) < _PAGE:
            return
        after = page[-1].number


def _page(txn: ReadTxn, place: Place, after: int) -> list[AuditedEntry]:
    found = []
    for number, _, value in entries(txn, place, after=after, limit=_PAGE):
        try:
            entry = unpack_entry(value[HEADER_BYTES:])
            row = _told(place, entry)
        except ValueError:
            found.append(AuditedEntry(number, 0, "unreadable", "", ""))
            continue
        name, mac = entry.op.name.lower(), entry.mac.hex()
        found.append(AuditedEntry(number, entry.time_ms, name, row, mac))
    return found


def _told(place: Place, entry: AuditEntry) -> str:
    """Describe the subject of an entry."""
    teller = _TELLERS.get(entry.op)
    return "" if teller is None else teller(place, entry.said)


def _told_range(_: Place, said: bytes) -> str:
    start, stop = unpack_range(said)
    return f"{start.hex()} .. {stop.hex()}"


def _told_event(_: Place, said: bytes) -> str:
    what, details = unpack_event(said)
    return f"{what} {json.dumps(details)}" if details else what


def _told_tip(place: Place, said: bytes) -> str:
    number, at, _ = unpack_tip(said)
    whose = "session" if place[0] else "scope"
    return f"{whose} {number} at entry {at}" if at else f"{whose} {number}"


def _told_page(_: Place, said: bytes) -> str:
    page = unpack_page(said)
    return counted(len(page.rows), "row") + f" of entries {page.first} on" * bool(page.first)


_TELLERS: Final[dict[Op, Callable[[Place, bytes], str]]] = {
    Op.PUT: lambda place, said: word_for(place, unpack_put(said)[0]),
    Op.DELETE: word_for,
    Op.RANGE: _told_range,
    Op.EVENT: _told_event,
    Op.BEGIN: _told_tip,
    Op.END: _told_tip,
    Op.FORK: _told_tip,
    Op.COVER: _told_page,
    Op.CUT: _told_page,
    Op.HEAD: lambda _, __: "the head",
}


# --- anchoring ------------------------------------------------------------------------------------


def anchor_audit(
    engine: Engine, anchor: str | os.PathLike[str] | None, *, key: bytes | None, reset: bool
) -> int:
    """Anchor all chains now; see ``Database.anchor_audit``."""
    checked_bool("reset", reset)
    engine.store.read(lambda txn: need_audited(txn, engine.store.path))
    chainer = _chainer(engine, key)
    engine.store.read(lambda txn: need_key(txn, chainer, engine.store.path))
    known = None if engine.audit is None else engine.audit.anchor
    if anchor is not None:
        anchor = checked_path("anchor", anchor)
    anchor = known if anchor is None else anchor  # type: ignore[assignment]
    if anchor is None:
        raise InvalidOptionError("anchor: expected a path; the database was opened without one")
    lines: AnchorLines
    if callable(anchor):
        lines = AnchorLines(chainer, engine.store.file_id, anchor)
    else:
        lines = anchor_file(chainer, engine.store.file_id, anchor)
    return anchor_all(engine.store, lines, reset=reset)


def would_cut_audit(engine: Engine, key: bytes, older_than_seconds: float) -> int:
    """Count the entries that ``Database.cut_audit`` would delete.

    Raises:
        InvalidOptionError, AuditError: as ``Database.cut_audit`` does.
    """
    chainer, before_ms = _chainer(engine, key), _before_ms(engine, older_than_seconds)

    def look(txn: ReadTxn) -> int:
        need_audited(txn, engine.store.path)
        need_key(txn, chainer, engine.store.path)
        return would_cut(txn, chainer, before_ms)

    return engine.store.read(look)


def _before_ms(engine: Engine, older_than_seconds: float) -> int:
    now_seconds = engine.now_us() / 1e6
    age_seconds = min(checked_seconds("older_than_seconds", older_than_seconds), now_seconds)
    return int((now_seconds - age_seconds) * 1000)


def cut_audit(engine: Engine, older_than_seconds: float | None) -> int:
    """Cut old entries of all chains; see ``Database.cut_audit``."""
    audit = engine.audit
    keep = older_than_seconds
    if keep is None and audit is not None:
        keep = audit.keep_seconds
    if audit is None or keep is None:
        raise InvalidOptionError(
            "older_than_seconds: say how old, here or as Audit(keep_seconds=...) when opening"
        )
    return cut_chains(engine.store, _before_ms(engine, keep))
