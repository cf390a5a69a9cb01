"""Export: sessions as JSON lines, with everything known about them or with messages only.

The first read transaction of a session reads its head and segments; its rows are read page by page
in separate transactions. Rows are never rewritten, so the export is still a single snapshot, and a
slow consumer does not keep the file from reusing its pages.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field, replace
from typing import Any, Final, TypeAlias

from memcore import blobs, kv, memory
from memcore.codec import keys
from memcore.codec.keys import Kind, Row
from memcore.codec.values import FLAG_BLOB, FLAG_BYTES, decode_json, decoding
from memcore.errors import CorruptValueError, InvalidOptionError, NotFoundError
from memcore.exchange.lines import (
    CREATED_US_END,
    EXPORTS,
    FORMATS,
    STAND_INS_A_LINE,
    Title,
    checkpoint_fields,
    portable,
    portable_json,
    view_fields,
)
from memcore.exchange.state import StateLines
from memcore.limits import ITEMS_PAGE
from memcore.log import Head, History
from memcore.log.checkpoint import CheckpointRow, checkpoint_numbers, read_checkpoint
from memcore.log.history import StoredRow, read_rows
from memcore.model import ItemKind, Repair, View
from memcore.options import counted
from memcore.records import record
from memcore.rows import names
from memcore.rows.head import head_key
from memcore.rows.item import split_body
from memcore.rows.lifecycle import REMOVED, read_terms, session_terms
from memcore.rows.views import StoredView, applies_to, is_in_force, is_known, view_chain
from memcore.session import Engine
from memcore.state import read_header, value_at
from memcore.store.interface import ReadTxn
from memcore.wire import WireItem, get_policy
from memcore.wire.convert import convert_entries

__all__ = [
    "Archiving",
    "Place",
    "Run",
    "Runs",
    "check_form",
    "export_sessions",
]


# --- Runs of a session's items in an export, and the checkpoints that refer to them ---------------

Run: TypeAlias = tuple[int, int, int, bool]
"""``(owner session, first seq, last seq, True if they are live)``"""


@record(slots=True)
class Runs:
    """Runs of items, and checkpoints, to export from a session."""

    items: list[Run]
    """In seq order."""
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    """Checkpoints whose items are all exported, oldest first."""
    before: dict[int, int] = field(default_factory=dict)
    """Seq before an undone item in a checkpoint's history, where it is not the preceding one."""
    undone: bool = False
    """True if undone items are among them."""

    @classmethod
    def of(
        cls,
        txn: ReadTxn,
        place: tuple[int, int],
        head: Head,
        live: History,
        views: list[tuple[int, int]],
        *,
        undone: bool,
        every_checkpoint: bool,
    ) -> Runs:
        """Collect what to export. ``views``: ``(owner, number)`` of each, oldest first.

        Undone items are left out unless ``undone`` asks for them, or ``every_checkpoint``, and one
        leads back to some. Checkpoints that lead back to items left out are left out, too.

        Raises:
            CorruptValueError: a checkpoint is damaged.
        """
        scope, session = place
        runs = [(*segment, True) for segment in live.segments]
        every = list(_saved(txn, scope, session))
        is_left = [live.shared_with(history) < history.count for _, history in every]
        undone = undone or (every_checkpoint and any(is_left))
        found = cls(runs, undone=undone)
        longest, own = live, head.parent_seq + 1
        for (saved, history), is_undone in zip(every, is_left, strict=True):
            if is_undone and not undone:
                continue
            longest = max(longest, history, key=lambda each: each.position_from(own))
            found._take(txn, scope, saved, history, views)
        if undone:
            runs += _shared_undone(head, live, longest)
            runs += _own_undone(head, live, session)
            runs.sort(key=lambda run: run[1])
        return found

    def _take(
        self,
        txn: ReadTxn,
        scope: int,
        saved: CheckpointRow,
        history: History,
        views: list[tuple[int, int]],
    ) -> None:
        last = 0
        joined: list[tuple[int, int]] = []
        for _, lo, hi in history.segments:
            if joined and lo == last + 1:
                joined[-1] = joined[-1][0], hi
            else:
                if lo != last + 1:
                    self.before[lo] = last
                joined.append((lo, hi))
            last = hi
        view = 0
        for stored in view_chain(txn, scope, *saved.view):
            if (stored.owner, stored.view.number) in views:
                view = views.index((stored.owner, stored.view.number)) + 1
                break
        self.checkpoints.append(checkpoint_fields(saved.checkpoint, joined, view))


def _saved(txn: ReadTxn, scope: int, session: int) -> Iterator[tuple[CheckpointRow, History]]:
    for number in list(checkpoint_numbers(txn, scope, session)):
        saved = read_checkpoint(txn, scope, session, number)
        if saved is not None:
            yield saved, saved.history(txn, scope)


def _own_undone(head: Head, live: History, session: int) -> Iterator[Run]:
    """Yield the session's own items between and after the live ones."""
    following = head.parent_seq + 1
    for owner, lo, hi in live.segments:
        if owner == session:
            if following < lo:
                yield session, following, lo - 1, False
            following = hi + 1
    if following < head.next_seq:
        yield session, following, head.next_seq - 1, False


def _shared_undone(head: Head, live: History, longest: History) -> Iterator[Run]:
    """Yield items of the sessions it was forked from that only a checkpoint refers to."""
    stop = longest.position_from(head.parent_seq + 1)
    for _, owner, lo, hi in longest.spans(longest.shared_with(live), stop):
        yield owner, lo, hi, False


# --- Sessions as JSON lines: everything known about them, or messages only ------------------------

Place = tuple[str, str, str]
"""``(app, user, session)``"""
Parents = dict[int, dict[int, str]]
"""Names of a scope's sessions by number, read once per export, to name the parents of forks."""

_KINDS: Final = tuple(kind.name.lower() for kind in ItemKind)
_NAMED_MAX: Final = 5
_STAND_IN: Final = b'{"type":"undone","payload":null}'


def export_sessions(
    engine: Engine,
    places: Iterable[Place],
    *,
    form: str,
    undone: bool,
    left_out: Callable[[str], None] | None,
    every_checkpoint: bool = True,
) -> Iterator[bytes]:
    """Yield sessions in one of ``FORMATS`` as chunks of bytes, with a newline after each object.

    Sessions deleted since they were listed are skipped.

    Raises:
        InvalidOptionError: part of a session is left out or changed and ``left_out`` is None;
            discard what was yielded before.
        InvalidItemError: a message cannot be converted.
        NotFoundError: a session was deleted while it was exported.
        CorruptValueError: a row is damaged.
    """
    parents: Parents = {}
    for place in places:
        source = engine.store.read(
            lambda txn, place=place: _Source.read(  # type: ignore[misc]
                txn,
                place,
                parents,
                undone=undone,
                every_checkpoint=every_checkpoint and form == "jsonl",
            )
        )
        if source is None:
            continue
        if form == "jsonl":
            yield from _lines(engine, source)
        else:
            yield from _messages(engine, source, form, left_out)


def check_form(form: str, *, undone: bool) -> None:
    """Refuse an unknown format.

    Raises:
        InvalidOptionError
    """
    if form not in EXPORTS:
        msg = f"format: expected one of {', '.join(EXPORTS)}; got {form!r}"
        raise InvalidOptionError(msg)
    if undone and form not in ("jsonl", "parquet"):
        msg = f"undone: a list of {form} messages has no place for items that were undone"
        raise InvalidOptionError(msg)


def _live_view(
    stored: StoredView, history: History, chain_at: Callable[[int], int | None]
) -> View | None:
    """Return a view with its masks of live items; None if it does not apply: forks reuse seqs."""
    if not applies_to(stored, chain_at):
        return None
    view = stored.view
    masked = zip(view.masks, stored.mask_owners, strict=True)
    owner_of = history.owner_of
    live = (mask for mask, owner in masked if is_in_force(stored, mask, owner, owner_of))
    known = (r for r in view.repairs if r.seq is None or is_known(stored, r.seq, owner_of))
    return replace(view, masks=tuple(live), repairs=tuple(known))


@record(slots=True)
class _Source:
    """Snapshot of one session."""

    place: Place
    scope: int
    session: int
    head: Head
    runs: Runs
    views: list[View]
    state: StateLines
    forked_from: dict[str, Any] | None
    undone: bool

    @classmethod
    def read(
        cls,
        txn: ReadTxn,
        place: Place,
        parents: Parents,
        *,
        undone: bool,
        every_checkpoint: bool = False,
    ) -> _Source | None:
        app, user, name = place
        scope = names.scope_of(txn, app, user)
        session = None if scope is None else names.session_of(txn, scope, name)
        if scope is None or session is None:
            return None
        key = head_key(scope, session)
        value = txn.get(key)
        if value is None:
            msg = f"session {name!r}: its head is missing; run 'memcore check'"
            raise CorruptValueError(msg, key=key)
        head = Head.unpack(key, value)
        history = History(head.all_segments(txn, scope))
        chain = view_chain(txn, scope, head.view_session, head.view_number)
        views = {
            (stored.owner, stored.view.number): view
            for stored in reversed(list(chain))
            # A view that does not apply here may at a checkpoint; it is left out all the same.
            if (view := _live_view(stored, history, lambda seq: history.chain_at(txn, scope, seq)))
        }
        place_in = (scope, session)
        runs = Runs.of(
            txn, place_in, head, history, list(views),
            undone=undone, every_checkpoint=every_checkpoint,
        )  # fmt: skip
        state = StateLines.of(txn, place_in)
        forked_from = _parent(txn, place_in, head, parents)
        found = cls(
            place, scope, session, head, runs, list(views.values()), state, forked_from, runs.undone
        )
        if found.has_stand_ins and found.gaps > _stored_in_line(txn, scope, session) + _LOST_MAX:
            gaps = counted(found.gaps, "item that is", "items that are")
            msg = f"{found.where}: its head counts {gaps} nowhere stored; "
            raise CorruptValueError(f"{msg}run 'memcore check'", key=key)
        return found

    @property
    def where(self) -> str:
        """Description of the session for messages."""
        app, user, name = self.place
        of = f" of {user!r}" if user != "default" else ""
        return f"session {name!r}{of}" + (f" in app {app!r}" if app != "default" else "")

    @property
    def items(self) -> int:
        """Number of exported items."""
        return sum(hi - lo + 1 for _, lo, hi, _ in self.runs.items)

    @property
    def gaps(self) -> int:
        """Number of seqs without an exported item."""
        return self.head.next_seq - 1 - self.items

    @property
    def has_stand_ins(self) -> bool:
        """True if each seq without an item gets a line: an import bounds them by lines read.

        So it is in a complete export, which then counts the items that its import will have: of
        what a fork took back, the items of its parent are not its own.
        """
        bound = 0 if self.undone else STAND_INS_A_LINE * (self.items + 1)
        return self.gaps > bound

    def stand_in(self, seq: int) -> _Row:
        """Return the row that an import creates for a seq without a line."""
        created_us = min(self.head.created_ms * 1000, CREATED_US_END - 1)
        return _Row(
            seq, live=False, kind=ItemKind.EVENT, created_us=created_us, beside={}, json=_STAND_IN
        )

    def title(self) -> Title:
        """Return the session's title line."""
        return Title.begins(
            self.place,
            self.head,
            items=self.head.next_seq - 1 if self.has_stand_ins else self.items,
            views=len(self.views),
            checkpoints=len(self.runs.checkpoints),
            state=len(self.state.counters),
            forked_from=self.forked_from,
        )


_LOST_MAX: Final = 2**20
"""Most items that a head may count beyond those stored: a recovery removes damaged ones."""


def _stored_in_line(txn: ReadTxn, scope: int, session: int) -> int:
    """Count the item rows of a session and its ancestors."""
    count = 0
    seen: set[int] = set()
    while session and session not in seen:
        seen.add(session)
        rows = keys.session_rows(scope, session, Row.ITEM)
        count += sum(1 for _ in txn.scan(rows, keys.after(rows)))
        value = txn.get(head_key(scope, session))
        session = (
            0 if value is None else Head.unpack(head_key(scope, session), value).parent_session
        )
    return count


def _parent(
    txn: ReadTxn, place: tuple[int, int], head: Head, parents: Parents
) -> dict[str, Any] | None:
    """Return where a session was forked from; of one that was imported as a fork, its root alone.

    Raises:
        CorruptValueError: a head, or a note of a root, is damaged.
    """
    scope, session = place
    root = memory.root_of(txn, scope, session, parent=head.parent_session)
    if root == session:
        return None
    if scope not in parents:
        parents[scope] = {number: name for name, number in names.sessions(txn, scope)}
    known = parents[scope]
    return {
        "session": known.get(head.parent_session), "seq": head.parent_seq, "root": known.get(root),
    }  # fmt: skip


# --- items ----------------------------------------------------------------------------------------


@record(slots=True)
class _Row:
    """One stored item."""

    seq: int
    live: bool
    kind: int
    created_us: int
    beside: dict[str, Any]
    """``meta`` and ``request_id``, if any."""
    json: bytes


def _rows(engine: Engine, source: _Source) -> Iterator[_Row]:
    """Yield the items, one read transaction per page."""
    for owner, first, last, live in source.runs.items:
        for lo in range(first, last + 1, ITEMS_PAGE):
            hi = min(lo + ITEMS_PAGE - 1, last)
            yield from engine.store.read(
                lambda txn, owner=owner, lo=lo, hi=hi, live=live: [  # type: ignore[misc]
                    _opened(txn, source, row, live=live)
                    for row in read_rows(txn, source.scope, owner, position=0, lo=lo, hi=hi)
                ]
            )


def _with_stand_ins(rows: Iterable[_Row], source: _Source) -> Iterator[_Row]:
    """Yield the rows, and one for each seq between and after them."""
    following = 1
    for row in rows:
        yield from map(source.stand_in, range(following, row.seq))
        yield row
        following = row.seq + 1
    yield from map(source.stand_in, range(following, source.head.next_seq))


def _opened(
    txn: ReadTxn, source: _Source, row: StoredRow | CorruptValueError, *, live: bool
) -> _Row:
    if isinstance(row, CorruptValueError):
        _, _, name = source.place
        if names.session_of(txn, source.scope, name) != source.session:  # none, or a new one
            msg = f"{source.where} was deleted while it was exported"
            raise NotFoundError(msg) from row
        raise row
    return _split(txn, source.scope, row, live=live)


def _split(txn: ReadTxn, scope: int, row: StoredRow, *, live: bool) -> _Row:
    """Split an item's row into its parts.

    Raises:
        CorruptValueError: one of them is malformed, or its large content is missing.
    """
    _, seq, flags, body = row
    with decoding(b"", f"item {seq}"):
        kind, created_us, envelope, encoded = split_body(body)
        if flags & FLAG_BLOB:
            encoded = blobs.read(txn, scope, blobs.BlobRef.unpack(encoded))
        beside = decode_json(envelope[1:], envelope[0]) if envelope else {}
        kept = {name: value for name, value in beside.items() if value is not None}
        json = portable(encoded, flags)
        if kind >= len(_KINDS) or b"\n" in json:  # a line of an export is one object
            raise ValueError(kind)
    return _Row(seq, live, kind, created_us, kept, json)


def _line(row: _Row, rest: bytes = b"") -> bytes:
    """Format an item as a line of an export."""
    if row.beside:
        rest += b"," + portable_json(row.beside)[1:-1]
    return b'{"seq":%d,"kind":"%s","created_us":%d%s,"item":%s}\n' % (
        row.seq,
        _KINDS[row.kind].encode(),
        row.created_us,
        rest,
        row.json,
    )


def _lines(engine: Engine, source: _Source) -> Iterator[bytes]:
    """Yield everything: title, items, views, checkpoints and state."""
    yield source.title().line() + b"\n"
    rows = _rows(engine, source)
    for row in _with_stand_ins(rows, source) if source.has_stand_ins else rows:
        rest = b""
        if not row.live:
            rest = b',"undone":true'
            after = source.runs.before.get(row.seq)
            rest += b"" if after is None else b',"after":%d' % after
        yield _line(row, rest)
    for view in source.views:
        yield portable_json({"view": view_fields(view)}) + b"\n"
    for checkpoint in source.runs.checkpoints:
        yield portable_json({"checkpoint": checkpoint}) + b"\n"
    for counter in source.state.counters:
        try:
            yield engine.store.read(lambda txn, counter=counter: source.state.line(txn, counter))  # type: ignore[misc]
        except NotFoundError as exc:
            msg = f"{source.where}: it was deleted, or its state trimmed, while it was exported"
            raise NotFoundError(msg) from exc


# --- messages only --------------------------------------------------------------------------------


@record(slots=True)
class _LeftOut:
    """Parts of a session that a list of messages cannot hold."""

    events: list[int] = field(default_factory=list)
    beside: list[int] = field(default_factory=list)
    repairs: tuple[Repair, ...] = ()
    """Changes that made the messages legal in the format."""

    def text(self, source: _Source) -> str:
        """Describe it in words; empty if nothing is left out."""
        parts = [
            f"{what} ({_named(seqs)})"
            for what, seqs in (
                (counted(len(self.events), "event"), self.events),
                (f"meta or request id of {counted(len(self.beside), 'item')}", self.beside),
            )
            if seqs
        ]
        if source.views:
            views = counted(len(source.views), "compaction")
            parts.append(f"{views} (the covered items are there)")
        if source.runs.checkpoints:
            parts.append(counted(len(source.runs.checkpoints), "checkpoint"))
        if source.state.counters:
            parts.append("the state")
        told = [f"left out {', '.join(parts)}"] if parts else []
        changed: dict[str, list[int]] = {}
        for repair in self.repairs:
            changed.setdefault(repair.action, []).append(repair.seq or 0)
        if changed:
            listed = (
                f"{len(at):,} {action}" + (f" ({_named(at)})" if all(at) else "")
                for action, at in changed.items()
            )
            told.append(f"changed {', '.join(listed)}")
        return f"{source.where}: {'; '.join(told)}" if told else ""


def _named(seqs: list[int]) -> str:
    shown = ", ".join(map(str, seqs[:_NAMED_MAX]))
    return f"seq {shown}" + (", ..." if len(seqs) > _NAMED_MAX else "")


def _messages(
    engine: Engine, source: _Source, form: str, left_out: Callable[[str], None] | None
) -> Iterator[bytes]:
    """Yield one line ``{"id", "metadata", "messages"}`` with the items as legal messages.

    Messages that are legal in the format as they were appended keep their stored JSON.
    """
    own = get_policy(source.head.policy)
    policy = own if own.wire == FORMATS[form] else get_policy(form.replace("-", "_"))
    missing = _LeftOut()
    entries: list[WireItem] = []
    stored: dict[int, bytes] = {}
    for row in _rows(engine, source):
        with decoding(b"", f"item {row.seq}"):
            message = decode_json(row.json, 1)
        is_event = row.kind == ItemKind.EVENT
        if is_event:
            missing.events.append(row.seq)
        elif row.beside:
            missing.beside.append(row.seq)
        entries.append(WireItem(row.seq, message, event=is_event))
        stored[id(message)] = row.json
    made = convert_entries(entries, policy.mended)
    missing.repairs = made.repairs
    app, user, name = source.place
    owner = {"app": app, "user": user, "policy": policy.name}
    yield b'{"id":%s,"metadata":%s,"messages":[' % (
        portable_json(name),
        portable_json({"memcore": owner}),
    )
    for at, message in enumerate(made.messages):
        yield (b"," if at else b"") + (stored.get(id(message)) or portable_json(message))
    yield b"]}\n"
    text = missing.text(source)
    if text and left_out is None:
        msg = f"{text}; export it as jsonl, or say where to list what is left out (left_out=)"
        raise InvalidOptionError(msg)
    if text and left_out is not None:
        left_out(text)


# --- Archive lines: expired data as lines of an export, written before deletion -------------------


class Archiving:
    """Reads data about to be deleted; see ``memcore.retention.Exporter``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def session(self, scope: int, name: str) -> Iterator[bytes]:
        """Export everything of a session, including undone items."""
        app, user = self._engine.store.read(lambda txn: names.scope_names(txn, scope))
        return export_sessions(
            self._engine, [(app, user, name)], form="jsonl", undone=True, left_out=None
        )

    def items(self, scope: int, session: int, seqs: Iterable[int]) -> Iterator[bytes]:
        """Export items that a session owns, after a title of their own, so they can be imported.

        Raises:
            NotFoundError: one of them was removed while they were exported.
        """
        wanted = sorted(seqs)
        yield self._engine.store.read(lambda txn: self._title(txn, scope, session, wanted))
        for seq in wanted:
            yield self._engine.store.read(lambda txn, seq=seq: _item(txn, scope, session, seq))  # type: ignore[misc]

    def _title(self, txn: ReadTxn, scope: int, session: int, seqs: list[int]) -> bytes:
        key = head_key(scope, session)
        value = txn.get(key)
        if value is None:
            msg = f"session {session} was removed while its items were exported"
            raise NotFoundError(msg)
        head = Head.unpack(key, value)
        app, user = names.scope_names(txn, scope)
        name = next(
            (name for name, number in names.sessions(txn, scope) if number == session),
            f"deleted-{session}",
        )
        title = Title.begins((app, user, name), head, items=len(seqs), views=0)
        if seqs:
            # An import stores a stand-in for every seq without a line, and joins the parts of a
            # session: of one that lost its beginning, the seqs go on as if it were there.
            removed = read_terms(txn, session_terms(scope, session)).marks.get(REMOVED, 0)
            title = replace(title, next_seq=removed + seqs[-1] + 1, part=removed + seqs[0])
        return title.line() + b"\n"

    def fields(self, scope: int, session: int, fields: Iterable[str]) -> Iterator[bytes]:
        """Export state fields with their current values."""

        def look(txn: ReadTxn) -> list[bytes]:
            app, user = names.scope_names(txn, scope)
            counter = read_header(txn, scope, session).counter
            found = []
            for name in fields:
                version = value_at(txn, scope, session, name, counter)
                if version is not None:
                    told = {"app": app, "user": user, "field": name, "value": version.value()}
                    found.append(portable_json({"expired": told}) + b"\n")
            return found

        yield from self._engine.store.read(look)

    def entry(self, key: bytes) -> bytes:
        """Export a key/value entry; its content, if it has one, is written as base64.

        Empty if it is not there any more.
        """
        scope, namespace = keys.split_session_prefix(key)

        def look(txn: ReadTxn) -> bytes:
            value = txn.get(key)
            if value is None:
                return b""
            app, user = names.scope_names(txn, scope)
            found = kv.entry_of(key, value)
            told: dict[str, Any] = {
                "app": app,
                "user": user,
                "namespace": _namespace(txn, scope, namespace),
                "key": keys.unpack_text(key[17:]),
            }
            if found.flags & FLAG_BYTES:
                told["base64"] = b64encode(found.payload).decode()
            else:
                told["value"] = found.value()
            if found.ref is not None:
                told["content"] = b64encode(blobs.read(txn, scope, found.ref)).decode()
            return portable_json({"expired": told}) + b"\n"

        return self._engine.store.read(look)

    def memory(self, key: bytes) -> bytes:
        """Export a long-term memory that has expired, with its earlier versions.

        Empty if it is not there any more.
        """
        scope = keys.split_scoped(key)[0]

        def look(txn: ReadTxn) -> bytes:
            value = txn.get(key)
            if value is None:
                return b""
            app, user = names.scope_names(txn, scope)
            told = {"app": app, "user": user, **memory.exported(txn, key, value)}
            return portable_json({"expired": told}) + b"\n"

        return self._engine.store.read(look)


def _namespace(txn: ReadTxn, scope: int, number: int) -> str:
    """Return the name of a namespace."""
    prefix = keys.scoped(Kind.KV_NAMESPACE, scope)
    for _, value in txn.scan(prefix, keys.after(prefix)):
        found, texts = names.unpack_name(value[10:])
        if found == number:
            return texts[0]
    return f"number-{number}"


def _item(txn: ReadTxn, scope: int, session: int, seq: int) -> bytes:
    row = next(read_rows(txn, scope, session, position=0, lo=seq, hi=seq))
    if isinstance(row, CorruptValueError):
        if txn.get(keys.session_row(scope, session, Row.ITEM, seq)) is None:
            msg = f"item {seq} of session {session} was removed while it was exported"
            raise NotFoundError(msg) from row
        raise row
    found = _split(txn, scope, row, live=True)
    found.seq += read_terms(txn, session_terms(scope, session)).marks.get(REMOVED, 0)
    return _line(found)


def item_line(txn: ReadTxn, scope: int, row: StoredRow) -> bytes:
    """Format an item as a line of an export."""
    return _line(_split(txn, scope, row, live=True))
