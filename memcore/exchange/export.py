"""Export: sessions as JSON lines, with everything that is known of them or messages alone.

The first read transaction of a session takes its head and segments; its rows are read page by page
in transactions of their own. Rows are never rewritten, so the export is one snapshot all the same,
and no slow reader of it keeps the file from reusing its pages.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from memcore import blobs, kv
from memcore.codec import keys
from memcore.codec.keys import Kind, Row
from memcore.codec.values import FLAG_BLOB, FLAG_BYTES, decode_json, decoding
from memcore.errors import CorruptValueError, InvalidOptionError, NotFoundError
from memcore.exchange.lines import (
    CREATED_US_END,
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
from memcore.model import ItemKind, View
from memcore.rows import names
from memcore.rows.head import head_key
from memcore.rows.item import split_body
from memcore.rows.views import StoredView, applies_to, is_in_force, is_known, view_chain
from memcore.session import Engine
from memcore.state import read_header, value_at
from memcore.store.interface import ReadTxn
from memcore.wire import get_policy

__all__ = [
    "Archiving",
    "Place",
    "Run",
    "Runs",
    "check_form",
    "export_sessions",
]


# --- The runs of items that an export holds of a session, and its checkpoints, which refer to them

Run: TypeAlias = tuple[int, int, int, bool]
"""``(owner session, first seq, last seq, whether they are live)``"""


@dataclass(slots=True)
class Runs:
    """Runs of items, and checkpoints, that are exported of a session."""

    items: list[Run]
    """In the order of their seqs."""
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    """Checkpoints whose items are all exported, oldest first."""
    before: dict[int, int] = field(default_factory=dict)
    """The seq before an undone item in a checkpoint's history, where it is not the one below."""

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
    ) -> Runs:
        """Collect what to export. ``views``: ``(owner, number)`` of each, oldest first.

        Without ``undone``, checkpoints outside of the live history are left out.

        Raises:
            CorruptValueError: a checkpoint is damaged.
        """
        scope, session = place
        runs = [(*segment, True) for segment in live.segments]
        found = cls(runs)
        longest, own = live, head.parent_seq + 1
        for saved, history in _saved(txn, scope, session):
            shared = live.shared_with(history)
            if shared < history.count and not undone:
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
    """The session's own items between and behind the live ones."""
    following = head.parent_seq + 1
    for owner, lo, hi in live.segments:
        if owner == session:
            if following < lo:
                yield session, following, lo - 1, False
            following = hi + 1
    if following < head.next_seq:
        yield session, following, head.next_seq - 1, False


def _shared_undone(head: Head, live: History, longest: History) -> Iterator[Run]:
    """Items of the sessions that it was forked from that only a checkpoint refers to."""
    stop = longest.position_from(head.parent_seq + 1)
    for _, owner, lo, hi in longest.spans(longest.shared_with(live), stop):
        yield owner, lo, hi, False


# --- Writing sessions as JSON lines: everything that is known of them, or the messages alone ------

Place = tuple[str, str, str]
"""``(app, user, session)``"""
Parents = dict[int, dict[int, str]]
"""The names of a scope's sessions by number: read once an export, for the notes of forks."""

_KINDS: Final = tuple(kind.name.lower() for kind in ItemKind)
_NAMED_MAX: Final = 5
_ROLES: Final = {
    "chat": {"system", "developer", "user", "assistant", "tool", "function"},
    "responses": {"system", "developer", "user", "assistant"},
    "anthropic": {"system", "user", "assistant"},
}
_CHAT_FIELD: Final = "tool_calls"
_STAND_IN: Final = b'{"type":"undone","payload":null}'
_ANTHROPIC_BLOCKS: Final = {"tool_use", "tool_result"}


def export_sessions(
    engine: Engine,
    places: Iterable[Place],
    *,
    form: str,
    undone: bool,
    left_out: Callable[[str], None] | None,
) -> Iterator[bytes]:
    """Sessions in one of ``FORMATS`` as pieces of bytes, an end of line after each object.

    Those that were deleted since they were listed are passed over.

    Raises:
        InvalidOptionError: the format cannot express a session, or something of it is left out
            and ``left_out`` is None; what was yielded before is worth nothing then.
        NotFoundError: a session was deleted while it was exported.
        CorruptValueError: a row is damaged.
    """
    parents: Parents = {}
    for place in places:
        source = engine.store.read(
            lambda txn, place=place: _Source.read(txn, place, parents, undone=undone)  # type: ignore[misc]
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
    if form not in FORMATS:
        msg = f"format: expected one of {', '.join(FORMATS)}; got {form!r}"
        raise InvalidOptionError(msg)
    if undone and form != "jsonl":
        msg = f"undone: a list of {form} messages has no place for items that were undone"
        raise InvalidOptionError(msg)


def _live_view(
    stored: StoredView, history: History, chain_at: Callable[[int], int | None]
) -> View | None:
    """A view with its masks of live items; None if it does not apply (a fork uses seqs again)."""
    if not applies_to(stored, chain_at):
        return None
    view = stored.view
    masked = zip(view.masks, stored.mask_owners, strict=True)
    owner_of = history.owner_of
    live = (mask for mask, owner in masked if is_in_force(stored, mask, owner, owner_of))
    known = (r for r in view.repairs if r.seq is None or is_known(stored, r.seq, owner_of))
    return replace(view, masks=tuple(live), repairs=tuple(known))


@dataclass(slots=True)
class _Source:
    """One session as a snapshot has it."""

    place: Place
    scope: int
    session: int
    head: Head
    runs: Runs
    views: list[View]
    state: StateLines
    forked_from: dict[str, Any] | None

    @classmethod
    def read(cls, txn: ReadTxn, place: Place, parents: Parents, *, undone: bool) -> _Source | None:
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
            # One that does not apply may at a checkpoint; it stays behind all the same.
            if (view := _live_view(stored, history, lambda seq: history.chain_at(txn, scope, seq)))
        }
        place_in = (scope, session)
        runs = Runs.of(txn, place_in, head, history, list(views), undone=undone)
        state = StateLines.of(txn, place_in)
        forked_from = _parent(txn, scope, head, parents)
        found = cls(place, scope, session, head, runs, list(views.values()), state, forked_from)
        if found.has_stand_ins and found.gaps > _stored_in_line(txn, scope, session) + _LOST_MAX:
            msg = f"{found.where}: its head counts {found.gaps:,} items that are nowhere stored; "
            raise CorruptValueError(f"{msg}run 'memcore check'", key=key)
        return found

    @property
    def where(self) -> str:
        """The session in words."""
        return f"session {self.place[2]!r}"

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
        """True if each seq without an item gets a line: an import bounds them by lines read."""
        return self.gaps > STAND_INS_A_LINE * (self.items + 1)

    def stand_in(self, seq: int) -> _Row:
        """Return the row that an import makes for a seq without a line."""
        created_us = min(self.head.created_ms * 1000, CREATED_US_END - 1)
        return _Row(
            seq, live=False, kind=ItemKind.EVENT, created_us=created_us, beside={}, json=_STAND_IN
        )

    def title(self) -> Title:
        """The line that it begins with."""
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
"""So many items more than are stored a head may count: a recovery takes out what is damaged."""


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


def _parent(txn: ReadTxn, scope: int, head: Head, parents: Parents) -> dict[str, Any] | None:
    if not head.parent_session:
        return None
    if scope not in parents:
        parents[scope] = {number: name for name, number in names.sessions(txn, scope)}
    return {"session": parents[scope].get(head.parent_session), "seq": head.parent_seq}


# --- items ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Row:
    """One item as it is stored."""

    seq: int
    live: bool
    kind: int
    created_us: int
    beside: dict[str, Any]
    """``meta`` and ``request_id``, if there are any."""
    json: bytes


def _rows(engine: Engine, source: _Source) -> Iterator[_Row]:
    """The items, a page a read transaction."""
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
    """The rows, and one for each seq between and behind them."""
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
        if names.session_of(txn, source.scope, name) != source.session:  # maybe a new one's
            msg = f"{source.where} was deleted while it was exported"
            raise NotFoundError(msg) from row
        raise row
    return _split(txn, source.scope, row, live=live)


def _split(txn: ReadTxn, scope: int, row: StoredRow, *, live: bool) -> _Row:
    """The parts of an item's row.

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
    """An item as a line of an export."""
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
    """Everything: the title, the items, the views, the checkpoints."""
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


# --- messages alone -------------------------------------------------------------------------------


@dataclass(slots=True)
class _LeftOut:
    """Parts of a session that a list of messages cannot hold."""

    events: list[int] = field(default_factory=list)
    beside: list[int] = field(default_factory=list)

    def text(self, source: _Source) -> str:
        """Describe it in words; empty if nothing is left out."""
        parts = [
            f"{count:,} {what} ({_named(seqs)})"
            for what, count, seqs in (
                ("events", len(self.events), self.events),
                ("items' meta or request id", len(self.beside), self.beside),
            )
            if count
        ]
        if source.views:
            parts.append(f"{len(source.views):,} compactions (the items that they cover are there)")
        if source.runs.checkpoints:
            parts.append(f"{len(source.runs.checkpoints):,} checkpoints")
        if source.state.counters:
            parts.append("the state")
        return f"{source.where}: left out {', '.join(parts)}" if parts else ""


def _named(seqs: list[int]) -> str:
    shown = ", ".join(map(str, seqs[:_NAMED_MAX]))
    return f"seq {shown}" + (", ..." if len(seqs) > _NAMED_MAX else "")


def _messages(
    engine: Engine, source: _Source, form: str, left_out: Callable[[str], None] | None
) -> Iterator[bytes]:
    """One line ``{"id", "metadata", "messages"}`` with the items as they were appended."""
    wire = FORMATS[form]
    if get_policy(source.head.policy).wire != wire:
        own = [name for name, its in FORMATS.items() if its == get_policy(source.head.policy).wire]
        msg = (
            f"{source.where} is held to {source.head.policy!r} and cannot be written as {form}: "
            f"messages are not converted; export it as {' or '.join([*own, 'jsonl'])}"
        )
        raise InvalidOptionError(msg)
    missing = _LeftOut()
    app, user, name = source.place
    owner = {"app": app, "user": user, "policy": source.head.policy}
    yield b'{"id":%s,"metadata":%s,"messages":[' % (
        portable_json(name),
        portable_json({"memcore": owner}),
    )
    between = b""
    for row in _rows(engine, source):
        if row.kind == ItemKind.EVENT:
            missing.events.append(row.seq)
            continue
        if row.beside:
            missing.beside.append(row.seq)
        with decoding(b"", f"item {row.seq}"):
            belongs = _belongs(decode_json(row.json, 1), wire)
        if not belongs:
            msg = f"{source.where}: item {row.seq} is no {form} message; export it as jsonl"
            raise InvalidOptionError(msg)
        yield between + row.json
        between = b","
    yield b"]}\n"
    text = missing.text(source)
    if text and left_out is None:
        msg = f"{text}; export it as jsonl, or say where to list what is left out (left_out=)"
        raise InvalidOptionError(msg)
    if text and left_out is not None:
        left_out(text)


def _belongs(message: dict[str, Any], wire: str) -> bool:
    """Return True if a message's outermost fields fit a wire format."""
    role, kind, content = message.get("role"), message.get("type"), message.get("content")
    if wire != "chat" and _CHAT_FIELD in message:
        return False
    if wire == "responses" and role is None:
        return isinstance(kind, str)
    if wire == "chat" and isinstance(content, list):
        kinds = {block.get("type") for block in content if isinstance(block, dict)}
        if any(isinstance(found, str) and found in _ANTHROPIC_BLOCKS for found in kinds):
            return False
    return isinstance(role, str) and role in _ROLES[wire]


# --- Archive lines: expired data as lines of an export, written before it is deleted --------------


class Archiving:
    """Reads what is about to leave; see ``memcore.retention.Exporter``."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def session(self, scope: int, name: str) -> Iterator[bytes]:
        """Everything of a session, undone items too."""
        app, user = self._engine.store.read(lambda txn: names.scope_names(txn, scope))
        return export_sessions(
            self._engine, [(app, user, name)], form="jsonl", undone=True, left_out=None
        )

    def items(self, scope: int, session: int, seqs: Iterable[int]) -> Iterator[bytes]:
        """Items that a session owns, behind a title of their own, so that they can be imported."""
        wanted = sorted(seqs)
        yield self._engine.store.read(lambda txn: self._title(txn, scope, session, wanted))
        for seq in wanted:
            yield self._engine.store.read(lambda txn, seq=seq: _item(txn, scope, session, seq))  # type: ignore[misc]

    def _title(self, txn: ReadTxn, scope: int, session: int, seqs: list[int]) -> bytes:
        key = head_key(scope, session)
        value = txn.get(key)
        if value is None:
            msg = f"session {session}: its head is missing; run 'memcore check'"
            raise CorruptValueError(msg, key=key)
        head = Head.unpack(key, value)
        app, user = names.scope_names(txn, scope)
        name = next(
            (name for name, number in names.sessions(txn, scope) if number == session),
            f"deleted-{session}",
        )
        title = Title.begins((app, user, name), head, items=len(seqs), views=0)
        if seqs:  # an import stores a stand-in for every seq that has no line
            title = replace(title, next_seq=seqs[-1] + 1)
        return title.line() + b"\n"

    def fields(self, scope: int, session: int, fields: Iterable[str]) -> Iterator[bytes]:
        """Fields of a state with their values of now."""

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

    def entry(self, key: bytes, value: bytes) -> bytes:
        """A key/value entry; its content, if it has one, is not written."""
        scope, namespace = keys.split_session_prefix(key)

        def look(txn: ReadTxn) -> bytes:
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


def _namespace(txn: ReadTxn, scope: int, number: int) -> str:
    """The name of a namespace."""
    prefix = keys.scoped(Kind.KV_NAMESPACE, scope)
    for _, value in txn.scan(prefix, keys.after(prefix)):
        found, texts = names.unpack_name(value[10:])
        if found == number:
            return texts[0]
    return f"number-{number}"


def _item(txn: ReadTxn, scope: int, session: int, seq: int) -> bytes:
    row = next(read_rows(txn, scope, session, position=0, lo=seq, hi=seq))
    if isinstance(row, CorruptValueError):
        raise row
    return item_line(txn, scope, row)


def item_line(txn: ReadTxn, scope: int, row: StoredRow) -> bytes:
    """One item as a line of an export."""
    return _line(_split(txn, scope, row, live=True))
